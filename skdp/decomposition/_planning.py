"""Plans of the decompositions: a rehearsed fit, and the error that theory expects of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skdp._inputs import bound_of, matrix_unit
from skdp.data.units import each_alone
from skdp.decomposition._row_planning import (
    DIRECTION,
    LOST,
    check_nnz,
    check_share,
    check_shares,
    check_spread,
    expect_made,
    expect_rows,
    is_bounded,
    length_of,
    made_sums,
    moment_of,
    n_planned,
    seen_columns,
    with_range,
)
from skdp.decomposition._unit_fits import unit_route, usual_length
from skdp.solvers.one_shot import pair_deviation
from skdp.theory import (
    Expectation,
    FitPlan,
    IteratedSide,
    check_counts,
    constant_error,
    rehearse,
    zero_rows,
)
from skdp.theory._rehearsal import clear_sums, ranks_about
from skdp.theory._subspaces import flipped_side, turned_by_cells
from skdp.units import DEGREE, INTERVAL, unit_of

_TURNED = "squared sine between released and exact subspace"
# Measured: half of the components with this part of the singular value from which they are found
# are missed by an iteration, and how fast that falls (two shapes, three units).
_HALF_FOUND, _SHARP = 0.6, 7.0


class PlansMixin:
    """The method `plan` of the decompositions."""

    def plan(
        self,
        n_samples: int,
        n_features: int,
        *,
        signal: Any = None,
        spectrum: Any = None,
        spread: Any = None,
        sparse: bool = False,
        nnz: Any = None,
        apart: bool = False,
    ) -> FitPlan:
        """Say what a fit would release, and what error to expect; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone. Pass a guess for a number of samples
        that is private.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data.
        signal : float or None, default=None
            What is assumed of the data. Row and interaction units: the share of the squared length
            that the components hold; the shares of directions of rows fall like the power of 1/i
            that agrees with it, None like 1/i. Other units: the smallest singular value that shall
            be found; None gives the threshold alone.
        spectrum : array-like or None, default=None
            In place of `signal`. Row units: variances along all `n_features` orthogonal directions,
            up to a factor; with them, and the right `spread`, the error of dense rows is within a
            factor of two. Units of entries, edges and changes of a norm: the singular values that
            the components shall find.
        spread : float or None, default=None
            Row units: standard deviation of the logarithms of the lengths of rows, whose median is
            the clip norm. What is lost grows fast with it, as the longest row must be hidden. None
            is 0.3 where the clip norm is learnt, and 0 where it is given.
        sparse : bool, default=False
            Whether X would be sparse, which decides the route of wide data.
        nnz : int or None, default=None
            Number of entries of sparse X that are not zero (a public number, or a guess). The error
            is then that of fits on a made matrix of this size, whose columns and rows are
            heavy-tailed, as those of words, purchases and visits are; `signal` says how much its
            components hold, and makes it good to a factor of two (see `apart`). From a quarter of
            all cells on, and for a signal of entries, the formulas for dense data hold. Not for
            units that bound any change of a matrix.
        apart : bool, default=False
            Whether rows of the made matrix are of one taste each, and tastes share no column
            (departments, languages, levels of a column): their variances are alike, and lost all at
            once. The plan prints what the other kind would lose.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        n, d = n_samples, n_features
        check_counts(self, n_samples=n, n_features=d)
        self._check_parameters()
        unit = self._protects
        if nnz is not None:
            check_nnz(self, nnz, n, d)
        rows, sparse = unit.by_rows, sparse or nnz is not None
        shares = check_shares(self, signal, spectrum, d) if rows else None
        items = unit.bound is DEGREE
        sought = signal if rows or items else check_values(self, signal, spectrum)
        if items and spectrum is not None:
            raise ValueError("plan of interactions takes 'signal', not 'spectrum'.")
        spread = check_spread(self, spread)
        asked = not rows or self.adjacency == "replace" or self.epsilon == math.inf
        planned, seen = (self, d) if nnz is None else seen_columns(self, n, d)
        X = zero_rows(n if asked else 1, seen, sparse=sparse or not rows)
        X = each_alone(X) if unit.of_groups else X
        ordinary = ordinary_answers(self, n, d, shares, nnz, seen, sought)
        rehearsal = rehearse(planned, n, X, pure=planned._is_pure(X), **ordinary)
        if rows:
            whole = rehearsal
            if rehearsal.named("left_out"):  # with fewer rows the refinement is worth its passes
                whole = rehearse(planned, 1, X, **ordinary)
            expected = expect_rows(self, whole, n, shares, spread)
            if signal is spectrum is None:
                expected = with_range(expected, partial(expect_rows, self, whole, n), d, spread, n)
        else:
            expect = expect_interactions if items else expect_entries
            expected = expect(self, rehearsal, n, d, sought)
        if nnz is not None:
            asked = signal if spectrum is None else sought
            expected = expect_made(self, rehearsal, expected, (n, d), nnz, asked, bool(apart))
        learns = rows and not is_bounded(self)
        said = rehearsal.clip_norm(self.clip_norm)[1] if learns else "1"
        return rehearsal.plan(n, d, expected, said)


def ordinary_answers(estimator, n, d, shares, nnz, seen, sought):
    """Return what ordinary data answer, by the name of the question."""
    unit, answers = unit_of(estimator), {}
    sums = clear_sums if nnz is None else made_sums(unit, nnz, n, d, seen)
    if unit.by_rows:
        length = length_of(estimator, d)
        answers["gram"] = moment_of(shares, length)
        answers["sums"] = sums
        answers |= ranks_about(length) | {"sizes_above": ranks_about(length**2)["norms_above"]}
    if unit.in_one_row and not unit.by_rows:
        answers["counts"] = sums
    if unit.bound is INTERVAL and unit.in_one_row:
        answers |= ranks_about(_entry_length(estimator, n, d, sought))
    return answers


# -- interactions, entries, edges --------------------------------------------------------------


def expect_interactions(estimator, rehearsal, m, n, signal):
    """Expect the angle of the leading items of rows that have norm 1."""
    k, captured = n_planned(estimator, n), check_share(estimator, signal, n)
    items = items_side(rehearsal, m, n, bound_of(estimator))
    return Expectation(
        error=partial(turned_items, items=items, k=k, captured=captured),
        meaning=_TURNED,
        found=min(1.0, items.threshold / m),
        signal=DIRECTION,
        assumptions=(
            unit_route(estimator, (m, n))[1],
            f"{k} components hold {captured:g} of the squared length, in equal parts",
            f"users have at least {bound_of(estimator)} items; components are spread over the "
            "items",
        ),
        goal=0.5,
    )


def items_side(rehearsal, m, n, floor):
    """Return what the releases say of the moment of the items, as a side of an iteration."""
    if moments := rehearsal.named("gram"):
        return IteratedSide(moments[0].noise_scale / math.sqrt(2), 1, n)
    if cells := rehearsal.named("cells"):
        s, degree = cells[0].noise_scale, float(floor)
        noise = pair_deviation(s, m, m * degree / n)
        return IteratedSide(noise / (degree + s * math.sqrt(n)), 1, n)
    return IteratedSide.of(rehearsal.named("gram_product"), n)


def turned_items(users, items, k, captured):
    """Return the expected error for another number of users."""
    return items.error(captured * users / k)


class SingularValues(NamedTuple):
    """What the components shall find, and what an error says of it."""

    values: tuple[float, ...]
    meaning: str
    said: tuple[str, ...]

    def lost(self, turned):
        """Return the share of their squares that is lost, from sin^2 of each; nan of none."""
        if not self.values:
            return math.nan
        squares = np.square(self.values)
        return float(squares @ [turned(value) for value in self.values] / squares.sum())


def check_values(estimator, signal, spectrum):
    """Return the singular values that are assumed: one of all components, or each."""
    if signal is not None and spectrum is not None:
        raise ValueError("plan takes 'signal' or 'spectrum', not both. Got both.")
    if spectrum is None and signal is None:
        return SingularValues((), _TURNED, ())
    given = np.asarray(signal if spectrum is None else spectrum, np.float64)
    fine = given.ndim == (spectrum is not None) and given.size and np.isfinite(given).all()
    if not fine or isinstance(signal, bool) or (given <= 0).any():
        name, what = ("signal", "a positive number, a") if spectrum is None else (
            "spectrum", "a list of positive numbers, the"
        )  # fmt: skip
        got = signal if spectrum is None else spectrum
        raise ValueError(
            f"'{name}' must be {what} singular value of what is found. Got {got!r} instead."
        )
    if spectrum is None:
        return SingularValues((float(given),), _TURNED, (f"singular values of {float(given):g}",))
    kept = np.sort(given)[::-1][: n_planned(estimator, given.size)]
    said = f"singular values from {kept[0]:.3g} to {kept[-1]:.3g}"
    return SingularValues(tuple(kept.tolist()), LOST, (said,))


def _entry_length(estimator, m, n, values):
    """Return about how long rows are: as usual, or as long as singular values say."""
    usual = usual_length(estimator, matrix_unit(estimator), n)
    if estimator.clip_norm != "auto":
        return usual
    of_each = max(1, estimator.n_components // max(len(values.values), 1))
    return max(usual, math.sqrt(of_each * math.fsum(np.square(values.values)) / m))


def expect_moment(estimator, moment, m, n, values):
    """Expect the angle of right singular vectors that are eigenvectors of a noisy A'A."""
    noise = moment.noise_scale / math.sqrt(2)
    items = IteratedSide(noise, 1, n)

    def turned(value):
        return turned_by_cells(value**2, noise, n, n, symmetric=True)

    length = _entry_length(estimator, m, n, values)
    return Expectation(
        error=partial(constant_error, error=values.lost(turned)),
        meaning=values.meaning,
        found=math.sqrt(items.threshold),
        signal="singular value",
        assumptions=(
            unit_route(estimator, (m, n))[1],
            f"rows have norms of about {length:.3g}",
            *values.said,
        ),
        scales=False,  # the route depends on the shape
    )


def expect_entries(estimator, rehearsal, m, n, values):
    """Expect the angle of right singular vectors: off a noisy A'A or A, or off answers A'U."""
    if moments := rehearsal.named("gram"):
        return expect_moment(estimator, moments[0], m, n, values)
    route, why = unit_route(estimator, (m, n))
    sides = _whole_sides if route == "one_shot" else _iterated_sides
    found, turned = sides(estimator, rehearsal, m, n)
    assumed = [why, "components are spread over rows and columns (low coherence)", *values.said]
    error = math.nan if turned is None else values.lost(turned)
    cells = rehearsal.named("cells")
    if cells and values.values and not unit_of(estimator).symmetric:
        other = values.lost(partial(turned, noise_scale=_noise_between(estimator, cells[0])))
        said = "entries are one of 'unit_bound': spread evenly between them they would lose "
        assumed.append(f"{said}{other:.2g}")
    return Expectation(
        error=partial(constant_error, error=error),
        meaning=values.meaning,
        found=found,
        signal="singular value",
        assumptions=tuple(assumed),
        scales=False,  # the noise depends on the shape
    )


def _whole_sides(estimator, rehearsal, m, n):
    """Return (smallest singular value found, sin^2 of one) where all cells are released once."""
    if cells := rehearsal.named("cells"):
        noise = float(bound_of(estimator)[1]) * cells[0].noise_scale
    else:
        noise = (rehearsal.named("right_product") or rehearsal.named("left_product"))[0].noise_scale
    symmetric = unit_of(estimator).symmetric
    turned = partial(turned_by_cells, noise_scale=noise, m=m, n=n, symmetric=symmetric)
    return flipped_side(noise, m, n).threshold, turned


def _noise_between(estimator, cells):
    """Return the noise of entries between the bounds: rounded to them, or with Laplace noise."""
    rounded = math.hypot(cells.noise_scale, math.sqrt(1 / 6))
    graded = math.sqrt(2) / (cells.share * estimator.epsilon)
    return float(bound_of(estimator)[1]) * min(rounded, graded)


def _iterated_sides(estimator, rehearsal, m, n):
    """Return (smallest singular value found, sin^2 of one) after an iteration with products.

    Each side is found with the help of the other: what counts is the mean of their thresholds, and
    noise on the left ones shortens the answers that the right ones are read off. After the products
    come single vectors, for the means. Of Laplace noise nothing is known but the threshold.
    """
    rights, lefts = rehearsal.named("right_product"), rehearsal.named("left_product")
    right = left = IteratedSide.of(rights, m)
    if not unit_of(estimator).symmetric:
        left = IteratedSide.of(lefts[: len(rights)], n)
    found = math.sqrt(right.threshold * left.threshold)

    def turned(value):
        shorter = 1.0 if right is left else 1 + right.tilt(value)
        tilt = shorter * left.tilt(value)
        missed = 1 / (1 + (value / (_HALF_FOUND * found)) ** _SHARP) if found else 0.0
        return missed + (1 - missed) * tilt / (1 + tilt)

    return found, None if rehearsal.law == "laplace" else turned
