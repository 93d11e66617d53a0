"""``python -m weft``: the command ``weft``."""

from .cli import main

raise SystemExit(main())
