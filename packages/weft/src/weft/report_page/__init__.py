"""``weft report DIR``: one HTML page of what a dump holds."""

from .page import DumpError as DumpError
from .page import write_page as write_page

__all__ = ["DumpError", "write_page"]
