"""Loops that are evaluated once for all iterations."""
