"""Rows of whole persons: those of one person follow each other, and are looked at as one.

Notation: a batch holds persons with m rows each. Laid flat, a person is one long row of m d
entries, whose squared norm is the sum of the squared lengths of the person's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.block_rows import dense
from skdp.data.blocks import AnyRows, Block, RowSource, plain_block
from skdp.data.groups import GroupedRows, check_apart
from skdp.data.places import Placed
from skdp.data.remote import narrowed
from skdp.data.zipped import Columns

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Persons(NamedTuple):
    """Rows of persons with equally many rows, one person after the other.

    Attributes
    ----------
    rows : array or CSR array of shape (persons * each, n_features)
        The rows.
    each : int
        How many rows each person has.
    columns : mapping of arrays
        What belongs to the rows, by name.
    """

    rows: Block
    each: int
    columns: Columns

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the batch: persons first."""
        return self.rows.shape[0] // self.each, self.rows.shape[1]

    def flat(self) -> Block:
        """Return each person as one long row."""
        n, d = self.shape
        if not sp.issparse(self.rows):
            return self.rows.reshape(n, self.each * d)
        starts = np.repeat(np.arange(n * self.each) % self.each * d, np.diff(self.rows.indptr))
        parts = (self.rows.data, self.rows.indices + starts, self.rows.indptr[:: self.each])
        return sp.csr_array(parts, shape=(n, self.each * d))

    def rows_of(self, flat: Block) -> Block:
        """Return the rows of long rows that hold entries where those of `flat` do."""
        if not sp.issparse(flat):
            return flat.reshape(self.rows.shape[0], -1)
        parts = (flat.data, self.rows.indices, self.rows.indptr)
        return sp.csr_array(parts, shape=self.rows.shape)

    def sums(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over the rows of each person; exact where they are integers."""
        return np.asarray(numbers.reshape(self.shape[0], self.each, numbers.shape[1]).sum(axis=1))


class PersonRows(GroupedRows):
    """Private rows by person: a `RowSource` of `Persons`, whose rows are persons.

    Parameters
    ----------
    X : array or CSR matrix of shape (n_rows, n_features), or a source of one
        The private rows.
    columns : mapping of arrays
        What belongs to the rows, by name.
    codes : int array of shape (n_rows,)
        Number of the person of each row, 0, 1, 2, ...
    """

    sparse = False  # whatever the rows are: centred ones are not

    def __init__(self, X: Any, columns: Columns, codes: NDArray[Any]) -> None:
        super().__init__(X, columns, codes)
        self.dtype = getattr(self._source, "dtype", np.dtype(np.float64))

    def _batch(self, groups: IntArray) -> Persons:
        m, block, columns = self._gathered(groups)
        rows = plain_block(block)
        return Persons(np.asarray(rows, np.float64) if not sp.issparse(rows) else rows, m, columns)


def changed(persons: AnyRows, change: Callable[[Block], Block], n_features: int) -> AnyRows:
    """Return persons whose rows pass through a public map of single rows, wherever they are."""
    return narrowed(persons, partial(_changed, change=change), n_features)


def _changed(batches: Iterable[Persons], change: Callable[[Block], Block]) -> Iterator[Persons]:
    for batch in batches:
        yield batch._replace(rows=change(batch.rows))


def about(rows: Block, center: FloatArray) -> FloatArray:
    """Return rows minus a public centre."""
    return np.asarray(dense(rows) - center)


def each_alone(rows: Any, **columns: Any) -> PersonRows:
    """Return rows as persons of one row each."""
    n = rows.n_rows() if hasattr(rows, "n_rows") else rows.shape[0]
    return PersonRows(rows, columns, np.arange(n))


@dataclass(frozen=True)
class PersonForm:
    """How labels of groups, and what is beside them, are read; public, so that it can travel.

    Attributes
    ----------
    check : callable
        From the labels of a block to labels of one kind (it raises for a missing one).
    encode : callable or None
        From targets to float64 columns, each row from its target alone.
    """

    check: Callable[[Any], NDArray[Any]]
    encode: Callable[[Any], FloatArray] | None = None

    def __call__(self, rows: RowSource, groups: Any, y: Any = None) -> PersonRows:
        """Return the persons of one place."""
        codes = np.unique(self.check(groups), return_inverse=True)[1]
        return PersonRows(rows, {} if self.encode is None else {"y": self.encode(y)}, codes)


def persons_of(placed: Placed, form: PersonForm) -> AnyRows:
    """Return the persons of rows, wherever they are, with the column `groups` beside them.

    All rows of a person must lie in one place, else this raises: a person in two would send two
    contributions, each bounded alone, and count twice.
    """
    check_apart(placed, form.check)
    return placed.joined(form, whole_files=True)
