"""Control flow that stays in the graph: branches on a tensor's value, loops that are evaluated once."""
