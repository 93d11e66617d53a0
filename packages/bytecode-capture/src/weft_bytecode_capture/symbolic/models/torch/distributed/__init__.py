"""Collectives and process groups."""
