"""What the linear regressions share: bounds, targets, wide rows, the joint release."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from skdp import _validation, base
from skdp._inputs import GroupUnitMixin, mapped
from skdp._limits import GRAM_FEATURES, MOST_DENSE
from skdp.answer import Answer
from skdp.data.blocks import canonical, scale_rows
from skdp.data.integers import row_norms
from skdp.data.units import GroupForm, groups_of
from skdp.data.views import Mapped, RowScale, TargetScale
from skdp.exceptions import NoSignalWarning, PartialSignalWarning, warn_caller
from skdp.queries.regression import RegressionQuery
from skdp.solvers.columns import count_rows, find_kinds, rows_for_scales
from skdp.solvers.linear_regression import normal_equations
from skdp.solvers.median_search import QUESTIONS, SMALLEST, find_between
from skdp.solvers.postprocess import released_count
from skdp.solvers.spectral import FEWEST_KEPT, ONE_MOMENT, product_directions


def most_undetected(columns):
    return 2 * np.count_nonzero(~columns.located) > len(columns.found)


def model_share(shares):
    """Return what the shares leave for the model."""
    return sum(shares.get(name, 0.0) for name in ("regression_moments", "sums", "target_mean"))


# Screening of wide rows: products of all columns with the targets are released first; the moment
# holds the columns with the largest products, and the directions of these products.


_SIZE, _FEWEST_KEPT = 0.6, 20


def moment_size(n, share, unit_noise):
    """Return the number of columns of which a Gram matrix is most accurate.

    Each column adds noise, so the best number follows from the count over the noise of an entry.
    `unit_noise` is the noise of second moments of rows of norm 1 at the whole budget.
    """
    size = _SIZE * (n * math.sqrt(share) / unit_noise) ** (2 / 3)
    return int(min(max(size, _FEWEST_KEPT), MOST_DENSE))


# What the linear regressions share: bounds, the joint release, the solution.


# _LOOSE: rows per column, over the noise. Beyond it, clip norms grow as its eighth root, so that
# noise and clipping both vanish: rows of small weight cost less than noise. Bounds of single
# entries hardly affect the noise: they widen by the square root, if a last release shows that
# predictions are better.
_LOOSE = 0.01
_CUT = 3.5  # scales from the centre, in the fit and in predictions
_MEDIAN_NORM = 1.25  # median length of rows of d columns of deviation 1, over the root of d
_SEARCH_ERROR = 0.7  # of a number that is given: a search finds half a log2 bin
_LOST_VARIANCE = 0.45  # of the explainable variance: a fit that may lose more warns
# Lengths, in clip norms, of the scaled targets and of the bias: they balance the noise on X'Y and
# on the sums against that on X'X, for coefficients that map the longest row to the target bound.
_TARGET = 0.8
# Bias of a row in clip norms, and the share of products of all columns: of targets, and of classes,
# whose totals are sums over all rows, and which differ a little in many columns of texts.
_BIAS, _SUMS = (0.3, 0.6), (0.6, 0.8)
_LONGEST = 2.0  # clip norms: longer rows have weights below a quarter in the fit


class Released(NamedTuple):
    """What a regression released, before it is solved.

    Attributes
    ----------
    moments : NormalEquations or None
        Of rows and targets; None if the search for the targets spent all of the budget.
    clip_norm : float
        Of rows in `units`.
    scale : TargetScale
        Of the targets.
    mean : Answer or None
        Mean of the targets under wider bounds, about the centre of `scale`, where it was released.
    kept : ndarray of int, or Mapped
        Columns that the moments hold, and directions.
    units : RowScale
        Centre and unit of each column.
    choose : callable
        Returns the bounds of entries in predictions with a linear map; a last release may choose.
    """

    moments: Any
    clip_norm: float
    scale: TargetScale
    mean: Answer | None
    kept: np.ndarray
    units: RowScale
    choose: Any


class Releases:
    """Makes the releases of one fit; each step uses the released numbers of earlier ones.

    Parameters
    ----------
    estimator : LinearBase
        Its parameters, budget fractions and rules for targets.
    session : PrivacySession
        Pays for all of them.
    placed : Placed
        The private records, which the session alone reads.
    form : RecordForm
        How labels or targets become numbers.
    scale : TargetScale or None
        The public one of the targets; that of numbers is learnt within it.
    """

    def __init__(self, estimator, session, placed, form, scale):
        self.estimator, self.session, self.exact = estimator, session, session.budget.exact
        if estimator._by_group:
            rows = records = groups_of(placed, GroupForm(_validation.check_labels, form.columns))
        else:
            rows, records = placed.rows, placed.joined(form)
        self.d, self.q, self.scale = rows.n_features, form.n_targets, scale
        self.dense = not getattr(rows, "sparse", False)
        # Whether columns are divided by learnt units: from public facts.
        narrow = self.d <= GRAM_FEATURES and (estimator.bounds is None or self.dense)
        self.learns = narrow and estimator.clip_norm == "auto" and not self.exact
        self.public_units = estimator._public_units(self.d)
        # A moment of all columns may be too large for sparse or wide rows without bounds.
        wide = self.d > GRAM_FEATURES or not self.dense
        self.screened = wide and estimator.bounds is None and not self.exact
        shares = estimator._default_shares(self.learns, self.screened, self.dense)
        self.shares = _validation.check_split(estimator, shares)
        self.tail_share = 0.0
        if estimator._y_numeric and not self.exact:
            self.tail_share = self.shares["target_bounds"] / 3
            self.shares["target_bounds"] -= self.tail_share
        anything = scale or TargetScale.in_ball(math.inf, self.q)
        query = estimator._asked(RegressionQuery, records, clip_norm=math.inf, scale=anything)
        self.ask = session.ask(query)
        self.n = float(query.n_rows) if estimator._total_is_public() else None
        self.unit_noise = query.neighbours.positive(session.noise_multiplier)

    def make(self):
        """Make all releases: location and scale of columns and targets, and the second moments."""
        self._count_rows()
        self._choose_size()
        self._find_places()
        self._choose_units()
        searched = self._choose_search()
        left, wider = self.shares, None
        if self.estimator._y_numeric:
            self.scale, left, wider = self.estimator._target_scale(self)
        clip_norm = self._clip_norm(self.norm_share if searched and left else 0.0)
        kept, moments, mean, choose = np.arange(self.d), None, None, lambda *_: self.cuts[0]
        if left:
            self.shares = left
            kept, moments = (self._screening if self.screened else self._all_columns)(clip_norm)
        if moments and wider:
            moments, mean = self.estimator._with_mean(self, moments, *wider)
        if moments and self.cuts_share:
            choose = partial(self.estimator._chosen_cuts, self, wider)
        return Released(moments, clip_norm, self.scale, mean, kept, self.units, choose)

    def _count_rows(self):
        """Release the number of rows, unless a search about centres has a count of its own."""
        about_centers = self.learns and self.estimator.fit_intercept and not self.screened
        if self.n is None and not self.exact and not about_centers:
            share = self.shares["clip_norm"] / (QUESTIONS + 1)
            # Of rows up to any length, less half of all.
            half = self.ask.lengths().kept_below(math.inf, share=share)
            self.shares["clip_norm"] -= share
            self.n = released_count(2 * half.value, 2 * half.noise_scale)

    def _choose_size(self):
        """Choose whether the moment holds all columns; wide sparse rows stay sparse."""
        self.stay_sparse = False
        if self.screened:
            size = moment_size(self.n, model_share(self.shares), self.unit_noise)
            # Sparse rows of so few columns that one moment is best are treated as dense ones.
            self.stay_sparse = min(size, FEWEST_KEPT) < self.d
            self.screened = min(ONE_MOMENT * size, MOST_DENSE) < self.d

    def _find_places(self):
        """Find columns, and targets that are learnt, in one search of both.

        Columns of rows that stay sparse are taken about 0. If rows hardly suffice for scales, and
        no targets are searched for, the search has up to twice its budget; far too few rows find
        nothing anyway.
        """
        self.columns = self.targets = None
        if not self.learns:
            return
        with_targets = self.estimator._y_numeric and not self.stay_sparse
        query = self.ask.places() if with_targets else self.ask.columns()
        centered = self.estimator.fit_intercept and not self.stay_sparse
        parts = [self.shares[name] for name in ("columns", "target_bounds")[: 1 + with_targets]]
        if centered and self.n is None:
            self.n, parts = count_rows(query, parts)
        default_split = self.estimator.budget_split == "auto"
        if centered and not with_targets and default_split:
            shortage = rows_for_scales(self.d, self.unit_noise / math.sqrt(parts[0])) / self.n
            extra = parts[0] * min(max(shortage**2 - 1, 0.0), 1.0) * (shortage < 2.5)
            parts[0] += extra
            self.shares["regression_moments"] -= extra
        sizes = (self.d, self.q)[: len(parts)]
        near, ends = np.ones(sum(sizes)), np.abs(self.public_units.bounds())
        if self.estimator.bounds is not None:
            near[: self.d] = np.clip(ends.max(axis=0) / _CUT, SMALLEST, 1 / SMALLEST)
        how = {"centered": centered, "near": near}
        self.columns, *targets = find_kinds(query, sizes, parts, self.n, **how)
        self.targets = targets[0] if targets else None

    def _choose_units(self):
        """Choose the unit and the bounds of each column; later queries use these units.

        There are two pairs of bounds if predictions with the wider one may be better; a last
        release decides.
        """
        over = 1.0
        if not self.exact:
            over = max(over, _LOOSE * (self.n or 0) / (self.d * self.session.noise_multiplier))
        self.wider = over**0.125
        self.units, self.cuts, self.cuts_share = self.public_units, [self.public_units], 0.0
        if self.learns:
            # With linear tails a fit of many rows would lose .02 without the factor.
            cut, targets = _CUT * min(over**0.25, 1.2), self.targets
            if targets is not None:  # entries of sparse columns lie farther than deviations
                longest = max(_MEDIAN_NORM * math.sqrt(self.d) / cut, 1.0)
                cut = cut * np.clip(1 / np.sqrt(self.columns.filled), 1.0, longest)
            cuts = [cut]
            if over > 4 and targets is not None and not most_undetected(targets):
                wide, rare = cut * math.sqrt(over), cut**2 * self.columns.filled < 1
                cuts = [np.where(rare, wide, cut), wide]  # usual entries of rare dummies lie beyond
            ends = (np.broadcast_to(each, self.d) for each in cuts)
            self.units, *self.cuts = map(self._learnt_units, (cuts[-1], *ends))
            differ = np.ptp([cut.high - cut.low for cut in self.cuts], axis=0).any()
            self.cuts_share = differ * self.shares["clip_norm"] / 3
        if self.learns or self.estimator.bounds is not None:
            in_units = self.ask.measured if self.learns and self.stay_sparse else self.ask.scaled
            self.ask = in_units(self.units)

    def _learnt_units(self, cut):
        """Return the centre and about the deviation of each column, within public bounds if given.

        Noise is the same on all columns, so they should have equal norms. A column whose centre
        lies out of its bounds was not found: it gets their middle, and the deviation of a uniform
        distribution in them.
        """
        columns, public = self.columns, self.public_units
        if self.stay_sparse:
            size, common_deviation = columns.units()
            return RowScale(public.center, size, -cut * common_deviation, cut * common_deviation)
        if self.estimator.bounds is None:
            return RowScale(columns.center, columns.deviation, -cut, cut)
        low, high = public.bounds()
        located = (low <= columns.center) & (columns.center <= high)
        center = np.where(located, columns.center, public.center)
        farthest = np.maximum(high - center, center - low)
        size = np.where(located, columns.deviation, farthest / math.sqrt(3))
        size = np.minimum(size, farthest)
        low, high = np.maximum((low - center) / size, -cut), np.minimum((high - center) / size, cut)
        return RowScale(center, size, low, high)

    def _choose_search(self):
        """Return whether to search for a clip norm; if not, the moment gets its budget.

        Where most columns have their deviations as units, the median norm follows from their
        number.
        """
        self.norm_share = (self.shares["clip_norm"] - self.cuts_share) / (2 if self.screened else 1)
        found = self.learns and 2 * np.count_nonzero(self.columns.found) > self.d
        if found and not self.stay_sparse:
            self.shares["regression_moments"] += self.norm_share
            return False
        return True

    def _clip_norm(self, share):
        """Return `wider` times about the median norm, or a given number if that is smaller.

        Without a budget nothing is released. A given number close to the result of the search is
        kept. Rows within the bounds are not longer.
        """
        units, root_d = self.units, math.sqrt(self.d)
        learnt = self.estimator.clip_norm == "auto"
        given = _MEDIAN_NORM * root_d * self.wider if learnt else float(self.estimator.clip_norm)
        if share:
            search_arguments = self.session, self.ask.lengths(), share, root_d
            median = base.clip_norm_of(self.estimator, *search_arguments)
            if not learnt and median > 2 * given and self.estimator._y_numeric:
                said = f"{type(self.estimator).__name__} gives most records a small weight: row"
                said += f" norms are about {median:.2g}, and clip_norm={given:g}. Use 'auto'."
                warn_caller(said, PartialSignalWarning)
            found = self.wider * median
            given = found if learnt or found < _SEARCH_ERROR * given else given
        farthest = np.broadcast_to(np.maximum(-units.low, units.high), units.size.shape)
        return min(given, float(np.linalg.norm(farthest)))

    def _screening(self, clip_norm):
        """Release products, and the moments of the columns and directions that they select."""
        # The search may be half a log2 bin too high, which increases the noise. A smaller norm
        # reduces the signal of long rows as much as the noise.
        length, share = _SEARCH_ERROR * clip_norm, self.shares["regression_moments"]
        kept, known = self._directions(length, moment_size(self.n, share, self.unit_noise))
        self.ask = self.ask.selected(kept)
        return kept, self._moments(length, share)._replace(**known)

    def _all_columns(self, clip_norm):
        """Release the moments of all columns; of none if no columns and no norms were found.

        Without a search, rows of far larger norm would have no weight, and their targets would be
        lost. Classes differ by their means: products with codes have most of the budget. Not under
        replace, where they cost twice as much, as the row of a record may be opposite.
        """
        share, kept = self.shares["regression_moments"] + self.shares.get("sums", 0.0), self.d
        guessed = self.learns and not self.stay_sparse
        if guessed and self.session.observer.rows_needed:
            kept, self.ask = 0, self.ask.selected(np.arange(0))
        joint = self.estimator._y_numeric or self.estimator.adjacency == "replace"
        part = 0.0 if joint else _SUMS[not self.estimator._y_numeric]
        return np.arange(kept), self._moments(clip_norm, share, part)

    def _directions(self, clip_norm, size):
        """Release the products of all columns with the targets, and the scale of rows along them.

        Return the columns with the largest, directions of about the norm of the bias, and facts on
        these. At `_FEWEST_KEPT` columns none is kept, because they add more noise than signal.
        Dense rows may lie far from 0, so a search finds their centre along the directions.
        """
        bias = _BIAS[0] * clip_norm  # smaller than the targets: sums tolerate more noise
        answer = self.ask.within(clip_norm, self.scale)
        answer = answer.products(bias, clip_norm, share=self.shares["sums"])
        public = float(self.estimator.alpha), bias, clip_norm, self.estimator.fit_intercept
        found = product_directions(answer.value, answer.noise_scale, *public)
        size *= size > _FEWEST_KEPT
        order, empty, near = np.argsort(-found.contrasts, kind="stable"), np.arange(0), found.near
        if self.dense and self.estimator.fit_intercept:
            along = self.ask.selected(Mapped(empty, found.basis, np.zeros_like(found.center)))
            (located,) = find_kinds(along.columns(), [len(near)], [self.norm_share], self.n)
            center = np.where(located.found, located.center, found.center)
            length = float(np.linalg.norm(np.where(located.found, located.deviation, near)))
        else:
            center, near = found.center, float(np.linalg.norm(near))
            ranks = self.ask.selected(Mapped(empty, found.basis, center)).lengths().kept_below
            length = find_between(ranks, (near / 2, 16 * near), 4, self.norm_share)
        unit = _BIAS[not self.estimator._y_numeric] * clip_norm / length
        facts = {"share": found.share, "directions": found.along}
        facts["chance"] = found.chance * unit / self.scale.size
        return Mapped(np.sort(order[:size]), found.basis * unit, center * unit), facts

    def _moments(self, clip_norm, share, part=0.0):
        """Release the moments of records; return them in units of the data.

        Products with codes may have a part of the budget to themselves; the rest is the rows' own.
        Codes of K classes, of norm t about their mean, next to c = t / (K - 1)^.5 are vectors of
        norm T = (t^2 + c^2)^.5 along K axes (of two, (-t, c) and (t, c)). So the noise of
        [X, c]'[V, c], which is U T, is U on the sums of each class: what one record adds to them.
        """
        scale, length = self.scale, clip_norm if math.isfinite(clip_norm) else 1.0
        bias = self.estimator._releases_sums() * _BIAS[not self.estimator._y_numeric] * length
        ask, codes = self.ask.within(clip_norm, scale), None
        target = _TARGET * math.hypot(length, bias)
        if part:
            target = (bias or length) * math.sqrt(max(1, self.q - 1))
            codes = ask.products(bias, target, share=part * share)
        row_constants = (0.0, 0.0) if part else (bias, target)
        answer = ask.regression(*row_constants, share=(1 - part) * share)
        longest = target if np.isfinite(scale.high - scale.low).all() else math.inf
        public = {"bias": bias, "clip_norm": clip_norm, "target_norm": longest, "products": codes}
        return normal_equations(answer.value, answer.noise_scale, scale.size / target, **public)


class LinearBase(GroupUnitMixin, base.BaseDPEstimator):
    """A linear model from one release of its second moments."""

    def _check_parameters(self):
        self._check_unit()
        _validation.check_real(self, "alpha", 0, math.inf, closed="left")
        _validation.check_bool(self, "fit_intercept")
        _validation.check_clip_norm(self)
        if self.bounds is not None:
            _validation.check_column_bounds(self)

    def _releases_sums(self):
        """Whether sums and totals are released, besides products."""
        return self.fit_intercept or getattr(self, "class_weight", None) is not None

    def _default_shares(self, learns, screened, dense):
        shares = {"regression_moments": 1.0, "clip_norm": 0.05}
        if learns:
            shares["columns"] = 0.1 if screened else 0.2
        if screened:
            # Columns of dense rows have common factors, which products do not distinguish.
            products_share = _SUMS[not (self._y_numeric or dense)]
            shares["sums"] = products_share * (1 - shares.get("columns", 0.0))
        if self._y_numeric:
            shares["target_bounds"] = 0.12
            if self.fit_intercept:
                shares["target_mean"] = 0.04
        shares["regression_moments"] -= math.fsum(shares.values()) - 1.0
        return shares

    def _fitted(self, session, released, solution):
        """Return (coefficients, intercepts) in units of the rows, and what else was learnt.

        Without a `solution`, the map predicts the centre of the targets.
        """
        units, q = released.units, len(released.scale.size)
        coefficients, intercepts = np.zeros((len(units.size), q)), np.zeros(q)
        if solution is not None:
            self._warn_lost_signal(solution)
            found, intercepts, kept = solution.coefficients, solution.intercepts, released.kept
            if isinstance(kept, Mapped):
                kept, found, along = kept.places, *np.split(found, [len(kept.places)])
                coefficients = released.kept.directions @ along
                intercepts = intercepts - released.kept.center @ along
            coefficients[kept] += found
        coefficients = coefficients / units.size[:, None]
        intercepts = intercepts - units.center @ coefficients
        cut = released.choose(coefficients, intercepts)
        session.charge_unused()  # what is spent must not reveal that targets were not located
        attributes = {"clip_norm_": released.clip_norm, "feature_bounds_": cut.bounds()}
        attributes |= {"center_": units.center, "scale_": units.size}
        return coefficients, intercepts, attributes

    def _public_units(self, d):
        """Return centre and unit of each column, from `bounds` if there are any."""
        if self.bounds is None:
            return RowScale(np.zeros(d), np.ones(d), -math.inf, math.inf)
        low, high = _validation.column_bounds(self, d, _validation.feature_names(self))
        center, size = _validation.middle_and_radius(low, high, centered=self.fit_intercept)
        return RowScale(center, size, (low - center) / size, (high - center) / size)

    def _warn_lost_signal(self, solution):
        """Warn that a regression may be noise, or may have lost much; from released numbers."""
        seen, lost = solution.above_noise, float(np.mean(solution.lost))
        if seen.all() and lost <= _LOST_VARIANCE:
            return
        said = f"may miss up to {min(lost, 1.0):.0%} of the variance that a linear model explains"
        if not seen.all():
            what = "targets" if self._y_numeric or len(seen) == 1 else "classes"
            of = base.listed(self, ~seen, what)
            said = f"may have learnt nothing about {of}: noise and chance could explain the result"
        check = base.check_given(self)
        if getattr(self, "classes", None) is not None:
            check += " Labels outside 'classes' do not count: check their spelling."
        warn_caller(
            f"{type(self).__name__} {said}. Use more {base.units_of(self, 'records')}, a larger "
            f"'epsilon' or fewer columns; plan() estimates how many are needed.{check}",
            PartialSignalWarning if seen.any() else NoSignalWarning,
        )

    def _linear(self, X, finish, n_columns, dtype=None):
        """Return ``finish(linear predictor)`` of each row, for blocks where they are."""
        return mapped(self, X, self._predictor(finish), n_columns, dtype)

    def _predictor(self, finish, product=operator.matmul):
        cut = self.feature_bounds_ if np.isfinite(self.feature_bounds_).any() else None
        longest = math.inf if cut else _LONGEST * self.clip_norm_
        return LinearPredictor(self.coef_, self.intercept_, finish, cut, longest, product)


class LinearPredictor(NamedTuple):
    """The public map of `predict`; it holds no reference to the estimator."""

    coef: np.ndarray
    intercept: Any
    finish: Callable
    cut: tuple[np.ndarray, np.ndarray] | None = None
    longest: float = math.inf
    product: Callable = operator.matmul

    def __call__(self, X):
        """Predict clipped rows; those of another dtype than float32 in float64."""
        X = canonical(X) if sp.issparse(X) else X
        X = X if X.dtype in _validation.FLOATS else X.astype(np.float64)
        if self.cut is not None:
            with np.errstate(over="ignore"):  # beyond the largest float32 nothing is cut
                low, high = (end.astype(X.dtype) for end in self.cut)
            if sp.issparse(X) and (low <= 0).all() and (high >= 0).all():  # zeros stay zeros
                data = np.clip(X.data, low[X.indices], high[X.indices])
                X = sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
            else:
                X = np.clip(X.toarray() if sp.issparse(X) else X, low, high)
        if math.isfinite(self.longest):
            short = self.longest / np.maximum(row_norms(X), self.longest)
            X = scale_rows(X, short.astype(X.dtype))
        linear = self.product(X, self.coef.T)
        return self.finish((np.asarray(linear) if sp.issparse(X) else linear) + self.intercept)
