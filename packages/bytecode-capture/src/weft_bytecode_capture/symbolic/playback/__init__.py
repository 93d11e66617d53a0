"""Calls that are evaluated once and played back: a model's layers, which differ by their parameters only."""
