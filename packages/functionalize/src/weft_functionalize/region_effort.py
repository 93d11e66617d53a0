"""How much is done to tell which results of regions are one."""

from __future__ import annotations

import enum


class RegionEffort(enum.IntEnum):
    """What is done for results of regions that may be one with other values; each costs more.

    ``PEEL``: the first iteration of a loop that writes to what it begins with stands before the loop.
    ``IDENTIFY``: regions also give flags that say which values are one, so that writes reach all of them.
    """

    LEAST = 0
    PEEL = 1
    IDENTIFY = 2
