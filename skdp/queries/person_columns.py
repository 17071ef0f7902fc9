"""Location and spread of columns where the unit is a person: all rows of one group.

Notation as in `skdp.queries.columns`. A person adds the mean of what its rows would add, times its
weight b <= 1: a convex combination with 0, so that no bound of single rows is exceeded. A person
with a value that is not finite adds nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.block_rows import dense
from skdp.data.persons import Persons
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.queries.columns import moments_change, standard_parts
from skdp.queries.octaves import (
    NOWHERE,
    OctaveQuery,
    PlaceQuery,
    counted_octaves,
    counted_places,
    octaves_of,
    places_of,
)
from skdp.queries.person_maps import EQUAL, PersonWeight
from skdp.queries.persons import PersonNumbers
from skdp.queries.sums import summed

FloatArray = NDArray[np.float64]
_FINE = 2.0**30  # parts of a row are whole multiples of its inverse: their sums have no order


class PersonColumns(PersonNumbers):
    """Sums over persons of what the entries of their rows say of each column.

    Parameters
    ----------
    persons : PersonRows, or a source of `Persons` anywhere
        The private rows, by person.
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
        weight: PersonWeight = EQUAL,
        adjacency: str,
        n_jobs: int | None = None,
    ) -> None:
        super().__init__(
            persons, clip_norm=math.inf, weight=weight, adjacency=adjacency, n_jobs=n_jobs
        )

    def octaves(self, center: FloatArray) -> OctaveQuery:
        """Return how persons compare with powers of two about a public centre.

        The number of a person is the mean octave of its rows' |x - center|: of their geometric
        mean. Every person counts once.
        """
        return self._beside(OctaveQuery, self._source, center, of_block=OctavesOfPersons)

    def places(self, center: FloatArray, step: FloatArray) -> PlaceQuery:
        """Return how persons compare with public places; the number of one is its mean step."""
        return self._beside(PlaceQuery, self._source, center, step, of_block=PlacesOfPersons)

    def moments(self, center: FloatArray, size: FloatArray, count_weight: float) -> Bounded:
        """Return means over rows of w, of b (w^2 - 1/2) and of c, as `ColumnQuery.moments`.

        One person: as one row, since norms are convex. Replace: the difference of two convex
        combinations of rows and 0 is largest for single rows, or one row alone.
        """
        d, c, weight = len(center), float(count_weight), self.weight

        def answer(step: float) -> NDArray[Any]:
            def term(batch: Persons) -> NDArray[Any]:
                whole = _whole_persons(batch)
                parts = standard_parts(whole.rows, center, size, c)
                each = weight(batch.each) / batch.each
                if step == 0.0:
                    return np.asarray(parts.sum(axis=0) * each)
                sums = whole.sums(np.rint(parts * _FINE).astype(np.int64))
                return summed(sums * (each / _FINE), step)

            return self._sum(term, (2 * d + 1,), step)

        slack = self.neighbours.units * math.sqrt(2 * d + 1) / 2
        l2 = moments_change(self.neighbours, d, c) * (1 + 1e-8)
        return Bounded(Bound("moments", (2 * d + 1,), l2, slack=slack), answer)


@dataclass(frozen=True)
class OctavesOfPersons:
    """The counts of one batch, from public numbers alone, so that it can travel."""

    center: FloatArray

    def __call__(self, batch: Persons) -> NDArray[np.int64]:
        """Return how many persons of the batch lie in each octave of each column."""
        whole = _whole_persons(batch)
        octaves = octaves_of(whole.rows, self.center)
        somewhere = octaves < NOWHERE
        totals = whole.sums(np.where(somewhere, octaves, 0))
        counts = whole.sums(somewhere.astype(np.int64))
        mean = np.rint(totals / np.maximum(counts, 1)).astype(np.intp)
        return counted_octaves(np.where(counts > 0, mean, NOWHERE))


@dataclass(frozen=True)
class PlacesOfPersons:
    """The counts of one batch, from public numbers alone, so that it can travel."""

    center: FloatArray
    step: FloatArray

    def __call__(self, batch: Persons) -> NDArray[np.int64]:
        """Return how many persons of the batch lie in each step of each column."""
        whole = _whole_persons(batch)
        places = whole.sums(places_of(whole.rows, self.center, self.step))
        return counted_places(np.rint(places / whole.each).astype(np.intp))


def _whole_persons(batch: Persons) -> Persons:
    """Return the persons whose values are all finite."""
    rows = dense(batch.rows)
    good = np.isfinite(rows).all(axis=1).reshape(-1, batch.each).all(axis=1)
    return batch._replace(rows=rows if good.all() else rows[np.repeat(good, batch.each)])
