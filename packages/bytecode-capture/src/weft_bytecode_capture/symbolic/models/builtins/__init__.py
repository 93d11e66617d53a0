"""Builtin functions, classes and methods."""
