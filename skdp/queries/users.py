"""Queries whose privacy unit is one user: all rows that carry the same label.

A user's contribution is computed by a public function of that user's rows alone and then scaled to
a public norm, which bounds the change for all rows. Neighbours: `add_remove` (a user is added or
removed; the number of users is private) or `replace` (another user with any rows).

A bad user (rows that are not finite, degenerate, or of any scale) gives a zero contribution.
Users with equally many rows are handled together, in arrays of shape (users, rows, features); all
products are made user by user, so that their bits do not depend on other users in the batch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from skdp._limits import WIDER, FloatArray, IntArray
from skdp.data.blocks import each_part, one_blas_thread, quietly
from skdp.data.integers import clipped, unit_factors
from skdp.data.numbers import restricted
from skdp.data.units import Batch, UserRows, mean_targets, one_each
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.columns import ColumnQuery
from skdp.queries.sums import Neighbours, SumQuery, summed
from skdp.solvers.scaling import ScaledUsers, Scaling

Local = Callable[[Batch], FloatArray]


class Piece(NamedTuple):
    """One piece of a contribution: its public shape and the norm that it is clipped to.

    `positive` says that the piece is a positive semidefinite matrix or a nonnegative vector by
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


def of_good_users(local: Local, shape: tuple[int, ...], step: float) -> Local:
    """Return `local` with NaN as the contribution of bad users; zeros would be valid values.

    A user for whom `local` raises counts as bad, and gets a contribution of this `shape`. At step 0
    (epsilon is infinite) nothing is protected, and errors are raised as usual.
    """

    def contribution(batch: Batch) -> FloatArray:
        values = local(batch) if step == 0.0 else _each_or_none(local, batch, shape)
        if batch.good.all():
            return values
        good = batch.good.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(good, values, np.nan)

    return contribution


def _each_or_none(local: Local, batch: Batch, shape: tuple[int, ...]) -> FloatArray:
    """Return ``local(batch)``; if it raises, run it user by user, with NaN for users that fail."""
    with contextlib.suppress(Exception):  # any error would reveal something about private rows
        return local(batch)
    found: list[FloatArray | None] = []
    for i in range(batch.shape[0]):
        found.append(None)
        with contextlib.suppress(Exception):
            found[i] = local(batch.alone(i))[0]
    like = next((one for one in found if one is not None), np.zeros(shape))
    return np.stack([np.full_like(like, np.nan) if one is None else one for one in found])


class UserQuery(SumQuery):
    """Sums over users of contributions that each user bounds alone.

    Every method takes a `name` for the ledger and `local`, a public function from a `Batch` to one
    contribution for each user in it. It must treat users one by one.

    Parameters
    ----------
    users : UserRows, or a source of their batches anywhere
        The private rows, by user; `n_outputs` says how many targets each has.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the users; it never changes a result.
    """

    units, count_name = "users", "users"

    def __init__(self, users: Any, *, adjacency: str, n_jobs: int | None = None) -> None:
        super().__init__(users, adjacency=adjacency, n_jobs=n_jobs)
        self.n_features = users.n_features
        self.n_outputs = users.n_outputs
        self._scaling: Scaling | None = None

    def scaled(self, center: FloatArray, scale: FloatArray, limit: FloatArray) -> UserQuery:
        """Return the query with rows that are centred, scaled and clipped by public numbers."""
        return self._with(_scaling=Scaling(center, scale, limit))

    def _of_scaled(self, local: Local) -> Local:
        if (scaling := self._scaling) is None:
            return local
        return lambda batch: local(cast(Batch, ScaledUsers.of(batch, scaling)))

    def _sum(
        self, term: Callable[[Batch], Any], shape: tuple[int, ...], step: float
    ) -> NDArray[Any]:
        with one_blas_thread():
            return super()._sum(quietly(term), shape, step)

    def grams(self, name: str, local: Local, width: int) -> Bounded:
        """Return the sum of F'F / ||F'F||_F; `local` gives F, of shape (users, p, width).

        One user adds a positive semidefinite matrix of norm 1: 1, replace sqrt(2). The norm is
        checked after rounding to integers, so rounding adds no slack.
        """

        def answer(step: float) -> NDArray[Any]:
            factors = of_good_users(self._of_scaled(local), (1, width), step)

            def term(batch: Batch) -> FloatArray:
                F = unit_factors(factors(batch), step).reshape(-1, width)
                return F.T @ F

            return self._sum(term, (width, width), step)

        return self._square(name, width, self.neighbours.positive(1.0, width), answer)

    def sums(self, name: str, local: Local, parts: tuple[tuple[Any, ...], ...]) -> Bounded:
        """Return the sum of contributions made of `parts` (see `Piece`), each clipped to its level.

        `local` gives an array of shape (users, total size). One user: sqrt(sum level^2); replace:
        each part by 2 or, where positive, sqrt(2). Rounding costs sqrt(size)/2 for each user that
        changed.
        """
        pieces = [Piece(*part) for part in parts]
        ends = np.cumsum([0, *(piece.size for piece in pieces)])
        size = int(ends[-1])

        def bounded(values: FloatArray) -> FloatArray:
            cut = [
                clipped(values[:, a:b], piece.level)
                for piece, a, b in zip(pieces, ends[:-1], ends[1:], strict=True)
            ]
            return np.concatenate(cut, axis=1)

        def answer(step: float) -> NDArray[Any]:
            values = of_good_users(self._of_scaled(local), (size,), step)

            def term(batch: Batch) -> NDArray[Any]:
                return summed(bounded(values(batch)), step)

            return self._sum(term, (size,), step)

        change = math.hypot(*(piece.change(self.neighbours) for piece in pieces))
        return self._array(name, (size,), change, answer, widen=WIDER)

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of one row for each user."""
        rows = restricted(self._source, one_each, self.n_features)
        return self._derived(ColumnQuery, rows)

    def targets(self) -> ColumnQuery:
        """Return the query over the targets of the same row of each user."""
        rows = restricted(self._source, partial(one_each, targets=True), self.n_outputs)
        return self._derived(ColumnQuery, rows)

    def target_means(self) -> ColumnQuery:
        """Return the query over the means of each user's targets."""
        return self._derived(ColumnQuery, restricted(self._source, mean_targets, self.n_outputs))

    def scores(self, name: str, local: Local, n: int) -> Bounded:
        """Return n scores for the exponential mechanism; `local` gives one score in [0, 1] each.

        One user adds numbers in [0, 1]: the changes lie in an interval of length 1; replace: in
        [-1, 1], length 2.
        """

        def term(batch: Batch, step: float) -> FloatArray:
            values = np.nan_to_num(of_good_users(local, (n,), step)(batch), nan=0.0)
            return np.asarray(np.clip(values, 0.0, 1.0))

        def answer(step: float) -> NDArray[Any]:
            # Scores are integers from 0 to `top`, so the largest must be an integer too.
            top, unit = (math.floor(1 / step), 1.0) if step else (1, 0.0)
            return self._sum(lambda batch: summed(term(batch, step) * top, unit), (n,), step)

        length = self.neighbours.units
        return Bounded(Bound(name, (n,), math.sqrt(n) * length, linf=length), answer)

    def cached_local(self, local: Local, width: int) -> Iterator[tuple[IntArray, FloatArray]]:
        """Return (users, result of `local`) of each batch: NOT a release.

        It fits the users' own private models. Nothing that becomes public may depend on them. A
        user for whom `local` raises gets `width` NaNs.
        """
        run = quietly(partial(_each_or_none, self._of_scaled(local), shape=(width,)))
        if not isinstance(self._source, UserRows):
            raise TypeError("heads stay where the rows of their users are")

        def made(part: Any) -> list[tuple[IntArray, FloatArray]]:
            return [(batch.users, run(batch)) for batch in part.blocks()]

        return (one for _, found in each_part(self._source, made, self.n_jobs) for one in found)
