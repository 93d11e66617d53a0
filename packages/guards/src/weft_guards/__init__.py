"""Guards: conditions under which compiled code may be used again."""

from .guard import Guard as Guard
from .guard import Reason as Reason
from .predicates import *  # noqa: F403
from .sources import *  # noqa: F403
