"""Iterators, generators, and those of ``itertools``."""
