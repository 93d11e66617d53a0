"""Functions of Python: made in the frame, from outside, bound; the cells that they close over."""
