"""Queries whose privacy unit is a person: all rows of one group, however many.

Notation as in `skdp.queries.person_maps`: m rows of a person count sqrt(b/m) each, their squared
lengths sum to at most b C^2, and their second moments, which are PSD, to one of Frobenius norm at
most b C^2. Neighbours: all rows of one person come or go (`add_remove`), or give way to
any rows of another (`replace`, the number of persons is public; how many rows each has never is).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import block_gram, dense
from skdp.data.blocks import Block
from skdp.data.exact import ExactProduct, PublicMatrix
from skdp.data.integer_rows import FINEST_UNIT, as_int64, row_map
from skdp.data.persons import Persons, about, changed
from skdp.data.remote import Columns, RowColumns
from skdp.data.views import on_columns
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.person_maps import EQUAL, FINE, PersonMap, PersonWeight, root_mean_squares
from skdp.queries.person_tangent import PersonTangentQuery
from skdp.queries.sums import SumQuery, summed

FloatArray = NDArray[np.float64]
_LOOSE = 1 + 1e-9  # float errors of one person's numbers


def _numbers_of(batch: Persons) -> tuple[FloatArray, FloatArray]:
    return np.full(batch.shape[0], float(batch.each)), root_mean_squares(batch)


def _column(columns: Columns, name: str) -> NDArray[Any]:
    return columns[name]


class PersonNumbers(SumQuery):
    """Private numbers of persons: how many there are, what they count for, how long they are.

    Parameters
    ----------
    persons : PersonRows, or a source of `Persons` anywhere
        The private rows, by person.
    clip_norm : float
        Persons whose root mean square length is larger are scaled down to it.
    weight : PersonWeight
        What a person counts for.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    units = "groups"

    def __init__(
        self,
        persons: Any,
        *,
        clip_norm: float,
        weight: PersonWeight = EQUAL,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(persons, adjacency=adjacency, n_jobs=n_jobs)
        self.clip_norm, self.weight = float(clip_norm), weight
        self.n_features: int = persons.n_features
        self._numbers = RowColumns(persons, _numbers_of, "rows", "lengths", n_jobs=n_jobs)
        self._lengths = self._numbers.numbers(partial(_column, name="lengths"))

    # -- narrowed queries (public arguments) -----------------------------------------------

    def weighted(self, most: float) -> Self:
        """Return the same persons, who count by their rows up to a public number of them."""
        other = copy.copy(self)
        other.weight = PersonWeight(most)
        return other

    # -- numbers of persons ------------------------------------------------------------------

    def count(self) -> Bounded:
        """Return the total weight: each person adds its weight, in [0, 1]."""
        if self.weight.most is None:
            return super().count()

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._sum(self._weight_of, (), step)
            return self._numbers.sum(partial(_weights_in_steps, weight=self.weight, step=step))

        return self._number(self.count_name, 0.0, 1.0, answer)

    def _weight_of(self, batch: Persons) -> FloatArray:
        return np.asarray(batch.shape[0] * self.weight(batch.each))

    def rows_below(self, threshold: float) -> Bounded:
        """Return how many persons have at most so many rows, minus half of all."""
        numbers = self._numbers.numbers(partial(_column, name="rows"))
        return self._below(numbers, threshold, "rows_median", kept_only=True)

    def kept_below(self, threshold: float) -> Bounded:
        """Return how many lengths are at most the threshold, minus half of those not 0."""
        return self._below(self._lengths, threshold, "norm_median", kept_only=True)

    def norms_above(self, threshold: float) -> Bounded:
        """Return how many persons are longer than a threshold."""
        return self._above(self._lengths, threshold, "norm_rank")


class PersonQuery(PersonNumbers):
    """Statistics of persons, each with its bound; the methods are those of `RowQuery`."""

    # -- narrowed queries (public arguments) -----------------------------------------------

    def clipped(self, clip_norm: float) -> PersonQuery:
        """Return the same persons under a public bound of their lengths."""
        other = copy.copy(self)
        other.clip_norm = float(clip_norm)
        return other

    def kept(self, tangents: bool = True) -> PersonQuery:
        """Return the same persons: each release makes a pass of its own."""
        return self

    def centered(self, center: FloatArray) -> PersonQuery:
        """Return the persons with their rows about a public centre; clipping comes after it."""
        rows = changed(self._source, partial(about, center=center), self.n_features)
        return self._beside(PersonQuery, rows, clip_norm=self.clip_norm, weight=self.weight)

    def columns(self, kept: NDArray[np.intp]) -> PersonQuery:
        """Return the persons on a public selection of columns; bad rows stay bad."""
        rows = changed(self._source, partial(on_columns, kept=kept), len(kept))
        return self._beside(PersonQuery, rows, clip_norm=self.clip_norm, weight=self.weight)

    def tangent(
        self, V: FloatArray, scale: float, weights: FloatArray | None = None
    ) -> PersonTangentQuery:
        """Return the query that splits X'X V at the public subspace V."""
        return self._beside(
            PersonTangentQuery, self._source, V, scale, weights,
            clip_norm=self.clip_norm, weight=self.weight,
        )  # fmt: skip

    # -- sums --------------------------------------------------------------------------------

    def square_sum(self) -> Bounded:
        """Return the sum of b min(length, C)^2, a number in [0, C^2] for each person."""
        C = self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                term = PersonMap(C, 0.0, self.weight)
                return self._sum(lambda batch: np.square(_stored(term(batch))).sum(), (), step)
            return self._numbers.sum(
                partial(_squares_in_steps, weight=self.weight, clip_norm=C, step=step)
            )

        return self._number("trace", 0.0, C * C, answer)

    def sums(self) -> Bounded:
        """Return the sums of weighted means of persons. Each has norm b C at most; replace 2 C."""
        return self._sums(self.neighbours.array(self.clip_norm), np.asarray)

    def positive_sums(self) -> Bounded:
        """Return those of positive parts: replace ||x - y|| <= sqrt(2) C, as x.y >= 0."""
        change = self.neighbours.positive(self.clip_norm, self.n_features)
        return self._sums(change, partial(np.maximum, 0.0))

    def _sums(self, change: float, of_rows: Callable[[FloatArray], FloatArray]) -> Bounded:
        """Bound sums of means: by Cauchy-Schwarz |sum x| / m <= sqrt(sum |x|^2 / m) <= C."""
        d, weight = self.n_features, self.weight
        length, fine = self.clip_norm, self.clip_norm * FINE

        def answer(step: float) -> NDArray[Any]:
            rows = PersonMap(length, fine if step else 0.0, EQUAL)

            def term(batch: Persons) -> NDArray[Any]:
                means = batch.sums(of_rows(dense(rows(batch)))) / math.sqrt(batch.each)
                return summed(means * ((fine if step else 1.0) * weight(batch.each)), step)

            return self._sum(term, (d,), step)

        return self._array("sums", (d,), change, answer, widen=_LOOSE)

    # -- second moments: PSD, symmetric, no rounding beyond the rows ---------------------------

    def gram(self) -> Bounded:
        """Return the sum of b/m X'X. One person: PSD of norm <= C^2; replace: sqrt(2) C^2."""
        d, C = self.n_features, self.clip_norm

        def answer(step: float) -> NDArray[Any]:
            rows = PersonMap(C, math.sqrt(step), self.weight)
            return self._sum(lambda batch: block_gram(rows(batch)), (d, d), step)

        return self._square("gram", d, self.neighbours.positive(C * C, d), answer)

    def moment(self, corner: float) -> Bounded:
        """Return the moment of rows (x, c): X'X, c times the sums and c^2 times the weights.

        A person is scaled down as a whole, where the mean square of (x, c) exceeds C^2 + c^2: that
        bounds its norm; replace: a PSD pair, sqrt(2) times it.
        """
        d, c = self.n_features, float(corner)
        C = math.hypot(self.clip_norm, c)

        def answer(step: float) -> NDArray[Any]:
            rows = PersonMap(C, math.sqrt(step), self.weight)
            return self._sum(
                lambda batch: block_gram(rows(with_corner(batch, c))), (d + 1, d + 1), step
            )

        return self._square("moment", d + 1, self.neighbours.positive(C * C), answer)

    def projected_gram(self, V: FloatArray) -> Bounded:
        """Return V'X'XV of the weighted rows, for a public V of largest singular value s1.

        One person: the squared lengths of its V'x sum to C^2 s1^2 at most, checked after rounding.
        """
        k, C = V.shape[1], self.clip_norm
        grid = PublicMatrix(V)
        radius = C * grid.norms[0]

        def answer(step: float) -> NDArray[Any]:
            unit = C * FINE if step else 0.0
            rows = PersonMap(C, unit, self.weight)
            checked = row_map(radius, math.sqrt(step), reuse=False)

            def term(batch: Persons) -> FloatArray:
                if step == 0.0:
                    return block_gram(dense(rows(batch) @ V))
                projected = grid.multiply(rows(batch)) * unit
                return block_gram(checked(_flat(projected, batch)).reshape(projected.shape))

            return self._sum(term, (k, k), step)

        l2 = self.neighbours.positive(radius * radius, k)
        return self._square("projected_gram", k, l2, answer)

    def gram_product(self, V: FloatArray) -> Bounded:
        """Return X'(X V) of the weighted rows, for a public V.

        A person's second moment is PSD of trace at most C^2: a mixture of 0 and C^2 xx' with
        ||x|| = 1. The change of the sum is convex in the moments that come and go, so that no
        persons move it by more than single rows do: C^2 s1, and C^2 sqrt(s1^2 + s2^2) under replace
        (`RowQuery.gram_product`), with s1 >= s2 the largest singular values of V. The sum is exact;
        rounding the d x k result costs sqrt(d k).
        """
        d, (_, k), C = self.n_features, V.shape, self.clip_norm
        grid = ExactProduct(V)

        def answer(step: float) -> NDArray[Any]:
            rows = PersonMap(C, math.sqrt(step / grid.scale), self.weight)

            def term(batch: Persons) -> FloatArray:
                Z = rows(batch)
                if step == 0.0:
                    return dense(Z.T @ dense(Z @ V))
                return np.vstack([dense(Z.T @ part) for part in grid.in_limbs(Z)])

            if step == 0.0:
                return self._sum(term, (d, k), step)
            return grid.whole(*self._sum(term, (3 * d, k), step).reshape(3, d, k))

        norms = grid.norms
        bound = Bound(
            "gram_product",
            (d, k),
            C * C * (math.hypot(*norms) if self.neighbours.replace else norms[0]),
            min_step=grid.scale * (C * FINEST_UNIT) ** 2,
        )
        return Bounded(bound, answer)


def with_corner(batch: Persons, corner: float) -> Persons:
    """Return persons whose rows end in a public number."""
    rows = dense(batch.rows)
    return batch._replace(rows=np.column_stack([rows, np.full(len(rows), corner)]))


def _flat(rows: FloatArray, batch: Persons) -> FloatArray:
    return rows.reshape(batch.shape[0], -1)


def _stored(rows: Block) -> FloatArray:
    return np.asarray(getattr(rows, "data", rows) if not isinstance(rows, np.ndarray) else rows)


def _weights(columns: Columns, weight: PersonWeight) -> FloatArray:
    sizes, place = np.unique(columns["rows"], return_inverse=True)
    return np.array([weight(int(m)) for m in sizes])[place]


def _weights_in_steps(columns: Columns, weight: PersonWeight, step: float) -> NDArray[np.int64]:
    return np.asarray(as_int64(_weights(columns, weight) / step).sum())


def _squares_in_steps(
    columns: Columns, weight: PersonWeight, clip_norm: float, step: float
) -> NDArray[np.int64]:
    clipped = np.minimum(columns["lengths"], clip_norm)
    return np.asarray(as_int64(_weights(columns, weight) * clipped * clipped / step).sum())
