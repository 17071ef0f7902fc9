"""Rows that live elsewhere: narrowed views of them, and numbers of single rows that stay there.

What travels is a function of public values (to where the rows are) and an integer sum (back).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, Block, RemoteRows, RowSource, checked_total, plain_block

__all__ = ["RemoteView", "RowNumbers", "narrowed"]

FloatArray = NDArray[np.float64]
Wrap = Callable[[RowSource], RowSource]


class Kept(Protocol):
    """Arrays, one for each part, kept where the parts are."""

    def sum(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum of ``work(array)``."""
        ...


@dataclass(frozen=True)
class _Composed:
    """First `inner`, then `outer`; holds no rows, so that it can travel."""

    outer: Callable[[Any], Any]
    inner: Callable[[Any], Any]

    def __call__(self, part: Any) -> Any:
        return self.outer(self.inner(part))


@dataclass(frozen=True)
class _KeptHere:
    values: NDArray[Any]

    def sum(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        return work(self.values)


@dataclass(frozen=True)
class _NotKept:
    """Computed again for each sum, by sources that cannot keep anything."""

    source: RemoteRows
    make: Callable[[RowSource], NDArray[Any]]

    def sum(self, work: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
        return self.source.sum_parts(_Composed(work, self.make))


def is_remote(source: AnyRows) -> TypeGuard[RemoteRows]:
    """Whether the rows can only be summed where they are."""
    return hasattr(source, "sum_parts")


def _keep(source: AnyRows, make: Callable[[RowSource], NDArray[Any]]) -> Kept:
    if not is_remote(source):
        return _KeptHere(make(cast(RowSource, source)))
    if hasattr(source, "keep"):
        kept: Kept = source.keep(make)
        return kept
    return _NotKept(source, make)


class RemoteView:
    """Remote rows, each part of which is wrapped where it is (centred, on some columns)."""

    def __init__(self, source: RemoteRows, wrap: Wrap, n_features: int) -> None:
        self._source = source
        self._wrap = wrap
        self.n_features = n_features

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def sum_parts(self, work: Callable[[RowSource], NDArray[Any]]) -> NDArray[Any]:
        """Return the sum over the wrapped parts."""
        return self._source.sum_parts(_Composed(work, self._wrap))

    def keep(self, make: Callable[[RowSource], NDArray[Any]]) -> Kept:
        """Keep arrays of the wrapped parts where they are."""
        return _keep(self._source, _Composed(make, self._wrap))


def narrowed(source: AnyRows, wrap: Wrap, n_features: int) -> AnyRows:
    """Return the rows behind a public wrapper, here or where they are."""
    if is_remote(source):
        return RemoteView(source, wrap, n_features)
    return wrap(cast(RowSource, source))


@dataclass(frozen=True)
class _NumbersOfRows:
    compute: Callable[[Block], FloatArray]

    def __call__(self, part: RowSource) -> FloatArray:
        with np.errstate(all="ignore"):
            found = [self.compute(plain_block(block)) for block in part.blocks()]
        return np.concatenate(found) if found else np.zeros(0)


class RowNumbers:
    """A private number of each row, kept where the rows are for the steps of one search."""

    def __init__(self, source: AnyRows, compute: Callable[[Block], FloatArray]) -> None:
        self._source = source
        self._compute = compute
        self._kept: Kept | None = None

    def sum(
        self, work: Callable[[FloatArray], NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> NDArray[Any]:
        """Return the sum of the int64 ``work(numbers)`` over all parts."""
        if self._kept is None:
            self._kept = _keep(self._source, _NumbersOfRows(self._compute))
        return checked_total(self._kept.sum(work), shape, "int64")
