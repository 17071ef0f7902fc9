"""What the solvers of personal models ask of a batch of users; see `skdp.data.users.Batch`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class UserBatch(Protocol):
    """Users with equally many rows; see `skdp.data.users.Batch`."""

    @property
    def X(self) -> FloatArray:
        """Rows, (n, m, d)."""
        ...

    @property
    def Y(self) -> FloatArray:
        """Targets, (n, m, p)."""
        ...

    @property
    def x_exponent(self) -> NDArray[np.intc]:
        """Power of two of the rows."""
        ...

    @property
    def y_exponent(self) -> NDArray[np.intc]:
        """Power of two of the targets."""
        ...

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]], *, large: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Return what `make` returned for these users under a public key, or call it."""
        ...


class TakenUsers(NamedTuple):
    """Some users of a batch."""

    X: FloatArray
    Y: FloatArray
    x_exponent: NDArray[np.intc]
    y_exponent: NDArray[np.intc]

    @classmethod
    def of(cls, batch: UserBatch, users: NDArray[np.intp]) -> TakenUsers:
        """Take them."""
        exponents = batch.x_exponent[users], batch.y_exponent[users]
        return cls(batch.X[users], batch.Y[users], *exponents)

    def keep(
        self, key: Hashable, make: Callable[[], tuple[NDArray[Any], ...]], *, large: bool = False
    ) -> tuple[NDArray[Any], ...]:
        """Keep nothing."""
        return make()
