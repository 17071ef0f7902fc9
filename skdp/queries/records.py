"""Queries of a trace regression: the unit is one record (X_i, y_i), or one y_i (`label`).

Notation: X_i is d1 x d2, y_i its target, e_i = <X_i, M> - y_i the residual at a public M = U S V'
of rank r, T its tangent space, P_T X the projection of X on it. A record whose contribution
e_i P_T X_i is longer than C is scaled down to it. Neighbours: `add_remove` (n is private),
`replace` (n public). Under the unit `label` X and n are public, and neighbours differ in one y_i:
`add_remove` withholds it, so that its record adds nothing, `replace` has another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import ROUNDING, FloatArray, IntArray
from skdp.data.blocks import AnyRows, RowSource, limbs_of, sum_rows
from skdp.data.integers import exact_map, joined, off_grid, on_grid
from skdp.data.numbers import RowColumns, restricted
from skdp.data.records import (
    LARGEST_RECORD,
    MAX_ROWS,
    DenseRecords,
    FactoredRecords,
    MixedRecords,
    Pair,
    SparseRecords,
    TangentSpace,
    of_means,
    single_entries,
)
from skdp.data.units import Placed
from skdp.data.views import Columns, ViewedRows, Zipped, ZippedRows, centered
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery
from skdp.queries.columns import ColumnQuery
from skdp.queries.rows import RowQuery
from skdp.queries.sums import GROUP_UNIT, SumQuery
from skdp.units import unit_named

# Passes over the records, and numbers of single records that are cached between passes.
#
# These numbers (units, norms, residuals) stay on the machine that holds the records. The functions
# that compute them contain only public values, so that they may be sent there.


Form = DenseRecords | SparseRecords | FactoredRecords
Effects = tuple[FloatArray, FloatArray]  # row effects a, column effects b of the matrix a 1' + 1 b'
# Largest number of records: integer sums of more could wrap modulo 2**64, and the public linear map
# of a sum cannot be computed from its wrapped value.
_MOST_RECORDS = 2**25


def centred(columns: Columns, center: float) -> FloatArray:
    """Return the targets minus a public number, 0 for records that contribute nothing."""
    return np.where(columns["units"] > 0, columns["targets"] - center, 0.0)


def _surveyed(block: Zipped, form: Form, means: Effects | None) -> tuple[FloatArray, ...]:
    """Return unit, norm and target of each record; the unit is 0 if it contributes nothing.

    The public `means`, if any, are subtracted from the target.
    """
    units, norms = form.survey(block)
    y = block.columns["y"]
    y = y if means is None else y - of_means(block, *means)
    good = np.abs(np.nan_to_num(y, nan=np.inf)) < LARGEST_RECORD
    return np.where(good, units, 0.0), norms, y


def _sizes_of_moments(block: Zipped, form: Form) -> tuple[FloatArray]:
    return (np.where(block.columns["units"] > 0, form.moment_sizes(block), 0.0),)


def _number(columns: Columns) -> NDArray[np.int64]:
    return np.asarray(len(columns["units"]), np.int64)


def _with_targets(
    rows: RowSource, y: Any, at_once: int, place: FloatArray | None, units: Any, **factors: Any
) -> RowSource:
    if place is not None and factors:
        view = partial(_in_units, units=units)
        rows, factors = ViewedRows(ZippedRows(rows, factors), view, rows.n_features), {}
    elif place is not None:
        unit = None if units is None else np.outer(*units).ravel()
        rows = ViewedRows(rows, partial(centered, center=place, unit=unit), rows.n_features)
    return ZippedRows(rows, {"y": np.asarray(y, np.float64), **factors}, at_once=at_once)


def _in_units(blocks: Iterable[Zipped], units: Any) -> Iterator[Zipped]:
    """Yield records as factors in public units of rows and columns."""
    for block in blocks:
        yield Zipped(block.rows / units[0], {"factors": block.columns["factors"] / units[1]})


def _entries(blocks: Iterable[Zipped]) -> Iterator[FloatArray]:
    """Yield the entries of dense records, or of both factors."""
    for block in blocks:
        yield np.hstack([block.rows, block.columns.get("factors", block.rows[:, :0])])


def _check_number(n: float, kind: type[Exception] = ValueError) -> None:
    if n > _MOST_RECORDS:
        raise kind(f"at most {_MOST_RECORDS} records are supported.")


# Sums of clipped contributions of a trace regression, in tangent coordinates.
#
# Notation as above: a record adds e_i P_T X_i, clipped to norm C.


BELOW = 1 - 1e-12  # a clipping factor is lowered by this, more than its float error
_FLOOR = 2.0**-6  # smallest size of a tangent part, relative to the norm: sums stay below 2**53


# -- functions that are sent to the records: they contain only public values -----------------------


def _masked(units: FloatArray, residuals: FloatArray, sizes: FloatArray, bias: float) -> Pair:
    if bias:
        sizes = np.hypot(sizes, bias) * (1 + 1e-12)
    return np.where(units > 0, residuals, 0.0), sizes


def _lengths_of(columns: Columns, center: float | None, bias: float) -> Pair:
    """Return residuals and sizes of the contributions y X; of X, with residual 1, if no centre."""
    units = columns["units"]
    residuals = np.ones(len(units)) if center is None else centred(columns, center)
    return _masked(units, residuals, columns["norms"], bias)


Lengths = Callable[[Columns], Pair]
Weights = Callable[[Columns], FloatArray]


def _scores(columns: Columns, lengths: Lengths) -> FloatArray:
    residuals, sizes = lengths(columns)
    return np.abs(residuals) * sizes


def _at_matrix(
    block: Zipped, form: Form, space: TangentSpace, center: float, bias: float, intercept: float,
    n_kept: int,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Return units, residuals, sizes and cached coordinates at a public matrix.

    Coordinates are cached for large records only (`n_kept` numbers each).
    """
    columns = block.columns
    units = columns["units"]
    kept = np.empty((len(units), n_kept), np.float32)
    more = {"kept": kept} if n_kept else {}
    sizes, inner = form.tangent(block.with_columns(**more), space)
    residuals = inner + bias * intercept - centred(columns, center)
    sizes = np.maximum(sizes, _FLOOR * columns["norms"])
    return units, *_masked(units, residuals, sizes, bias), kept


def _weights(columns: Columns, lengths: Lengths, level: float, unit: float) -> FloatArray:
    """Return the weight of each record: its clipped residual divided by `unit`.

    The contribution (residual times size) is clipped to `level`.
    """
    residuals, sizes = lengths(columns)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shrink = np.minimum(1.0, level * BELOW / (np.abs(residuals) * sizes))
    return residuals * shrink / unit


def _sum(block: Zipped, form: Form, weights: Weights, bias: float, exact: bool) -> FloatArray:
    """Return the sum of the weighted records of a block, and of their biases, as one flat array.

    The sum is exact, in limbs of 20 bits.
    """
    weight = weights(block.columns)
    whole, biases = weight * block.columns["units"], weight * bias
    if not exact:
        return np.append(form.weighted(block.with_columns(weights=whole)), np.sum(biases))
    limbs = form.weighted(block.with_columns(weights=np.trunc(whole)), limbs_of)
    return np.append(limbs, np.sum(np.trunc(biases)))


def _predicted_and_left(
    blocks: Iterable[Zipped], center: float, unit: float, cut: float
) -> Iterator[FloatArray]:
    """Yield rows (prediction, target - prediction, 1); predictions about a centre are clipped."""
    for block in blocks:
        columns = block.columns
        good = columns["units"] > 0
        target = np.where(good, columns["y"] - center, 0.0) / unit
        predicted = np.clip(columns["residuals"] / unit + target, -cut, cut)
        yield np.column_stack([predicted, target - predicted, good])


def _exact_sum_of_cached(columns: Columns, weights: Weights, bias: float, n_kept: int) -> IntArray:
    """Return the sums of `_sum` from cached coordinates alone."""
    weight = weights(columns)
    whole = np.trunc(weight * columns["units"])
    limbs = np.zeros((2, n_kept), np.int64)
    for i in range(0, len(weight), MAX_ROWS):
        rows = columns["kept"][i : i + MAX_ROWS].astype(np.float64)
        limbs += limbs_of(whole[i : i + MAX_ROWS] @ rows).astype(np.int64)
    biases = np.trunc(weight * bias).astype(np.int64)
    return np.append(limbs, np.sum(biases))


class ClippedSum(PrivateQuery):
    """The sum of clipped contributions e_i P_T X_i (or y_i X_i, or X_i), and ranks of their norms.

    With an intercept the record is (X, bias), and its size sqrt(||P_T X||^2 + bias^2): one
    contribution, clipped as a whole.
    """

    def __init__(
        self,
        query: RecordQuery,
        matrix: tuple[FloatArray, FloatArray, FloatArray] | None,
        intercept: float,
        *,
        of_rows: bool = False,
    ) -> None:
        self.query = query
        self._of_rows = of_rows
        self._matrix = matrix
        self._intercept = intercept
        d1, d2 = query.shape
        r = 0 if matrix is None else matrix[0].shape[1]
        self._core_size = d1 * d2 if matrix is None else r * (d1 + d2)
        # Sums are floored once (and again when they are mixed), products with public matrices
        # twice: each moves an entry by 1.
        self._slack = (
            math.sqrt(d1 * d2) * (1 + isinstance(query.form, MixedRecords))
            + 1
            + 2 * (math.sqrt(d1 * d2) if matrix is None else math.sqrt(r * d1) + math.sqrt(r * d2))
        )

    # -- per-record numbers ------------------------------------------------------------------

    def space(self) -> TangentSpace:
        """Return the public tangent space at the matrix."""
        assert self._matrix is not None
        U, S, V = self._matrix
        outer = self.query.form.outer
        left, right = U.T, V
        if outer is not None:
            left, right = U.T @ off_grid(outer[0]), off_grid(outer[1]) @ V
        size = float(np.linalg.norm(S))
        unit = size * 2.0**-26 if size > 0 else 1.0
        return TangentSpace(on_grid(left), on_grid(right), on_grid(V), np.rint(S / unit), unit)

    @cached_property
    def _n_kept(self) -> int:
        form = self.query.form
        if self._matrix is None or not isinstance(form, DenseRecords):
            return 0
        return form.coordinates(len(self._matrix[1]))

    @cached_property
    def _columns(self) -> RowColumns:
        """The cached residuals and sizes, for the search of a clip norm and for the sum."""
        query = self.query
        if self._of_rows:
            return query.units_alone
        if self._matrix is None:
            return query.survey
        make = partial(
            _at_matrix, form=query.form, space=self.space(), center=query.center,
            bias=query.bias, intercept=self._intercept, n_kept=self._n_kept,
        )  # fmt: skip
        return query.survey.then(make, "units", "residuals", "sizes", "kept")

    @property
    def _lengths(self) -> Lengths:
        if self._matrix is None:
            center = None if self._of_rows else self.query.center
            return partial(_lengths_of, center=center, bias=self.query.bias)
        return itemgetter("residuals", "sizes")

    def scores_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the norms of the contributions."""
        scores = self._columns.numbers(partial(_scores, lengths=self._lengths))
        return self.query._below(scores, threshold, "gradient_norm_centered_rank")

    def prediction_moments(self, unit: float, cut: float, clip_norm: float) -> Bounded:
        """Return the Gram matrix of rows (prediction, target - prediction, 1) at this matrix M.

        A row depends on its record and on public numbers alone; a withheld target takes all of it.
        The bound is that of `RowQuery.gram`: C^2 of rows scaled down to C, replace sqrt(2) C^2.
        """
        query, C = self.query, float(clip_norm)
        view = partial(_predicted_and_left, center=query.center, unit=unit, cut=cut)

        def answer(step: float) -> NDArray[Any]:
            rows = restricted(self._columns.with_columns(), view, 3)
            return query._derived(RowQuery, rows, clip_norm=C).gram().answer(step)

        return query._square("prediction_moments", 3, query.neighbours.positive(C * C), answer)

    # -- the total ---------------------------------------------------------------------------

    def total(self, clip_level: float) -> Bounded:
        """Return the sum of the contributions, each of norm at most C, in tangent coordinates.

        One record: C; replace and label: 2 C (X, y and -X, y are antipodal). In integers a record
        adds trunc(w) Z, with an upper bound of |w| ||P_T Z|| at most C: truncation only shrinks.
        Coordinates: (W1 K W2 V, (U'W1 K W2)(I - VV')) of the exact sum K, an isometry of T; then
        the intercept. The public map is exact and floors (`slack`).
        """
        C, query = float(clip_level), self.query
        bias = query.bias

        def answer(step: float) -> NDArray[Any]:
            if step == 0.0:
                return self._float_total(C)
            room = round(math.log2(_FLOOR / (MAX_ROWS * ROUNDING)))  # C in units of a sum
            shift = room - math.ceil(math.log2(C / step))
            unit = step * 2.0**-shift
            total = self._exact(partial(_weights, lengths=self._lengths, level=C, unit=unit))
            high, low = total[:-1].reshape(2, -1)
            last = [int(total[-1]) >> shift] if bias else []
            return np.concatenate([self._map(joined(high, low, shift)), np.array(last, np.int64)])

        first = "record_sum" if self._of_rows else query.total_name
        name = first if self._matrix is None else "gradient_sum"
        change, size = query.neighbours.array(C), self._core_size + bool(bias)
        bound = Bound(name, (size,), change, slack=1.01 * self._slack)
        return Bounded(bound, answer)

    def _float_total(self, level: float) -> FloatArray:
        query, size = self.query, math.prod(self.query.shape)
        weights = partial(_weights, lengths=self._lengths, level=level, unit=1.0)
        term = partial(_sum, form=query.form, weights=weights, bias=1.0, exact=False)
        total = query.sum_over(self._columns, term, (size + 1,), 0.0)
        last = [float(total[-1]) * query.bias] if query.bias else []
        return np.concatenate([self._map_float(total[:-1]), last])

    def _exact(self, weights: Weights) -> IntArray:
        """Return the exact sum over records, flat; from cached coordinates if there are any."""
        query = self.query
        if self._n_kept:
            n = self._n_kept
            kept = partial(_exact_sum_of_cached, weights=weights, bias=query.bias, n_kept=n)
            return self._columns.sum(kept, (2 * n + 1,))
        term = partial(_sum, form=query.form, weights=weights, bias=query.bias, exact=True)
        shape = (2 * math.prod(query.shape) + 1,)
        return query.sum_over(self._columns, term, shape, 1.0)

    def _map_cached(self, flat: IntArray) -> IntArray:
        """Project the sums of U'W1 Z W2 on the complement of V, and keep those of W1 Z W2 V."""
        assert self._matrix is not None
        V, size = self._matrix[2], self.query.shape[0] * self._matrix[0].shape[1]
        left = flat[size:].reshape(-1, len(V))
        complement = exact_map(on_grid(np.eye(len(V)) - V @ V.T), np.ascontiguousarray(left.T))
        return np.concatenate([flat[:size], complement.T.ravel()])

    def _map(self, flat: IntArray) -> IntArray:
        if self._n_kept:
            return self._map_cached(flat)
        form = self.query.form
        flat = form.mapped(flat) if isinstance(form, MixedRecords) else flat
        K, outer = flat.reshape(self.query.shape), form.outer
        if self._matrix is None:
            if outer is None:
                return flat
            return exact_map(outer[1].T, exact_map(outer[0], K).T).T.ravel()
        space = self.space()
        right = exact_map(space.right.T, np.ascontiguousarray(K.T)).T
        left = exact_map(space.left, K).T
        if outer is not None:
            right = exact_map(outer[0], np.ascontiguousarray(right))
        left = exact_map(self.complement().T, np.ascontiguousarray(left)).T
        return np.concatenate([right.ravel(), left.ravel()])

    def complement(self) -> FloatArray:
        """Return W2 (I - VV') on the grid."""
        assert self._matrix is not None
        V = self._matrix[2]
        complement = np.eye(len(V)) - V @ V.T
        outer = self.query.form.outer
        return on_grid(complement if outer is None else off_grid(outer[1]) @ complement)

    def _map_float(self, flat: FloatArray) -> FloatArray:
        form = self.query.form
        if isinstance(form, MixedRecords):
            flat = off_grid(form.mix) @ flat
        K, outer = flat.reshape(self.query.shape), form.outer
        if outer is not None:
            K = off_grid(outer[0]) @ K @ off_grid(outer[1])
        if self._matrix is None:
            return K.ravel()
        U, _, V = self._matrix
        left = U.T @ K
        return np.concatenate([(K @ V).ravel(), (left - left @ V @ V.T).ravel()])


_PUBLIC_CLIP = 1.5  # clip norm of public second moments, relative to the median


def _moments(block: Zipped, form: Form, level: float, unit: float, below: float) -> FloatArray:
    """Return the sum of second moments of a block, in `unit`, each clipped to norm `level`."""
    units, sizes = block.columns["units"], block.columns["moment_sizes"]
    with np.errstate(divide="ignore", invalid="ignore"):
        shrink = np.sqrt(np.minimum(1.0, level / sizes)) * below
    return form.moments(block.with_columns(scales=np.where(units > 0, shrink / unit, 0.0)))


class RecordQuery(SumQuery):
    """Releases over records (X_i, y_i), each with its bound; nothing is computed before the charge.

    Parameters
    ----------
    placed : Placed
        Measurement matrices as rows of d1 d2 numbers, with the column `y` of targets; or rows a_i
        of d1 numbers, with a column `factors` of rows b_i besides, for X_i = a_i b_i'.
    shape : tuple of int
        (d1, d2).
    adjacency : {"add_remove", "replace"}
        What neighbours differ in.
    privacy_unit : {"row", "label"}
        A record, or its target alone.
    n_jobs : int or None
        Threads; they never change a result.
    place, units : array of shape (d1 d2,) and arrays of shapes (d1,) and (d2,), or None
        Public: subtracted from each (dense) record; its rows and columns are divided by the units.
    """

    units = "records"

    def __init__(
        self,
        placed: Placed,
        shape: tuple[int, int],
        *,
        adjacency: str,
        privacy_unit: str = "row",
        n_jobs: int | None = None,
        place: FloatArray | None = None,
        units: Any = None,
    ) -> None:
        self.unit = unit_named(privacy_unit)
        of_records = self.unit.in_one_row and self.unit.bound is None
        if not of_records or adjacency not in self.unit.adjacencies:
            raise ValueError(f"unit {privacy_unit!r} has no adjacency {adjacency!r}")
        self._n_known = placed.known_rows()  # NaN: counted when sums are read
        _check_number(self._n_known)
        super().__init__(placed.rows, adjacency=adjacency, n_jobs=n_jobs)
        kind = SparseRecords if getattr(placed.rows, "sparse", False) else DenseRecords
        self.form: Form = (FactoredRecords if "factors" in placed.columns else kind)(shape)
        self._placed = placed
        with_targets = partial(_with_targets, at_once=self.form.at_once, place=place, units=units)
        self._records = placed.joined(with_targets)
        self.shape = shape
        self.center = 0.0  # public: subtracted from each target
        self.bias = 0.0  # public: the constant that is appended to each record for an intercept
        self.means: Effects | None = None  # public: <X, a 1' + 1 b'> is subtracted from each target
        self.total_name = "spectral_init_sum"
        self._keep()

    def _contributing(self, **public: Any) -> RecordQuery:
        """Return the query with other public settings, and cached numbers computed anew."""
        other = self._with(**public)
        other._keep()
        return other

    def _keep(self) -> None:
        """Define the cached numbers: units, norms, targets, and norms of X X' of the records."""
        columns = partial(RowColumns, self._records, n_jobs=self.n_jobs)
        surveyed = partial(_surveyed, form=self.form, means=self.means)
        self.survey = columns(surveyed, "units", "norms", "targets")
        self.moment_sizes = self._sizes_by(self.survey)
        # Units and norms of X do not depend on y.
        self.units_alone = columns(self.form.survey, "units", "norms")

    def _sizes_by(self, columns: RowColumns) -> RowColumns:
        """Return the norms of X X' of records whose units are known."""
        return columns.then(partial(_sizes_of_moments, form=self.form), "moment_sizes")

    @property
    def _counted(self) -> bool:
        return self.neighbours.replace or self.unit.of_targets  # a label is withheld

    def sum_over(
        self,
        columns: RowColumns,
        term: Callable[[Zipped], Any],
        shape: tuple[int, ...],
        step: float,
    ) -> NDArray[Any]:
        """Add ``term(block)`` over records with columns: exact integers, or floats at step 0."""
        if self._n_known != self._n_known:
            _check_number(int(self.survey.sum(_number)), PrivacyError)  # which the gate shows
        source: AnyRows = columns.with_columns()
        return sum_rows(source, term, shape, exact=step != 0.0, n_jobs=self.n_jobs)

    # -- restricted queries (public arguments) -----------------------------------------------

    def whitened(self, W1: FloatArray, W2: FloatArray) -> RecordQuery:
        """Return the records W1 X W2 for public symmetric W of norm at most 1 (CSR: diagonals)."""
        return self._contributing(form=self.form.whitened(W1, W2))

    def mixed(self, A: FloatArray) -> RecordQuery:
        """Return records that contribute A vec(X), for public symmetric A of norm below 1."""
        return self._contributing(form=MixedRecords.of(self.form, A))

    def about(self, place: FloatArray, units: Any = None) -> RecordQuery:
        """Return the records X - place (X in factored form) in public units of rows and columns."""
        return RecordQuery(
            self._placed, self.shape, adjacency=self.adjacency, privacy_unit=self.unit.name,
            n_jobs=self.n_jobs, place=place, units=units,
        )  # fmt: skip

    def augmented(self, center: float, bias: float) -> RecordQuery:
        """Return the records (X, bias), y - center; the coefficient of the bias is an intercept."""
        return self._with(center=self.center + center, bias=bias)

    def about_means(self, rows: FloatArray, columns: FloatArray) -> RecordQuery:
        """Return the records with public row and column biases subtracted from their targets."""
        self._check_csr()
        return self._contributing(means=(rows, columns))

    def _check_csr(self) -> None:
        if type(self.form) is not SparseRecords or self.form.scales is not None:
            raise ValueError("means of rows and columns need X in CSR rows")

    def single_entries(self, by_column: bool) -> RecordQuery:
        """Return the CSR records of one entry, by its column or row; all other records are zero.

        The sums `products` of these give column or row biases. Each record is mapped alone, so the
        bounds are those of the mapped records.
        """
        self._check_csr()
        view = partial(single_entries, shape=self.shape, by_column=by_column, means=self.means)
        name, (d1, d2) = "column_sums" if by_column else "row_sums", self.shape
        shape = (1, d2) if by_column else (d1, 1)
        records = restricted(self._records, view, max(shape))
        public = {"form": SparseRecords(shape), "shape": shape, "means": None, "total_name": name}
        return self._contributing(_records=records, **public)

    def entries(self) -> ColumnQuery:
        """Return the query of the entries of dense records, or of both factors, as columns."""
        size = sum(self.shape) if type(self.form) is FactoredRecords else math.prod(self.shape)
        return self._derived(ColumnQuery, restricted(self._records, _entries, size))

    def records(self) -> ClippedSum:
        """Return the query of the contributions X, without targets; `total` gives the mean of X."""
        return ClippedSum(self, None, 0.0, of_rows=True)

    def products(self) -> ClippedSum:
        """Return the query of the contributions y X: its `total` is a first estimate of M."""
        return ClippedSum(self, None, 0.0)

    def tangent(
        self, U: FloatArray, S: FloatArray, V: FloatArray, intercept: float = 0.0
    ) -> ClippedSum:
        """Return the query of the contributions e P_T X at the public M = U S V'."""
        return ClippedSum(self, (U, S, V), intercept)

    # -- ranks -------------------------------------------------------------------------------

    def moment_sizes_below(self, threshold: float) -> Bounded:
        """Return the rank of a threshold among the sizes ||X_i X_i'||_F."""
        sizes = self.moment_sizes.numbers(itemgetter("moment_sizes"))
        return self._below(sizes, threshold, "measurement_gram_norm_centered_rank")

    # -- second moments of the design --------------------------------------------------------

    def check_public_rows(self) -> None:
        """Raise unless X is public: under the unit "label" only."""
        if not self.unit.of_targets:
            raise ValueError("X is private unless privacy_unit='label'")

    def public_mean(self) -> FloatArray:
        """Return the mean of X, clipped as `records`; public under the unit "label" only."""
        self.check_public_rows()
        usual = self.units_alone.median("norms")
        step = _PUBLIC_CLIP * usual * GROUP_UNIT  # in integers: the same bits whatever the blocks
        total = self.records().total(_PUBLIC_CLIP * usual).answer(step)
        mean = total * step / max(1, self.n_rows)
        # Half of the records are nearer to 0 than the median of those that are not 0: most are 0.
        near = self.about(mean).units_alone.median("norms") + float(np.linalg.norm(mean))
        return mean if near >= usual else np.zeros_like(mean)

    def public_moments(self) -> FloatArray:
        """Return second moments of X, clipped as `moments`; public under the unit "label" only."""
        self.check_public_rows()
        found = self._sizes_by(self.units_alone)
        return self._moments(found, _PUBLIC_CLIP * found.median("moment_sizes"), 0.0, 1.0)

    def _moments(
        self, columns: RowColumns, level: float, step: float, below: float
    ) -> NDArray[Any]:
        """Return the sums over records that are scaled down to sizes of `level`."""
        unit = math.sqrt(step) if step else max(math.sqrt(level), 1e-300) * 2.0**-16
        term = partial(_moments, form=self.form, level=level, unit=unit, below=below)
        total = self.sum_over(columns, term, (self._moments_size(),), step)
        return total if step else total * unit**2

    def _moments_size(self) -> int:
        d1, d2 = self.shape
        diagonal = self.form.moment_slack() == (0.0, 0.0)
        return d1 + d2 if diagonal else d1 * d1 + d2 * d2

    def measurement_covariance_moments(self, clip_level: float) -> Bounded:
        """Return the sums of X X' and X'X (CSR: of their diagonals), ||X X'||_F clipped to C; flat.

        Both have the same norm: sqrt(2) C together; replace: the changes are PSD (or
        non-negative), so <P, Q> >= 0 and it is sqrt(2) larger, not 2. Integers: a record is scaled
        to rint(X / sqrt(step)), which adds at most a sqrt(C) + b (`moment_slack` of the form).
        """
        C = float(clip_level)
        a, b = self.form.moment_slack()

        def answer(step: float) -> NDArray[Any]:
            return self._moments(self.moment_sizes, C, step, BELOW)

        both = self.neighbours.positive(math.sqrt(2.0))
        bound = Bound(
            "measurement_covariance_moments", (self._moments_size(),), both * C, slack=both * b,
            cross=both * a * math.sqrt(C),
        )  # fmt: skip
        return Bounded(bound, answer)
