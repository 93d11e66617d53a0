"""Exceptions: objects, classes, groups."""
