"""Changes of functional ATen graphs before they are lowered."""
