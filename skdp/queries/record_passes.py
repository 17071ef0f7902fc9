"""Passes over the records of a trace regression, and numbers of single records kept between them.

Notation: a record is (X_i, y_i), X_i of shape d1 x d2. All of it runs inside the gate. Numbers of
single records (units, norms, residuals) stay where the records are; what is computed there is a
function of public values, so that it can travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import AnyRows, RowSource, sum_rows
from skdp.data.records import DenseRecords, FactoredRecords, SparseRecords, of_means
from skdp.data.remote import RowColumns
from skdp.data.units import Placed
from skdp.data.views import Zipped, ZippedRows, may_be_kept
from skdp.exceptions import PrivacyError
from skdp.queries.sums import SumQuery
from skdp.units import unit_named

FloatArray = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]
Form = DenseRecords | SparseRecords | FactoredRecords
Means = tuple[FloatArray, FloatArray]  # a of the rows and b of the columns of a 1' + 1 b'
# A public contract: with more, sums that a public map is applied to could wrap, and the map is not
# a function of a wrapped sum.
_MOST_RECORDS = 2**25
_LARGEST_TARGET = 2.0**200


def centred(columns: Columns, center: float) -> FloatArray:
    """Return the targets less a public number, 0 for records that contribute nothing."""
    return np.where(columns["units"] > 0, columns["targets"] - center, 0.0)


def _surveyed(block: Zipped, form: Form, means: Means | None = None) -> tuple[FloatArray, ...]:
    """Return unit, norm and target of each record: 0 for those that contribute nothing.

    Public means of rows and columns are taken off the target.
    """
    units, norms = form.survey(block)
    y = block.columns["y"]
    y = y if means is None else y - of_means(block, *means)
    good = np.abs(np.nan_to_num(y, nan=np.inf)) < _LARGEST_TARGET
    units = np.where(good, units, 0.0)
    return units, np.where(good, norms, 0.0), np.where(units > 0, y, 0.0)


def _sizes_of_moments(block: Zipped, form: Form) -> tuple[FloatArray]:
    return (np.where(block.columns["units"] > 0, form.moment_sizes(block), 0.0),)


def _units_alone(block: Zipped, form: Form) -> tuple[FloatArray]:
    """Return units of X, whatever y is."""
    return (form.survey(block)[0],)


def _of_rows_alone(block: Zipped, form: Form) -> tuple[FloatArray, FloatArray]:
    """Return units and sizes of moments of X, whatever y is."""
    (units,) = _units_alone(block, form)
    return units, *_sizes_of_moments(block.beside(units=units), form)


def _number(columns: Columns) -> NDArray[np.int64]:
    return np.asarray(len(columns["units"]), np.int64)


def _with_targets(rows: RowSource, y: Any, at_once: int, **factors: Any) -> RowSource:
    return ZippedRows(rows, {"y": np.asarray(y, np.float64), **factors}, at_once=at_once)


class RecordPasses(SumQuery):
    """Private records, as `RecordQuery` takes them, and what is computed of them."""

    units = "records"

    def __init__(
        self,
        placed: Placed,
        shape: tuple[int, int],
        *,
        adjacency: str,
        privacy_unit: str = "row",
        n_jobs: int | None = None,
    ) -> None:
        self.unit = unit_named(privacy_unit)
        of_records = self.unit.in_one_row and self.unit.bound is None
        if not of_records or adjacency not in self.unit.adjacencies:
            raise ValueError(f"unit {privacy_unit!r} has no adjacency {adjacency!r}")
        self._n_known = placed.known_rows()  # NaN: counted when sums are read
        _check_number(self._n_known)
        super().__init__(placed.rows, adjacency=adjacency, n_jobs=n_jobs)
        self.form = _form_of(placed, shape)
        self._joined = placed.joined(partial(_with_targets, at_once=self.form.at_once))
        self._records: Any = self._joined
        # Integers of all records, four bytes each, are kept where they fit; others than dense ones
        # contribute what is not their rows. It decides on speed alone.
        fits = may_be_kept(4 * self._n_known * math.prod(shape))
        if fits and type(self.form) is DenseRecords:
            self._records = self._made(DenseRecords.whole, "row_units", "whole").beside
        self.shape = shape
        self.center = 0.0  # public: taken off each target
        self.corner = 0.0  # the constant that joins each record, for an intercept
        self.means: Means | None = None  # public: <X, a 1' + 1 b'> is taken off each target
        self._keep()

    def _keep(self) -> None:
        """Keep units, norms and targets of the records in this form, and their moment sizes."""
        surveyed = partial(_surveyed, means=self.means)
        self.survey = self._made(surveyed, "units", "norms", "targets")
        make = partial(_sizes_of_moments, form=self.form)
        self.moment_sizes = self.survey.then(make, "moment_sizes")
        self.units_alone = self._made(_units_alone, "units")

    @property
    def _counted(self) -> bool:
        return self.neighbours.replace or self.unit.of_targets  # a label is withheld

    def _made(self, make: Callable[..., Any], *names: str) -> RowColumns:
        return RowColumns(self._records, partial(make, form=self.form), *names, n_jobs=self.n_jobs)

    def of_rows_alone(self) -> RowColumns:
        """Return units and moment sizes of X, whatever y is."""
        return self._made(_of_rows_alone, "units", "moment_sizes")

    def sum_over(
        self,
        columns: RowColumns,
        term: Callable[[Zipped], Any],
        shape: tuple[int, ...],
        step: float,
    ) -> NDArray[Any]:
        """Add ``term(block)`` over records with columns: exact integers, or floats at step 0."""
        if self._n_known != self._n_known:
            _check_number(int(self.survey.sum(_number)), PrivacyError)  # which passes the gate
        source: AnyRows = columns.beside()
        return sum_rows(source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)


def _check_number(n: float, kind: type[Exception] = ValueError) -> None:
    if n > _MOST_RECORDS:
        raise kind(f"at most {_MOST_RECORDS} records are supported.")


def _form_of(placed: Placed, shape: tuple[int, int]) -> Form:
    if "factors" in placed.columns:
        return FactoredRecords(shape)
    return SparseRecords(shape) if getattr(placed.rows, "sparse", False) else DenseRecords(shape)
