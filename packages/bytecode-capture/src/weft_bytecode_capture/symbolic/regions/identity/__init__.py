"""Which tensor of eager a region's result is: aliases, views, choices among the caller's own."""
