"""Warnings of what is slower than asked for, never of wrong results: they break no call."""

from __future__ import annotations

import logging
import warnings


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn; where a filter makes that an exception (``python -W error``) the message is logged instead.

    The program's own warnings are raised there as in eager PyTorch; eager gives none of these.
    """
    try:
        warnings.warn(message, category, stacklevel=3)
    except category:
        logging.getLogger("weft").warning(message)
