"""Numbers whose value capture does not know, in each representation."""
