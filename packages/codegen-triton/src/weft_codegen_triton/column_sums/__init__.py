"""Sums of columns made where the rows are read or computed."""
