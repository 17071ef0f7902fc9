"""The split of a second moment at a public subspace, where the unit is a person.

Notation as in `skdp.queries.tangent` and `skdp.queries.persons`: Z holds the weighted rows of one
person (squared lengths of sum b C^2 at most), V is d x p, public, with orthonormal columns, and
A = ZV. The person's term is one array, M = (Z - r A V')'A D with r = 1 - 1/scale and public column
weights D <= 1: it is summed over the person's rows first and then clipped as a whole, so that what
cancels between rows costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import dense, square_norms
from skdp.data.blocks import AnyRows, Block
from skdp.data.exact import exact_map, reduced
from skdp.data.persons import Persons
from skdp.data.remote import RowNumbers
from skdp.privacy.gate.bounds import Bounded
from skdp.queries.person_maps import EQUAL, FINE, PersonMap, PersonWeight
from skdp.queries.sums import summed
from skdp.queries.tangent import TangentQuery

FloatArray = NDArray[np.float64]
_TERM_CELLS = 2**20  # of the terms that are held at a time
_LOOSE = 1 + 1e-9  # float errors of one person's numbers


@dataclass(frozen=True)
class _Terms:
    """The terms of a batch of persons, from public numbers alone, so that it can travel.

    Sums over rows are exact integers, so that no bit depends on their order; floats at unit 0.
    """

    V: FloatArray
    grid: FloatArray
    removed: float
    weights: FloatArray
    rows: PersonMap

    def __call__(self, batch: Persons) -> Iterator[FloatArray]:
        """Yield terms of some persons at a time, one flat row each."""
        n, d = batch.shape
        some = max(1, _TERM_CELLS // (d * len(self.weights)))
        Z, cut = self.rows(batch), some * batch.each
        for start in range(0, n * batch.each, cut):
            yield self._of(Z[start : start + cut], batch.each)

    def _of(self, Z: Block, each: int) -> FloatArray:
        (n, d), p = (Z.shape[0] // each, Z.shape[1]), len(self.weights)
        exact = self.rows.unit != 0.0
        A = reduced(dense(Z @ self.grid)) if exact else dense(Z @ self.V)
        of_persons = A.reshape(n, each, p)
        M = _products(Z, of_persons)
        if self.removed:
            cores = np.swapaxes(of_persons, 1, 2) @ of_persons
            M -= np.moveaxis(self._cores(np.moveaxis(cores, 0, 1).reshape(p, n * p), exact)
                             .reshape(d, n, p), 1, 0)  # fmt: skip
        M *= self.weights * (self.rows.unit**2 if exact else 1.0)
        return M.reshape(n, d * p)

    def _cores(self, cores: FloatArray, exact: bool) -> NDArray[Any]:
        if not exact:
            return np.asarray(self.removed * self.V @ cores)
        return exact_map(np.rint(self.grid * self.removed), cores.astype(np.int64))

    def sizes(self, batch: Persons) -> FloatArray:
        """Return the Frobenius norm of the term of each person."""
        return np.concatenate([np.zeros(0), *(np.sqrt(square_norms(M)) for M in self(batch))])


def _products(Z: Block, A: FloatArray) -> FloatArray:
    """Return Z'A of each person, for rows in turn."""
    (n, each, p), d = A.shape, Z.shape[1]
    if not sp.issparse(Z):
        return np.asarray(np.swapaxes(Z.reshape(n, each, d), 1, 2) @ A)
    owners = np.repeat(np.arange(n * each) // each * d, np.diff(Z.indptr))
    apart = sp.csr_array((Z.data, Z.indices + owners, Z.indptr), shape=(n * each, n * d))
    return dense(apart.T @ A.reshape(n * each, p)).reshape(n, d, p)


class PersonTangentQuery(TangentQuery):
    """Core and tangent parts of X'X V for a public V, each person clipped to a public size.

    Parameters
    ----------
    persons : PersonRows, or a source of `Persons` anywhere
        The private rows, by person.
    V, scale, weights, clip_norm, adjacency, n_jobs
        As in `TangentQuery`.
    weight : PersonWeight
        What a person counts for.
    """

    units = "groups"

    def __init__(
        self,
        persons: AnyRows,
        V: FloatArray,
        scale: float,
        weights: FloatArray | None = None,
        *,
        clip_norm: float,
        weight: PersonWeight = EQUAL,
        adjacency: str,
        n_jobs: int | None,
    ) -> None:
        super().__init__(
            persons, V, scale, weights, clip_norm=clip_norm, adjacency=adjacency, n_jobs=n_jobs
        )
        self._weight = weight
        self._sizes = RowNumbers(persons, self._terms(clip_norm * FINE).sizes)

    def _terms(self, unit: float) -> _Terms:
        rows = PersonMap(self.clip_norm, unit, self._weight)
        return _Terms(self._V, self._grid, self._removed, self._weights, rows)

    def product(self, clip_level: float) -> Bounded:
        """Return the sum of w M, w = min(1, clip_level / ||M||_F).

        One person: at most L = min(clip_level, largest size), as ||M|| <= ||Z - r A V'|| ||A|| in
        Frobenius norms, which is at most what a single row can reach; replace: 2 L (persons whose
        rows are mirrored in the tangent part are antipodal there). Each person is rounded once.
        """
        d, p = self._V.shape
        level = min(float(clip_level), self.largest)
        fine = self.clip_norm * FINE

        def answer(step: float) -> NDArray[Any]:
            terms = self._terms(fine if step else 0.0)

            def term(batch: Persons) -> NDArray[Any]:
                total: Any = 0
                for M in terms(batch):
                    M *= (level / np.maximum(np.sqrt(square_norms(M)), level))[:, None]
                    total = total + summed(M, step)
                return np.asarray(total).reshape(d, p)

            return self._sum(term, (d, p), step)

        change = self.neighbours.array(level)
        return self._array("tangent_product", (d, p), change, answer, widen=_LOOSE)
