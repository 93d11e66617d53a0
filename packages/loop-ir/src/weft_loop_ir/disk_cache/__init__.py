"""Files that processes of one user keep for each other: where they may lie, how they are read and written.

What is kept is run or believed by later processes, so that only files count which nobody but the user can
have written.  All of weft's caches are folders of this kind: ``cpp``, ``triton`` and ``programs`` under
``$WEFT_CACHE_DIR``, else in the user's cache directory.
"""

from weft_loop_ir.disk_cache.entries import (
    DamagedEntry,
    discard_entry,
    has_entry,
    install_entry,
    locked,
    read_entry,
    write_entry,
)
from weft_loop_ir.disk_cache.eviction import collect, mark_used, size_limit
from weft_loop_ir.disk_cache.locations import (
    CacheWarning,
    cache_base,
    cache_folder,
    private_folder,
    trusted_folder,
    warn_once,
)

__all__ = [
    "CacheWarning",
    "DamagedEntry",
    "cache_base",
    "cache_folder",
    "collect",
    "discard_entry",
    "has_entry",
    "install_entry",
    "locked",
    "mark_used",
    "private_folder",
    "read_entry",
    "size_limit",
    "trusted_folder",
    "warn_once",
    "write_entry",
]
