"""Values of the standard library and NumPy."""
