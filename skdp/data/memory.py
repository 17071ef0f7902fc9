"""What was made for some units is kept for the passes that follow, within a public limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]
_LARGE = 0.9  # of the limit, for what is large: what is small and needed in each pass finds room
_KEPT_BYTES = 190_000_000  # of what is as large as rows; beside it a fit needs little


class Memory:
    """Arrays by public key, until they take a public number of bytes: a part stays without.

    Which are kept never changes a result: what is not is made again, from the same rows.
    """

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Arrays] = {}
        self._taken = 0
        self._lock = threading.Lock()

    def __call__(self, key: Hashable, make: Callable[[], Arrays], *, large: bool = False) -> Arrays:
        """Return what is kept under the key, or what `make` returns."""
        found = self._arrays.get(key)
        if found is None:
            found = make()
            size = sum(array.nbytes for array in found)
            share = _LARGE if large else 1.0
            with self._lock:
                if self._taken + size <= share * _KEPT_BYTES:
                    self._taken += size
                    self._arrays[key] = found
        return found
