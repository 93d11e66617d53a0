"""Symbolic sizes and numbers of one capture: which there are, what was decided about them."""

from .history import ValueHistory as ValueHistory
from .symbols import ShapeSymbols as ShapeSymbols
