"""Symbolic sizes and numbers of one capture: which there are, what was decided about them."""

from .history import ShapeHistory as ShapeHistory
from .symbols import ShapeSymbols as ShapeSymbols
