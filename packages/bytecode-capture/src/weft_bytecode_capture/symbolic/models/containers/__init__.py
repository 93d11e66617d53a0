"""Lists, tuples, dicts, sets, deques, bytes, and what reads parts of them."""
