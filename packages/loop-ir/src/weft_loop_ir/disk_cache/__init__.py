"""Files that processes of one user keep for each other: where they may lie, how they are read and written.

What is kept is run or believed by later processes, so that only files count which nobody but the user can
have written.  All of weft's caches are folders of this kind: ``cpp``, ``triton`` and ``programs`` under
``$WEFT_CACHE_DIR``, else in the user's cache directory.
"""

from weft_loop_ir.disk_cache.entries import DamagedEntry as DamagedEntry
from weft_loop_ir.disk_cache.entries import discard_entry as discard_entry
from weft_loop_ir.disk_cache.entries import has_entry as has_entry
from weft_loop_ir.disk_cache.entries import install_entry as install_entry
from weft_loop_ir.disk_cache.entries import locked as locked
from weft_loop_ir.disk_cache.entries import read_entry as read_entry
from weft_loop_ir.disk_cache.entries import write_entry as write_entry
from weft_loop_ir.disk_cache.eviction import collect as collect
from weft_loop_ir.disk_cache.eviction import mark_used as mark_used
from weft_loop_ir.disk_cache.eviction import size_limit as size_limit
from weft_loop_ir.disk_cache.locations import CacheWarning as CacheWarning
from weft_loop_ir.disk_cache.locations import cache_base as cache_base
from weft_loop_ir.disk_cache.locations import cache_folder as cache_folder
from weft_loop_ir.disk_cache.locations import private_folder as private_folder
from weft_loop_ir.disk_cache.locations import trusted_folder as trusted_folder
from weft_loop_ir.disk_cache.locations import warn_once as warn_once
