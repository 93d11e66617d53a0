"""Measurements of weft beside eager PyTorch and torch.compile."""
