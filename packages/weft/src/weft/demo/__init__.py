"""What ``weft demo`` shows."""
