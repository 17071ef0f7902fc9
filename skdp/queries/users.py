"""Queries whose privacy unit is one user: all rows that carry the same label.

A user's contribution is computed by a public function of that user's rows alone and then scaled to
a public norm, so its size bounds the change whatever the rows are. Neighbours: `add_remove` (a
user comes or goes; the number of users is private) or `replace` (another user with any rows).

A bad user (rows that are not finite, degenerate, or of any scale) gives a zero contribution.
Users with equally many rows are handled together, in arrays of shape (users, rows, features); all
products are made user by user, so that their bits do not depend on who else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.data.remote import RowNumbers, narrowed
from skdp.data.threads import one_blas_thread, quietly
from skdp.data.users import AnyUsers, Batch, OneRowEach, UserRows
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.columns import ColumnQuery
from skdp.queries.sums import Neighbours, NumberQuery, SumQuery, summed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
_LOOSE = 1 + 1e-9  # float norms of clipped contributions are right to far better than this


Local = Callable[[Batch], FloatArray]


class Part(NamedTuple):
    """One part of a contribution: its public shape, the norm that it is clipped to, its cone.

    `positive` says that the part is a positive semidefinite matrix or a nonnegative vector by
    construction, so that two of them have a nonnegative inner product.
    """

    shape: tuple[int, ...]
    level: float
    positive: bool = False

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)

    def change(self, neighbours: Neighbours) -> float:
        """Return what neighbours can change in the sum of this part."""
        if self.positive:
            return neighbours.positive(self.level, self.size)
        return neighbours.array(self.level)


def _finite(values: FloatArray) -> FloatArray:
    """Set the contribution of a user to zero unless all of it is finite."""
    good = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return np.where(good.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


def clipped(values: FloatArray, level: float) -> FloatArray:
    """Scale each user's flat contribution to norm at most `level`; bad ones become zero."""
    values = _finite(values)
    largest = np.abs(values).max(axis=1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    shape = values / safe[:, None]
    norms = np.sqrt((shape * shape).sum(axis=1))  # of entries at most 1: nothing overflows
    with np.errstate(over="ignore", divide="ignore"):
        factors = np.where(largest > 0, np.minimum(level / np.maximum(norms, 1e-300), safe), 0.0)
    return np.asarray(shape * factors[:, None])


def _signs(p: int) -> FloatArray:
    """Signs of signed factors: the first half counts plus, the second minus."""
    return np.where(np.arange(p) < p // 2, 1.0, -1.0)


def _squares(F: FloatArray, signed: bool) -> FloatArray:
    """||F'JF||_F^2 of each user, through the smaller Gram matrix."""
    n, p, d = F.shape
    if p > d:  # memory for one user grows with its rows, not with their square
        left = F.swapaxes(1, 2)
        G = np.matmul(left * _signs(p) if signed else left, F)
    else:
        G = np.matmul(F, F.swapaxes(1, 2))
    squares = (G * G).reshape(n, G.shape[1] * G.shape[2])
    if signed and p <= d:
        squares = squares * np.outer(_signs(p), _signs(p)).ravel()
    return np.asarray(np.maximum(squares.sum(axis=1), 0.0))


def unit_factors(F: FloatArray, step: float, signed: bool = False) -> FloatArray:
    """Return integer factors Z with ||Z'JZ||_F <= 1/step for each user; 0 where that fails.

    Z is F in units of sqrt(step), scaled so that F'JF has norm 1 (or less, if it nearly cancels);
    at step 0 it is these floats.
    Gram entries are exact, and their squares are compared with less than the bound by more than
    the rounding of their sum: the check is exact.
    """
    if step == 0.0:
        lengths = np.sqrt(np.sqrt(_squares(F, signed)))
        return np.asarray(_finite(F) / np.where(lengths > 0, lengths, np.inf)[:, None, None])
    F = _finite(F)
    n, p, d = F.shape
    largest = np.abs(F).max(axis=(1, 2), initial=0.0)
    F = F / np.where(largest > 0, largest, 1.0)[:, None, None]
    sizes = np.sqrt(_squares(F, signed))
    if signed:  # what nearly cancels is left short: its integers would be long
        sizes = np.maximum(sizes, 0.02 * (F * F).reshape(n, p * d).sum(axis=1))
    bound = 1.0 / step
    radius = math.sqrt(bound)
    aim = max(radius - 1.5 - math.sqrt(p) * d / (24 * radius), 0.9 * radius)
    factors = np.where(sizes > 0, aim / np.sqrt(np.where(sizes > 0, sizes, 1.0)), 0.0)
    Z = np.rint(F * factors[:, None, None])
    terms = min(p, d) ** 2
    cancels = signed and p <= d  # then squares are added with both signs
    mass = (Z * Z).reshape(n, p * d).sum(axis=1) ** 2 if cancels else 0.0
    rounding = 4e-16 * (terms + 4)

    def too_long() -> NDArray[np.intp]:
        return np.flatnonzero(_squares(Z, signed) + rounding * (mass + bound**2) > bound**2)

    for shrink in (0.99, 0.9, 0.0):
        over = too_long()
        if not over.size:
            break
        Z[over] = np.rint(F[over] * (shrink * factors[over])[:, None, None])
    return Z


class UserQuery(SumQuery):
    """Sums over users of contributions that each user bounds alone.

    Every method takes a `name` for the ledger and `local`, a public function from a `Batch` to one
    contribution for each user in it. It must treat users one by one.

    Parameters
    ----------
    users : UserRows or DaskUsers
        The private rows, by user.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the users; it never changes a result.
    """

    units, count_name = "users", "users"

    def __init__(self, users: AnyUsers, *, adjacency: str, n_jobs: int | None = None) -> None:
        super().__init__(users, adjacency=adjacency, n_jobs=n_jobs)
        self.n_features = users.n_features
        self.n_outputs = users.n_outputs

    def _sum(
        self, term: Callable[[Batch], Any], shape: tuple[int, ...], step: float
    ) -> NDArray[Any]:
        with one_blas_thread():
            return super()._sum(quietly(term), shape, step)

    def grams(self, name: str, local: Local, width: int, signed: bool = False) -> Bounded:
        """Return the sum of F'JF / ||F'JF||_F; `local` gives F, of shape (users, p, width).

        J is the identity or, if `signed`, minus the identity on the second half of the p factors.
        One user: norm 1. Replace: sqrt(2) without signs (positive semidefinite), 2 with signs. In
        integers z the bound on the user's Gram matrix is checked after rounding: no slack.
        """

        def answer(step: float) -> NDArray[Any]:
            def term(batch: Batch) -> FloatArray:
                F = unit_factors(local(batch), step, signed)
                left = F * _signs(F.shape[1])[:, None] if signed else F
                return left.reshape(-1, width).T @ F.reshape(-1, width)

            return self._sum(term, (width, width), step)

        l2 = self.neighbours.array() if signed else self.neighbours.positive(1.0, width)
        return self._square(name, width, l2, answer)

    def sums(self, name: str, local: Local, parts: tuple[tuple[Any, ...], ...]) -> Bounded:
        """Return the sum of contributions made of `parts` (see `Part`), each clipped to its level.

        `local` gives an array of shape (users, total size). One user: sqrt(sum level^2); replace:
        each part by 2 or, where positive, sqrt(2). Rounding costs sqrt(size)/2 for each user that
        changed.
        """
        pieces = [Part(*part) for part in parts]
        ends = np.cumsum([0, *(piece.size for piece in pieces)])
        size = int(ends[-1])

        def contribution(batch: Batch) -> FloatArray:
            values = local(batch)
            bounded = [
                clipped(values[:, a:b], piece.level)
                for piece, a, b in zip(pieces, ends[:-1], ends[1:], strict=True)
            ]
            return np.concatenate(bounded, axis=1)

        def answer(step: float) -> NDArray[Any]:
            def term(batch: Batch) -> NDArray[Any]:
                return summed(contribution(batch), step)

            return self._sum(term, (size,), step)

        change = math.hypot(*(piece.change(self.neighbours) for piece in pieces))
        return self._array(name, (size,), change, answer, widen=_LOOSE)

    def numbers(self, name: str, local: Local) -> NumberQuery:
        """Return the query of one private number for each user; `name` begins its releases."""
        numbers = RowNumbers(self._source, quietly(local))
        return NumberQuery(numbers, name, adjacency=self.adjacency)

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of one row of each user: a user is one row of it."""
        wrap = partial(OneRowEach, n_features=self.n_features)
        rows = narrowed(self._source, wrap, self.n_features)
        return self._beside(ColumnQuery, rows)

    def scores(self, name: str, local: Local, n: int) -> Bounded:
        """Return n scores for the exponential mechanism; `local` gives one score in [0, 1] each.

        One user adds numbers in [0, 1]: the changes lie in an interval of length 1; replace: in
        [-1, 1], length 2.
        """

        def term(batch: Batch) -> FloatArray:
            values = np.nan_to_num(local(batch), nan=0.0)
            return np.asarray(np.clip(values, 0.0, 1.0))

        def answer(step: float) -> NDArray[Any]:
            top, unit = (
                (math.floor(1 / step), 1.0) if step else (1, 0.0)
            )  # the top is a whole number
            return self._sum(lambda batch: summed(term(batch) * top, unit), (n,), step)

        length = self.neighbours.units
        return Bounded(Bound(name, (n,), math.sqrt(n) * length, linf=length), answer)

    def kept_local(self, local: Local) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield (numbers of users, result of `local`): NOT a release, for what stays with users.

        Their private heads are made here. Nothing that becomes public may depend on it.
        """
        run = quietly(local)
        if not isinstance(self._source, UserRows):
            raise TypeError("heads stay where the rows of their users are")
        with one_blas_thread():
            for users, batch in self._source.labelled_blocks():
                yield users, run(batch)
