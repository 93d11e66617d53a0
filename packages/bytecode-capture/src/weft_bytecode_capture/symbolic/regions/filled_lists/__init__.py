"""Lists that loops fill: rows of one buffer in the graph."""
