"""Memory that is used again from block to block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_MOST_BYTES = 2**24  # a source of one's own may have larger blocks: they get memory of their own


class Scratch:
    """An array that is used again: fresh memory can cost as much as the arithmetic on it.

    What `shaped` returned is overwritten by its next call.
    """

    def __init__(self, dtype: Any = np.float64) -> None:
        self._buffer = np.empty(0, dtype)

    def shaped(self, shape: tuple[int, ...]) -> FloatArray:
        """Return an array of any values."""
        size = math.prod(shape)
        if 8 * size > _MOST_BYTES:
            return np.empty(shape, self._buffer.dtype)
        if size > self._buffer.size:
            self._buffer = np.empty(size, self._buffer.dtype)
        return self._buffer[:size].reshape(shape)


class Repeated:
    """A public vector, repeated: arithmetic with one vector for all rows takes half as long again.

    What `rows` returned is overwritten by its next call.
    """

    def __init__(self) -> None:
        self._rows: NDArray[Any] = np.empty((0, 0))

    def rows(self, vector: NDArray[Any], n: int) -> Any:
        """Return what goes with n rows: the vector for each, or itself for blocks that are huge."""
        if 8 * n * len(vector) > _MOST_BYTES or not n:
            return vector
        if len(self._rows) < n or not np.array_equal(self._rows[0], vector):
            self._rows = np.tile(vector, (n, 1))
        return self._rows[:n]
