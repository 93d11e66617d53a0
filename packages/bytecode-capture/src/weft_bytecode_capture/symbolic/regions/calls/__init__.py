"""Regions that a program asks for by calling torch's operators."""
