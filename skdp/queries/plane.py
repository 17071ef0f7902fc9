"""Histograms and moments of rows projected on a public plane; the unit is a row with its class.

Notation: s is the pair of coordinates of a row, w = (s - center)/half_width its position in a
public frame and K the number of public classes. A row that is not finite, or of no class, adds
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import COUNT_WEIGHT, LARGEST, FloatArray
from skdp.data.blocks import Block, finite_rows, row_source
from skdp.data.numbers import restricted
from skdp.data.products import row_products
from skdp.data.views import Zipped, rows_of
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.columns import ColumnQuery
from skdp.queries.sums import SumQuery

SQUARE = math.sqrt(2.0)  # weight of squares of w in a joint release; COUNT_WEIGHT is that of counts


class Frame(NamedTuple):
    """A public window of the plane: |s - center| <= half_width, axis by axis."""

    center: FloatArray
    half_width: FloatArray

    def __call__(self, s: FloatArray) -> FloatArray:
        """Return the positions w of coordinates in this frame, clipped to a very large range."""
        half = np.maximum(self.half_width, np.finfo(np.float64).tiny)  # no 0/0
        return np.asarray(np.clip((s - self.center) / half, -LARGEST, LARGEST))


def plane_rows(blocks: Iterable[Block], axes: FloatArray, center: FloatArray) -> Iterator[Block]:
    """Yield coordinates in a public plane, each of its own row alone; columns stay next to them."""
    for block in blocks:
        rows = rows_of(block)
        if sp.issparse(rows):  # scipy adds up the stored entries of a row in their order
            found = np.asarray(rows @ axes.T - axes @ center)
        else:
            found = row_products(rows - center, axes.T)
        found = np.where(finite_rows(rows)[:, None], found, np.nan)
        yield block._replace(rows=found) if isinstance(block, Zipped) else found


class PlaneQuery(SumQuery):
    """Sums over private rows of functions of their projection on a public plane.

    Parameters
    ----------
    rows : array, CSR matrix, memory map, RowSource or RemoteRows
        The private rows; with classes, blocks have targets: the number of each row's class,
        negative for none.
    axes : array of shape (2, n_features)
        Public: what a row is multiplied by.
    center : array of shape (n_features,)
        Public: what is subtracted first.
    n_classes : int
        Number of public classes; 0 takes all rows as one.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(
        self, rows: Any, axes: FloatArray, center: FloatArray, n_classes: int = 0, *,
        adjacency: str, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        plane = restricted(row_source(rows), partial(plane_rows, axes=axes, center=center), 2)
        super().__init__(plane, adjacency=adjacency, n_jobs=n_jobs)
        self._groups = max(1, n_classes)

    def coordinates(self) -> ColumnQuery:
        """Return the two coordinates as columns, of rows of any class."""
        return self._derived(ColumnQuery, restricted(self._source, partial(map, rows_of), 2))

    def class_counts(self) -> Bounded:
        """Return the number of rows of each class: a row adds 1 to one of them."""
        return self._tally("class_counts", self._groups, lambda block: _valid_rows(block)[1])

    def cells(self, frame: Frame, side: int) -> Bounded:
        """Return how many rows of each class lie in each cell of a frame, and how many outside.

        A frame has side x side equal cells; a row adds 1 to one cell, or to the last number.
        """
        inside = self._groups * side * side
        place = partial(_cell, frame=frame, side=side, outside=inside)
        return self._tally("score_histogram", inside + 1, place)

    def shapes(self, frame: Frame) -> Bounded:
        """Return, for each class, six sums: of a, of w and of b ww', w clipped to the unit disc.

        a is 1/2, b is sqrt(2), and the entry off the diagonal counts sqrt(2) times. One row at
        radius r adds 1/4 + r^2 + 2 r^4 <= 13/4. Replace: by one of another class, twice that. In
        one class, with c the cosine between places at radii r and t: r^2 + t^2 - 2 r t c +
        2 (r^4 + t^4 - 2 r^2 t^2 c^2), largest on the circle, where 6 - 2 c - 4 c^2 <= 25/4.
        """
        shape = (6 * self._groups,)

        def answer(step: float) -> NDArray[Any]:
            return self._sum(partial(_shapes, frame=frame, size=shape[0], step=step), shape, step)

        square = 13 / 4
        if self.neighbours.replace:
            square = 2 * square if self._groups > 1 else 25 / 4
        slack = self.neighbours.units * math.sqrt(6) / 2
        l2 = math.sqrt(square) * (1 + 1e-12)
        return Bounded(Bound("class_score_moments", shape, l2, slack=slack), answer)

    def _tally(self, name: str, size: int, place: Callable[[Block], NDArray[np.intp]]) -> Bounded:
        """Return the numbers of rows at each of `size` places; a row adds 1 to one, or nothing."""
        # At one place, a valid row replaced by a valid one changes nothing; by an invalid one, 1.
        units = 1.0 if size == 1 else self.neighbours.units

        def answer(step: float) -> NDArray[Any]:
            counts = self._sum(partial(_counts, place=place, size=size), (size,), 1.0)
            if step == 0.0:
                return counts.astype(np.float64)
            one = round(1 / step)
            return np.asarray(np.minimum(counts, LARGEST // max(1, one)) * one)

        l2, slack = math.sqrt(units), math.sqrt(units) / 2
        return Bounded(Bound(name, (size,), l2, slack=slack, l1=units, l1_slack=units / 2), answer)


def _valid_rows(block: Block) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return the coordinates and the class numbers of the rows that are finite and have a class."""
    labelled = isinstance(block, Zipped)
    s = rows_of(block)
    numbers = block.targets[:, 0].astype(np.intp) if labelled else np.zeros(len(s), np.intp)
    good = ~np.isnan(s).any(axis=1) & (numbers >= 0)
    return s[good], numbers[good]


def _counts(block: Block, place: Callable[[Block], NDArray[np.intp]], size: int) -> NDArray[Any]:
    return np.bincount(place(block), minlength=size).astype(np.int64)


def _cell(block: Block, frame: Frame, side: int, outside: int) -> NDArray[np.intp]:
    s, group = _valid_rows(block)
    w = frame(s)
    inside = (np.abs(w) <= 1).all(axis=1)
    at = np.clip((w + 1) * (side / 2), 0, side - 1).astype(np.intp)  # rounded down
    return np.where(inside, (group * side + at[:, 0]) * side + at[:, 1], outside)


def _shapes(block: Block, frame: Frame, size: int, step: float) -> NDArray[Any]:
    s, group = _valid_rows(block)
    w = frame(s)
    x, y = (w / np.maximum(1.0, np.hypot(w[:, 0], w[:, 1]))[:, None]).T
    numbers = [np.full(len(w), COUNT_WEIGHT), x, y, SQUARE * x * x, SQUARE * y * y, 2 * x * y]
    parts = np.column_stack(numbers)
    if step != 0.0:  # each row's integers by themselves
        parts = np.rint(parts / step).astype(np.int64)
    total = np.zeros((size // len(numbers), len(numbers)), parts.dtype)
    np.add.at(total, group, parts)
    return total.ravel()
