"""Handlers of CPython's opcodes, by family; importing this package registers them all."""

from . import calls as calls
from . import containers as containers
from . import exceptions as exceptions
from . import imports as imports
from . import jumps as jumps
from . import load_store as load_store
from . import operators as operators
from . import pattern_matching as pattern_matching
