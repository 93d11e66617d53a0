"""What programs say of gradients: ``autograd.Function``, checkpoints, autograd's graph."""
