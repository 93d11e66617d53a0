"""Elements of tensors at positions that differ by iteration or by data."""
