"""The Python state around a region: what it may change, and how two states compare."""
