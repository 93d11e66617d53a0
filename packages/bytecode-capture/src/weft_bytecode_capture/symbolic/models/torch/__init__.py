"""Tensors, modules, and functions of torch."""
