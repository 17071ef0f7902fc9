"""The moments that a linear read-out needs, where the unit is a person: all records of one group.

Notation as in `skdp.queries.readout` and `skdp.queries.persons`: a person has m records (x, y) and
the weight b <= 1. A person is weighted down as a whole, by f, where the mean square of its (x, c)
exceeds U^2 = C^2 + c^2; its records u = f (x, c), f v count sqrt(b/m) each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import dense, finite_rows
from skdp.data.blocks import AnyRows
from skdp.data.persons import Persons, changed
from skdp.data.record_scales import RowScale, TargetScale
from skdp.data.remote import RowNumbers, narrowed
from skdp.data.views import on_columns
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.person_columns import PersonColumns
from skdp.queries.person_maps import EQUAL, PersonMap, PersonWeight, root_mean_squares
from skdp.queries.persons import PersonNumbers, PersonQuery
from skdp.queries.readout import largest_change, moment_of
from skdp.queries.sums import NumberQuery

FloatArray = NDArray[np.float64]


def _targets_alone(batches: Iterable[Persons]) -> Iterator[Persons]:
    for batch in batches:
        yield Persons(batch.columns["y"], batch.each, {})


def _lengths(batch: Persons, scale: RowScale | None) -> FloatArray:
    if scale is not None:
        batch = batch._replace(rows=scale(batch.rows))
    return root_mean_squares(batch)


class PersonReadoutQuery(PersonNumbers):
    """Second moments of the records (x, y) of persons; the methods are those of `ReadoutQuery`.

    Parameters
    ----------
    persons : PersonRows with the column `y`, or a source of such `Persons` anywhere
        The private rows and targets, by person.
    clip_norm : float
        Persons whose rows have a larger root mean square length are weighted down.
    scale : TargetScale
        Public bounds of the targets.
    row_scale : RowScale or None
        Public units of the (kept) columns; None takes the rows as they are.
    weight : PersonWeight
        What a person counts for.
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    n_jobs : int or None
        Threads for the passes over the rows; it never changes a result.
    """

    def __init__(
        self,
        persons: Any,
        *,
        clip_norm: float,
        scale: TargetScale,
        row_scale: RowScale | None = None,
        weight: PersonWeight = EQUAL,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            persons, clip_norm=clip_norm, weight=weight, adjacency=adjacency, n_jobs=n_jobs
        )
        self.scale, self.row_scale = scale, row_scale

    # -- narrowed queries (public arguments) -----------------------------------------------

    def rows(self, clip_norm: float) -> PersonQuery:
        """Return the query over the rows alone, clipped, as they came."""
        kind: Any = PersonQuery
        query: PersonQuery = self._beside(
            kind, self._source, clip_norm=clip_norm, weight=self.weight
        )
        return query

    def columns(self) -> PersonColumns:
        """Return the query over the columns of the rows as they came."""
        return self._columns_of(self._source)

    def targets(self) -> PersonColumns:
        """Return the query over the columns of the targets as they came."""
        return self._columns_of(narrowed(self._source, _targets_alone, len(self.scale.size)))

    def _columns_of(self, persons: AnyRows) -> PersonColumns:
        return self._beside(PersonColumns, persons, weight=self.weight)

    def lengths(self) -> NumberQuery:
        """Return the query over root mean square lengths in the units of `row_scale`."""
        numbers = RowNumbers(self._source, partial(_lengths, scale=self.row_scale))
        return NumberQuery(numbers, "norm", adjacency=self.adjacency)

    def scaled(self, row_scale: RowScale) -> PersonReadoutQuery:
        """Return the same records with rows in other units; clipping comes after it."""
        other = copy.copy(self)
        other.row_scale = row_scale
        return other

    def selected(self, kept: NDArray[np.intp]) -> PersonReadoutQuery:
        """Return the same records on a public selection of columns; bad rows stay bad."""
        rows = changed(self._source, partial(on_columns, kept=kept), len(kept))
        units = None if self.row_scale is None else self.row_scale.selected(kept)
        return self._beside(
            PersonReadoutQuery, rows, clip_norm=self.clip_norm, scale=self.scale,
            row_scale=units, weight=self.weight,
        )  # fmt: skip

    def within(self, clip_norm: float, scale: TargetScale) -> PersonReadoutQuery:
        """Return the same records under public bounds."""
        other = copy.copy(self)
        other.clip_norm, other.scale = float(clip_norm), scale
        return other

    # -- the release -------------------------------------------------------------------------

    def readout(self, corner: float, target_norm: float) -> Bounded:
        """Return the moment [X, Y, c]'[X, Y, c] of weighted records, without its block Y'Y.

        One person adds sum uu' and, twice, sum uv', with sum |u|^2 <= U^2 and sum |v|^2 <= t^2: by
        Cauchy-Schwarz the norms of one record. Replace, with G and H the matrices of the products
        of both persons' u and v: <sum uu', sum pp'> = |G|^2 and <sum uv', sum pq'> = <G, H>, so
        that |G| <= U^2 and |H| <= t^2 stand for r and v.q in the bound of one record.
        """
        d, q = self.n_features, len(self.scale.size)
        C, c, t = self.clip_norm, float(corner), float(target_norm)
        size = d + q + (1 if c else 0)

        def answer(step: float) -> NDArray[Any]:
            term = _MomentOfPersons(C, self.scale, self.row_scale, c, t, step, self.weight)
            return self._sum(term, (size, size), step)

        return self._square("readout", size, largest_change(math.hypot(C, c), t, self.neighbours),
                            answer)  # fmt: skip


@dataclass(frozen=True)
class _MomentOfPersons:
    """The term of one batch, from public numbers alone, so that it can travel."""

    clip_norm: float
    scale: TargetScale
    row_scale: RowScale | None
    corner: float
    target_norm: float
    step: float
    weight: PersonWeight

    def __call__(self, batch: Persons) -> FloatArray:
        """Return the moment of rows, targets and corners in units, each norm checked exactly."""
        unit, t = math.sqrt(self.step), self.target_norm
        length = math.hypot(self.clip_norm, self.corner)
        records, good = self._records(batch)
        f = np.minimum(1.0, length / np.maximum(root_mean_squares(records), 1e-300))
        U = dense(PersonMap(length, unit, self.weight)(records))
        bounded = np.isfinite(self.scale.high - self.scale.low).all()
        targets = self._targets(batch, good) * (t * np.repeat(f, batch.each))[:, None]
        to_units = PersonMap(t if bounded else math.inf, unit, self.weight)
        V = dense(to_units(batch._replace(rows=targets)))
        return moment_of(U[:, :-1], V, U[:, -1]) if self.corner else moment_of(U, V, None)

    def _records(self, batch: Persons) -> tuple[Persons, NDArray[np.bool_]]:
        """Return the rows in their units beside the corner; zeros where a record is not finite."""
        good = finite_rows(batch.rows) & np.isfinite(batch.columns["y"]).all(axis=1)
        rows = dense(batch.rows) if self.row_scale is None else self.row_scale(batch.rows)
        if self.corner:
            rows = np.column_stack([rows, np.full(len(rows), self.corner)])
        return batch._replace(rows=np.where(good[:, None], rows, 0.0)), good

    def _targets(self, batch: Persons, good: NDArray[np.bool_]) -> FloatArray:
        y = np.where(good[:, None], batch.columns["y"], 0.0)
        return np.where(good[:, None], self.scale(y), 0.0)
