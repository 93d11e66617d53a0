"""Branches on a tensor's value: both evaluated, joined where they meet."""
