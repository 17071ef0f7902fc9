"""Plans of the decompositions: a rehearsed fit, and the error that theory expects of it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from skdp._entry_units import entry_unit
from skdp.data.persons import each_alone
from skdp.decomposition._base import public_range
from skdp.decomposition._entry_moments import usual_length
from skdp.decomposition._sparse_planning import (
    check_nnz,
    expect_made,
    made_sums,
    n_planned,
    seen_columns,
)
from skdp.decomposition._unit_fits import unit_route
from skdp.solvers.one_shot import pair_deviation
from skdp.solvers.spectral import CORE_SCALE, largest_term
from skdp.theory import (
    Expectation,
    FitPlan,
    IteratedSide,
    check_counts,
    constant_error,
    falling_spectrum,
    gram_loss,
    moment_edge,
    power_loss,
    rehearse,
    searched_error,
    zero_rows,
)
from skdp.theory._fits import BOUNDED_LENGTH
from skdp.theory._one_shot import flipped_side
from skdp.theory._rehearsal import clear_sums, ranks_about, without_names

# Rows of unequal length, cut at a learnt level and centred: in units of the clip norm they count
# for about this much. Measured, against fits of 200 to 3000 rows.
_LEARNT_LENGTH = 0.85
_LOST = "share of the best captured squared length that is lost"
_TURNED = "squared sine between released and exact subspace"
_DIRECTION = "share of the squared length that one direction must hold"


class PlansMixin:
    """The method `plan` of the decompositions."""

    def plan(
        self,
        n_samples: int,
        n_features: int,
        *,
        signal: Any = None,
        sparse: bool = False,
        nnz: Any = None,
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
            that the components hold, None lets those of directions fall like 1/i. Other units: the
            smallest singular value that shall be found; None gives the threshold alone.
        sparse : bool, default=False
            Whether X would be sparse, which decides the route of wide data.
        nnz : int or None, default=None
            Number of entries of sparse X that are not zero (a public number, or a guess). The error
            is then that of fits on a made matrix of this size, whose columns and rows are
            heavy-tailed, as those of words, purchases and visits are; `signal` says how much its
            components hold, and makes it good to a factor of two (up to four, where tastes share no
            column). From a quarter of all cells on, and for a signal of entries, the formulas for
            dense data hold. Not for units that bound any change of a matrix.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        n, d = n_samples, n_features
        check_counts(self, n_samples=n, n_features=d)
        self._check_parameters()
        unit = getattr(self, "privacy_unit", "row")
        if nnz is not None:
            check_nnz(self, nnz, n, d)
        rows, sparse = unit in ("row", "group"), sparse or nnz is not None
        asked = not rows or self.adjacency == "replace" or self.epsilon == math.inf
        planned, seen = (self, d) if nnz is None else seen_columns(self, n, d)
        X = zero_rows(n if asked else 1, seen, sparse=sparse or not rows)
        X = each_alone(X) if unit == "group" else X
        ordinary = ordinary_answers(self, n, d, signal, nnz, seen)
        rehearsal = rehearse(planned, n, X, pure=planned._is_pure(X), **ordinary)
        if rows:
            whole = rehearsal
            if rehearsal.named("left_out"):  # with fewer rows the refinement is worth its passes
                whole = rehearse(planned, 1, X, **ordinary)
            expected = expect_rows(self, whole, n, d, signal)
        else:
            expect = expect_interactions if unit == "interaction" else expect_entries
            expected = expect(self, rehearsal, n, d, signal)
        if nnz is not None:
            expected = expect_made(self, rehearsal, expected, (n, d), nnz, signal)
        learns = rows and not _is_bounded(self)
        said = rehearsal.clip_norm(self.clip_norm)[1] if learns else "1"
        return rehearsal.plan(n, d, expected, said)


def ordinary_answers(estimator, n, d, signal, nnz, seen):
    """Return what ordinary data answer, by the name of the question."""
    unit, answers = getattr(estimator, "privacy_unit", "row"), {}
    sums = clear_sums if nnz is None else made_sums(unit, nnz, n, d, seen)
    if unit in ("row", "group"):
        k, share = n_planned(estimator, d), check_share(estimator, signal, d)
        answers["gram"] = spiked(k, share, length_of(estimator, d))
        answers["sums"] = sums
    if unit in ("interaction", "entry"):
        answers["counts"] = sums
    if unit == "entry":
        answers |= ranks_about(usual_length(estimator, entry_unit(estimator), d))
    return answers


def check_share(estimator, signal, d):
    """Return the assumed share of the squared length; None: shares fall like 1/i."""
    k = n_planned(estimator, d)
    if signal is None:
        return float(falling_spectrum(d)[:k].sum())
    if not min(k / d, 0.999) < signal <= 1:
        raise ValueError(
            f"'signal' must be a share in the range ({k}/{d}, 1]: with less, {k} components "
            f"hold no more than chance. Got {signal!r} instead."
        )
    return float(signal)


def length_of(estimator, d):
    """Return the assumed length of the rows, in the unit of the plan."""
    clip = estimator.clip_norm
    if clip == "auto":
        return BOUNDED_LENGTH * _reach(estimator, d) if _is_bounded(estimator) else _LEARNT_LENGTH
    return 1.0 if math.isinf(clip) else float(clip)


def _is_bounded(estimator):
    """Whether public `bounds` of the columns stand for a clip norm."""
    return estimator.clip_norm == "auto" and getattr(estimator, "bounds", None) is not None


def _reach(estimator, d):
    """Return how long rows are at most by their `bounds`."""
    return public_range(without_names(estimator), d, centers=estimator._centers())[1]


def spiked(k, captured, length):
    """Return the ordinary second moment of rows of a length: k equal components, an even rest."""

    def gram(n, noise):
        d = len(noise.value)
        values = np.full(d, (1 - captured) * n / max(d - k, 1))
        values[:k] = captured * n / k
        return np.diag(length**2 * values)

    return gram


# -- rows --------------------------------------------------------------------------------------


def expect_rows(estimator, rehearsal, n, d, signal):
    """Expect the loss of a subspace of rows that are alike in length."""
    k, captured = n_planned(estimator, d), check_share(estimator, signal, d)
    length, exact = length_of(estimator, d), rehearsal.law == "exact"
    clip = rehearsal.clip_norm(estimator.clip_norm)[0]
    moments = rehearsal.named("gram", "moment")
    products = rehearsal.named("tangent_product")
    assumed = [f"{k} components hold {captured:.2g} of the squared length, in equal parts"]
    if getattr(estimator, "privacy_unit", "row") == "group":
        assumed.append("samples are persons: groups of rows that count once each")
    if _is_bounded(estimator):
        shorter = BOUNDED_LENGTH
        assumed.append(f"rows are about {shorter:g} times as long as 'bounds' allow at most")
    else:
        learns = estimator.clip_norm == "auto"
        shorter = length if learns else 1.0
        about = "rows are about as long as the clip norm"
        assumed.append(f"{about} that is learnt, if it is seen" if learns else about)
    if exact:
        loss, noise = partial(constant_error, error=0.0), 0.0
    elif moments:
        noises = [line.noise_scale / largest_term(clip) / shorter**2 for line in products]
        noise = moments[0].noise_scale / length**2
        loss = partial(gram_loss, d=d, k=k, captured=captured, moment=noise, tangents=noises)
        if moments[0].size < d * d:
            assumed.append("the error of the screened route depends on how columns are spread")
            loss = constant_error
    elif not products:
        loss, noise = constant_error, math.inf
        assumed.append("column sums alone are released: those of a moment would be noise")
    else:
        reach = largest_term(clip, CORE_SCALE)
        noises = [line.noise_scale / reach / shorter**2 for line in products]
        noise = sum(scale**-2 for scale in noises) ** -0.5
        facts = {"d": d, "k": k, "captured": captured, "width": products[0].size // d}
        loss = partial(power_loss, **facts, noises=noises, core_scale=CORE_SCALE)
    ranks = rehearsal.named("norm_median")
    if ranks and not exact and loss is not constant_error:
        facts = {"nothing": loss(1e-9), "noise_scale": ranks[-1].noise_scale}
        loss = partial(searched_error, error=loss, **facts)
    return Expectation(
        error=loss,
        meaning=_LOST,
        found=min(1.0, moment_edge(noise, d) / n),
        signal=_DIRECTION,
        assumptions=tuple(assumed),
        goal=0.0 if exact or loss is constant_error else loss(1e-9) / 2,
    )


# -- interactions, entries, edges --------------------------------------------------------------


def expect_interactions(estimator, rehearsal, m, n, signal):
    """Expect the angle of the leading items of rows that have norm 1."""
    k, captured = n_planned(estimator, n), check_share(estimator, signal, n)
    items = items_side(rehearsal, m, n, estimator.degree_floor)
    return Expectation(
        error=partial(turned_items, items=items, k=k, captured=captured),
        meaning=_TURNED,
        found=min(1.0, items.threshold / m),
        signal=_DIRECTION,
        assumptions=(
            unit_route(estimator, (m, n))[1],
            f"{k} components hold {captured:g} of the squared length, in equal parts",
            f"users have at least {estimator.degree_floor} items; components are spread over the "
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


def expect_moment(estimator, moment, m, n, signal):
    """Expect the angle of right singular vectors that are eigenvectors of a noisy A'A."""
    items = IteratedSide(moment.noise_scale / math.sqrt(2), 1, n)
    error = math.nan if signal is None else items.error(float(signal) ** 2)
    length = usual_length(estimator, entry_unit(estimator), n)
    return Expectation(
        error=partial(constant_error, error=error),
        meaning=_TURNED,
        found=math.sqrt(items.threshold),
        signal="singular value",
        assumptions=(unit_route(estimator, (m, n))[1], f"rows have norms of about {length:.3g}"),
        scales=False,  # the route depends on the shape
    )


def expect_entries(estimator, rehearsal, m, n, signal):
    """Expect the angle of right singular vectors, which are read off A'U.

    Each side is found with the help of the other: what counts is the mean of their thresholds, and
    noise on the left ones shortens the answers that the right ones are read off. After the products
    come single vectors, for the means.
    """
    if moments := rehearsal.named("gram"):
        return expect_moment(estimator, moments[0], m, n, signal)
    rights, lefts = rehearsal.named("right_product"), rehearsal.named("left_product")
    cells, high = rehearsal.named("cells"), float(estimator.entry_bounds[1])
    if estimator.privacy_unit == "entry_change" and rehearsal.law == "laplace":
        cells, high = rights or lefts, 1.0  # all of the matrix
    if cells:
        right = left = flipped_side(high * cells[0].noise_scale, m, n)
    else:
        right = left = IteratedSide.of(rights, m)
    if not entry_unit(estimator).symmetric and not cells:
        left = IteratedSide.of(lefts[: len(rights)], n)
    found = math.sqrt(right.threshold * left.threshold)
    assumed = [unit_route(estimator, (m, n))[1]]
    assumed.append("components are spread over rows and columns (low coherence)")
    error = math.nan
    if signal is not None:
        assumed.append(f"singular values of {float(signal):g}")
    if signal is not None and (cells or rehearsal.law != "laplace"):
        shorter = 1.0 if right is left else 1 + right.tilt(float(signal))
        tilt = shorter * left.tilt(float(signal))
        error = 1.0 if signal < found else tilt / (1 + tilt)
    return Expectation(
        error=partial(constant_error, error=error),
        meaning=_TURNED,
        found=found,
        signal="singular value",
        assumptions=tuple(assumed),
        scales=False,  # the noise depends on the shape
    )
