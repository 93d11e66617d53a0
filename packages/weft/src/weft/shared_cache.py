"""Compiled programs in a folder that several machines share, by a URL of fsspec; nobody's unless it is named.

An object of the store is an archive (:mod:`.caches`) of what one graph needs: its program and the compiled
libraries.  It is unpacked into the user's own caches, from which it is loaded as ever.  What is in the store
is run, as what is in the user's caches is: who names a store trusts those who can write to it.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from weft_bytecode_capture import warn

from .caches import pack_caches, unpack_caches
from .errors import WeftWarning


class SharedCache:
    """The store at ``url``.  After its first failure, of which a warning tells, it is not asked again."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._asked: dict[str, float] = {}
        self._failed = False

    def fetch(self, name: str) -> bool:
        """Whether the store has ``name``; then it is among the user's caches now."""
        self._asked[name] = time.time()
        content = self._try("read", self._read, name)
        if content is None:
            return False
        return self._try("read", lambda _: unpack_caches(content), name) is not None

    def send(self, name: str) -> bool:
        """Give the store ``name``, which was asked for and has been compiled since."""
        since = self._asked.pop(name, None)
        if since is None:
            return False
        content, _ = pack_caches(since)
        return self._try("write to", functools.partial(self._write, content), name) is True

    def _read(self, name: str) -> bytes | None:
        files, path = self._place(name)
        if not files.exists(path):
            return None
        content: bytes = files.cat_file(path)
        return content

    def _write(self, content: bytes, name: str) -> bool:
        files, path = self._place(name)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        made = f"{path}.{time.time_ns():x}"  # so that nobody reads half of it
        files.pipe_file(made, content)
        files.mv(made, path)
        return True

    def _place(self, name: str) -> tuple[Any, str]:
        import fsspec  # type: ignore[import-untyped]  # only for this

        files, path = fsspec.core.url_to_fs(f"{self._url}/{name}")
        return files, path

    def _try(self, what: str, action: Any, name: str) -> Any:
        """What ``action`` gives; None where the store fails, in whatever way its driver does."""
        if self._failed:
            return None
        try:
            return action(name)
        except Exception as error:
            self._failed = True
            warn(
                f"weft: cannot {what} the shared cache {self._url}, which is not used from now on: "
                f"{type(error).__name__}: {error}",
                WeftWarning,
            )
            return None


@functools.cache
def shared_cache(url: str) -> SharedCache:
    """The one of a URL in this process: what has failed is not tried again."""
    return SharedCache(url)
