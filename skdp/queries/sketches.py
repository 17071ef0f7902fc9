"""Linear sketches of a private matrix, in exact integers: A F, S'A, S'A F, or A itself.

Notation: A is m x n and has a public shape; F (n x t) and S (m x v) are integer matrices, each
divided by a public scale. A contribution becomes an integer multiple z of a unit before it is
multiplied: everything after that is exact modulo 2**64, in any order, so that a sketch of updates
is the sketch of their sum bit by bit.

Neighbours and the change of z (in units), by privacy unit:

| unit | fit(A) | updates |
|---|---|---|
| frobenius, rank_one | norm D/u + 5/4 sqrt(m n), by truncation | sum of abs values D/u |
| row | one row of norm C/u (`IntegerRows`; replace: 2 C/u) | the same |
| entry | one entry, alpha/u (truncation is monotone) | sum of abs values alpha/u |

(5/4: entries whose truncated values differ by k units differ by k - 1 units at least before, so
truncation adds at most 1 to each; the float product that is truncated may add 1/4, below 2**52.)
Updates of an entry under "replace": alpha is twice the largest absolute value, not high - low,
because the two neighbours may have their updates at different times.

For one entry, or a sum of absolute values, the bound is one on the l1 norm too: A, and the sum of
its rows, may have Laplace noise.

An update d counts as trunc(d/u): truncated toward zero, it is no larger than d, so what one unit
adds up to D in absolute values stays below D/u (rounding to nearest would not: 0.6 u counts as u).
The change of S' z F, for z of norm 1, is then at most the product over both sides of

* a single entry, or a sum of entries: the largest row norm of the matrix (exact, any sketch);
* a single row: the largest row norm of S, and the spectral norm of F;
* anything else: the spectral norms;

or, for secret Gaussian matrices, random with mean 1 (`SketchLaw`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import EXACT, FloatArray, IntArray
from skdp.data.blocks import DenseRows, entrywise, without_duplicates
from skdp.data.integers import FINEST_UNIT, row_map
from skdp.data.products import SketchMap, signed
from skdp.data.stored_rows import BlockFiles
from skdp.privacy.accounting.losses import SketchLaw
from skdp.privacy.gate.bounds import Bound, PrivateQuery
from skdp.queries.entries import MatrixUnit
from skdp.queries.sums import Neighbours

_CORE_REMEDY = (
    "The core sketch truncates entries to integers first, and a change of bounded norm may change "
    "all of them, so its sensitivity is large. Use method='two_sketch', or a larger 'epsilon'."
)
_TRUNCATION = 1.25  # units that truncating an entry of both neighbours may add to their difference


@dataclass(frozen=True)
class SketchUnit(MatrixUnit):
    """What one neighbour differs in, and how a contribution becomes integers.

    Attributes
    ----------
    name : {"frobenius", "rank_one", "row", "entry"}
        The unit.
    adjacency : str
        "add_remove" (frobenius, rank_one, entry), "zero_out" (row) or "replace" (row, entry).
    low, high, sensitivity : float
        Bounds of an entry, and on the change of the matrix (the caller's contract).
    stream : bool
        Data come as updates: one unit's updates sum to at most `change` in absolute value. (Rows
        of the row unit come whole, each once.)
    clip_norm : float
        Bound of a row.
    """

    stream: bool = False
    clip_norm: float = 1.0

    @property
    def change(self) -> float:
        """Largest change of the matrix, in its own norm."""
        neighbours = Neighbours(self.adjacency)
        if self.kind.by_rows:
            return neighbours.array(self.clip_norm)
        if self.bounded and self.stream:
            return neighbours.array(self.largest)
        return self.alpha

    @property
    def single(self) -> bool:
        """Whether the change is one entry, or a sum of entries bounded in absolute value."""
        return self.kind.single or (self.stream and not self.kind.by_rows)

    def bound(self, sketch: SketchMap, *, random: bool) -> Bound:
        """Return the bound of one sketch; with `random`, Gaussian factors are secret and random.

        Then the other factors must have rows of known norm: `refusal` says which have not.
        """
        factor, degrees = 1.0, []
        one_row = self.single or self.kind.by_rows  # else a change may be in many of them
        for side, single in ((sketch.left, one_row), (sketch.right, self.single)):
            if side is None:
                continue
            if random and side.kind == "gaussian":
                degrees.append(side.size)
            else:
                factor *= side.largest_row() if single else side.spectral()
        summed = sketch.left is None or sketch.left.kind == "ones"  # an entry changes one number
        slack = 0.0 if one_row else _TRUNCATION * math.sqrt(math.prod(sketch.shape))
        slack, l2 = slack * sketch.scale * factor, self.change * factor
        l1 = l2 if self.single and sketch.right is None and summed else None
        law = SketchLaw(tuple(degrees)) if degrees else None
        bound = Bound(sketch.name, sketch.out_shape, l2, slack=slack, l1=l1, l1_slack=0.0, law=law)
        return bound if None in (sketch.left, sketch.right) else bound._replace(remedy=_CORE_REMEDY)

    def refusal(self, kind: str) -> str | None:
        """Return why sketches of a kind have no bound in mode "random"; None if they have one.

        Gaussian sides have the chi-square law, and single entries meet rows of known norm.
        """
        if kind == "isometry":
            return "a scaled isometry has no known distribution"
        if kind in ("sparse", "srht") and not self.single:
            what = "one row" if self.kind.by_rows else "a change of bounded norm"
            return f"{what} may lie along the worst direction of a {kind} sketch"
        return None

    def shift(self, unit: float) -> int:
        """Return e: rows are written in units of ``2**e * unit``, which are not too fine."""
        if not self.kind.by_rows:
            return 0
        return max(0, math.ceil(math.log2(self.clip_norm * FINEST_UNIT / unit)))

    def contributions(self, values: FloatArray, unit: float) -> FloatArray:
        """Return entries or updates truncated toward zero to units; floats in bounds at unit 0."""
        if unit:
            values = np.nan_to_num(values, nan=0.0, posinf=1e308, neginf=-1e308)
        values = np.clip(values, self.low, self.high)
        if not unit:
            return values
        with np.errstate(over="ignore"):  # what is beyond the largest float is clipped too
            return np.clip(np.trunc(values * (1 / unit)), -EXACT, EXACT)


class Whole(PrivateQuery):
    """A private matrix, or a block of its rows that starts at row `first`.

    Parameters
    ----------
    A : array, memory map, CSR matrix or BlockFiles
        The rows; dense ones and files are read in blocks, in their order.
    unit : SketchUnit
        Privacy unit.
    first : int
        Place of the first row.
    """

    def __init__(self, A: Any, unit: SketchUnit, first: int = 0) -> None:
        self._A, self._unit, self._first = A, unit, first

    def answer(self, sketch: SketchMap) -> Callable[[float], NDArray[Any]]:
        """Return the closure that computes one sketch."""

        def answer(step: float) -> NDArray[Any]:
            unit = step * sketch.scale
            e = self._unit.shift(unit) if step else 0
            small = self._unit.kind.by_rows  # integers are known to have 26 bits at most
            add = partial(sketch.add_matrix, small=small) if step else sketch.add_floats
            total: NDArray[Any] = np.zeros(sketch.out_shape, np.int64 if step else np.float64)
            for first, A in self._blocks():
                add(total, self._contributions(A, unit * 2.0**e), first)
            return signed(total.view(np.uint64) << np.uint64(e)) if e else total

        return answer

    def _contributions(self, A: Any, unit: float) -> Any:
        if self._unit.kind.by_rows:
            return row_map(self._unit.clip_norm, unit)(A)
        return entrywise(partial(self._unit.contributions, unit=unit), A)

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        """Yield blocks of rows with the place of their first row."""
        first = self._first
        for A in _in_order(self._A):
            yield first, A
            first += A.shape[0]


def _in_order(A: Any) -> Iterator[Any]:
    """Yield blocks of rows as float64, duplicates summed cell by cell."""
    if isinstance(A, BlockFiles):
        for file in A.files():
            yield from _in_order(file.whole())
    elif sp.issparse(A):
        yield without_duplicates(A)
    else:
        yield from DenseRows(np.asarray(A)).blocks()


class Updates(PrivateQuery):
    """A batch of updates ``A[rows, columns] += deltas``, in any order, with repeats."""

    def __init__(
        self, rows: IntArray, columns: IntArray, deltas: FloatArray, unit: SketchUnit
    ) -> None:
        self._rows, self._columns, self._deltas, self._unit = rows, columns, deltas, unit

    def answer(self, sketch: SketchMap) -> Callable[[float], NDArray[Any]]:
        """Return the closure that computes one sketch."""

        def answer(step: float) -> NDArray[Any]:
            deltas = np.asarray(self._deltas, dtype=np.float64)
            z = self._unit.contributions(deltas, step * sketch.scale)
            if step == 0.0:
                D = sp.csr_array((z, (self._rows, self._columns)), shape=sketch.shape)
                return sketch.add_floats(np.zeros(sketch.out_shape), D)
            return sketch.of_updates(self._rows, self._columns, z.astype(np.int64))

        return answer
