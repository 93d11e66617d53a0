"""Symbolic sizes and numbers of one capture: which there are, what was decided about them."""

from .data_symbols import LARGEST_NUMBER as LARGEST_NUMBER
from .data_symbols import DataPlace as DataPlace
from .history import ValueHistory as ValueHistory
from .symbols import ShapeSymbols as ShapeSymbols
