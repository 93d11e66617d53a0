"""Symbolic sizes and numbers of one capture: which there are, what was decided about them."""

from .data_symbols import MAX_NUMBER as MAX_NUMBER
from .data_symbols import DataSymbolSource as DataSymbolSource
from .history import ValueHistory as ValueHistory
from .symbols import ShapeSymbols as ShapeSymbols
