"""Ridge regression with differential privacy."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import as_columns, float_dtype, n_columns
from skdp._limits import CLEAR, DEVIATION
from skdp._validation import ColumnBounds, Seed, Split, check_range, target_bounds
from skdp.answer import Answer
from skdp.base import atomic, warn_undetected_columns
from skdp.data.products import in_dtype
from skdp.data.views import RecordForm, TargetScale
from skdp.exceptions import NoSignalWarning
from skdp.regression import _linear
from skdp.regression._plans import RidgePlans
from skdp.regression._scores import ScoredRegressorMixin
from skdp.solvers.columns import find_columns
from skdp.solvers.linear_regression import solve_normal_equations, steadied
from skdp.solvers.median_search import lowest_level
from skdp.solvers.postprocess import denoised

# Scales from the median at which targets may be cut; directions whose noise counts in a fit of all
# columns, which shrinks what is below the noise.
_CUTS, _DIRECTIONS = (2.0, 3.0, 4.5, 7.0, 10.0, 16.0, 32.0, 64.0), 12


# Location of the targets: a search that may take from the budget of the model.


def find_targets(found, ask, share, model_budget, given, centered):
    """Search until most targets are located; return them, the fraction spent, and what remains.

    `found` is the result of a first search with `share`. If most targets were not located, a model
    would be worse than their mean, so a second search covers a wider range. With enough records it
    takes half of `model_budget` and starts from the range of the first, with few 3/4 of it. If it
    locates most targets of enough records, or if these need no centre (not `centered`: there is no
    intercept), the model has the remainder. Else a released mean has it, and is predicted alone.
    Without an intercept and with few records there is no second search. With few groups, it is made
    about their means, which vary less. `needed` is that of the first. All of it lies within public
    bounds, if these are `given`.
    """
    needed, many = found.needed, found.needed <= found.n
    if not _linear.most_undetected(found) or not (centered or many):
        return found, share, model_budget
    share = (0.5 if many else 0.75) * model_budget
    model_budget -= share
    ask = ask if many else ask.of_group_means()
    how = {"centered": centered, "far": True, "within": found.within if many else None}
    found = find_columns(ask.targets(), len(found.center), share, found.n, **how)
    if many and not (centered and _linear.most_undetected(found)):
        return found, share, model_budget
    radius = found.mean_radius(found.sums_noise(model_budget / share))
    scale = target_scale(found, radius, given, centered=True)
    bounded = found._replace(found=found.found | (given is not None))
    mean_arguments = ask.within(math.inf, scale), scale, bounded, None, found.n
    origin = 0.0 if given is None else given.nearest
    reference = np.clip(found.center + origin, scale.low, scale.high)
    center = reference + denoised(*target_mean(*mean_arguments, reference, model_budget)) - origin
    return found._replace(center=center, needed=needed), share, 0.0


def kept_share(share, remaining, total):
    """Return the share of a reduced total: unchanged, but at most half of what remains."""
    return min(share, max(remaining / 2, share * remaining / total))


def left_for_model(shares, remaining):
    """Return the budget fractions, with that of the model reduced to what remains."""
    mean, total = shares.get("target_mean", 0.0), _linear.model_share(shares)
    mean_share = kept_share(mean, remaining, total)
    factor = (remaining - mean_share) / (total - mean)
    model = (name for name in ("regression_moments", "sums") if name in shares)
    reduced = {name: factor * shares[name] for name in model}
    return shares | reduced | {"target_mean": mean_share}


def target_scale(columns, radius, given=None, *, centered):
    """Return the bounds of the targets about their centres, within given ones that hold these."""
    center = columns.center if given is None else columns.center + given.nearest
    low, high = center - radius, center + radius
    if given is not None:
        low, high = np.maximum(low, given.low), np.minimum(high, given.high)
        low, high = np.where(low < high, (low, high), (given.low, given.high))
    return TargetScale.in_box(low, high, centered=centered)


def target_mean(ask, scale, columns, moments, n, about, share):
    """Return the mean of the targets under wider bounds, weighted as in the moments, and its noise.

    For one number the noise allows wider bounds than for d products with columns, so that
    predictions of skewed targets keep their total. The weights are those of the moments; with
    others, the part of longer rows would count twice. The total weight is `n`, unless the moments
    clearly differ from it. Without a scale of the targets there is no such mean.
    """
    if moments:
        n += float(denoised(moments.weight - n, math.sqrt(2) * moments.noise / moments.bias**2))
    sums, unit = ask.target_sums(moments.bias if moments else 0.0, share=share), scale.size / n
    half = scale.size / math.sqrt(len(scale.size))
    noise = np.where(columns.found, unit * sums.noise_scale, math.inf)
    return Answer(scale.center - about + np.clip(unit * sums.value, -half, half), noise)


class DPRidge(MultiOutputMixin, ScoredRegressorMixin, RidgePlans, _linear.LinearBase):
    """Linear least squares with (epsilon, delta)-differential privacy for one record (x, y).

    The fitted attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) one row of X together with its targets, or all rows of one
    person (see `privacy_unit`), whatever the data are: targets are truncated to `target_bounds`,
    and records with rows longer than `clip_norm` have smaller weights. The fit releases the second
    moments of the records once, with noise, and solves for the coefficients. For sparse rows, or
    more than 1500 columns, it first releases the products with the targets; the second moments are
    then those of the columns with the largest products, and of some directions of all columns.
    Not covered: ``predict`` and ``score`` on private rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on the squared norm of the coefficients, as in `sklearn.linear_model.Ridge`.
        Directions that are not clearly above the noise are shrunk further in any case.
    epsilon : float, default=1.0
        Budget of one call of fit; ``inf`` adds no noise (and warns).
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of records.
    clip_norm : float or "auto", default="auto"
        A record whose row is longer has the weight ``(clip_norm / norm)**2``. "auto" spends 20% of
        the budget on a private centre and scale of each column (at most 1500); shifts and units
        then do not matter, and `alpha` applies to scaled columns. A column whose scale was not
        found gets the scale of largest likelihood. Sparse rows of many columns are not centred:
        only columns whose scales clearly differ are rescaled, and 5% of the budget find the median
        norm. A number is an upper bound for rows that are scaled already: with 5% of the budget,
        the fit lowers it to about the median norm, or to a larger norm if the noise allows it.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of records is private too; with "replace" it is public.
    privacy_unit : {"row", "group"}, default="row"
        What is protected: one row, or all rows of one person ("group", see `groups` of ``fit``).
        Then weights follow from the root mean square of the norms of a person's rows.
    group_column : int, str or None, default=None
        The column of X with the person of each row, in place of `groups`. It is not a feature.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which has no penalty.
    target_bounds : (low, high) or "auto", default="auto"
        Public bounds of the targets, as numbers or arrays; targets are truncated to them. 12% of
        the budget find a private centre and scale of each target within these bounds. They also
        find at how many scales targets are truncated: less noise truncates fewer of them. If most
        targets are not found, the search continues with half of the budget of the model or more.
        If it finds them, and records are enough, the model has the rest. Otherwise the fit predicts
        only their mean, and warns.
    bounds : pair, two arrays, list of tuples, dict or None, default=None
        Public bounds of the columns, in the forms of `PublicScaler`; entries are truncated to them.
        With ``clip_norm="auto"``, scales are searched for near them; a column whose centre seems to
        lie outside takes the middle and the width of its bounds. With a number, columns are scaled
        from their bounds to [-1, 1], and `clip_norm` and `alpha` apply to these.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Coefficients; nearly 0 if nothing exceeds the noise, and 0 for columns that were not
        selected.
    intercept_ : float or ndarray of shape (n_targets,)
        Intercept, 0.0 if it is not fitted.
    clip_norm_ : float
        The clip norm that was used: released, at most the given one ("auto": of scaled columns).
    center_, scale_ : ndarray of shape (n_features,)
        What was subtracted from each column, and what it was divided by: 0 and 1, released, or
        from `bounds`.
    feature_bounds_ : tuple of two ndarrays of shape (n_features,)
        Bounds of entries in predictions: 3.5 to 4.2 scales from a released centre (farther if many
        entries are equal), or wider ones if a release shows that they predict clearly better;
        within `bounds`. If they are infinite, rows longer than twice `clip_norm_` are scaled down
        to that norm.
    target_bounds_ : tuple of two ndarrays of shape (n_targets,)
        The bounds that were used: given, or released.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    DPRidgeClassifier : For classes.
    skdp.DPTruncatedSVD : A step before it; fewer features mean less noise.
    sklearn.linear_model.Ridge : The estimator without privacy.

    References
    ----------
    .. [1] Vu, Slavkovic, "Differential privacy for clinical trial data", ICDM Workshops 2009.
    .. [2] Wang, "Revisiting differentially private linear regression", UAI 2018.
    .. [3] Bun, Allez, Bouchaud, Potters, "Rotational invariant estimator for general noisy
       matrices", IEEE Trans. Inf. Theory, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20000, 3))
    >>> y = X @ [1.0, -2.0, 0.0] + 0.1 * rng.standard_normal(20000)
    >>> model = DPRidge(epsilon=1.0, clip_norm=1.8, target_bounds=(-3, 3)).fit(X, y)
    >>> bool(np.linalg.norm(model.coef_ - [1.0, -2.0, 0.0]) < 0.2)
    True
    """

    _y_numeric = True

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        clip_norm: float | str = "auto",
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        group_column: Any = None,
        fit_intercept: bool = True,
        target_bounds: ArrayLike | str = "auto",
        bounds: ColumnBounds | None = None,
        budget_split: Split = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.privacy_unit = privacy_unit
        self.group_column = group_column
        self.bounds = bounds
        self.budget_split = budget_split
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the model; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            The private rows; blocks are a memory map, a list of npy or npz files, a Dask array or
            `DaskRows` of files.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            The private targets, in the order of the rows; next to Dask rows also a Dask array in
            the same blocks.
        groups : array-like of shape (n_samples,), default=None
            The person of each row, for ``privacy_unit="group"``.

        Returns
        -------
        self : DPRidge
            The fitted estimator.
        """
        self._check_parameters()
        session = self._open_session()
        placed = self._checked_records(X, y, groups, numbers=True)
        return self._close_session(session, self._fit_session(session, placed))

    def _check_parameters(self):
        check_range(self)
        return super()._check_parameters()

    def _fit_session(self, session, placed):
        """Make all releases; the records are read by the session alone."""
        q = n_columns(placed.columns["y"])
        bounds = target_bounds(self, q)
        scale = bounds and TargetScale.in_box(*bounds, centered=self.fit_intercept)
        form = RecordForm(as_columns, q)
        released = _linear.Releases(self, session, placed, form, scale).make()
        moments = released.moments and steadied(released.moments, released.mean)
        solution = moments and solve_normal_equations(moments, float(self.alpha))
        W, b, attributes = self._fitted(session, released, solution)
        single = q == 1  # a column counts as one target, as in scikit-learn
        intercept = b + released.scale.center if self.fit_intercept else np.zeros_like(b)
        return attributes | {
            "coef_": in_dtype(W[:, 0] if single else W.T, float_dtype(placed.rows)),
            "intercept_": float(intercept[0]) if single else intercept,
            "target_bounds_": (released.scale.low, released.scale.high),
        }

    def _target_scale(self, fit):
        """Return learnt bounds about the medians of the targets (about 0 without an intercept).

        They were found with the columns, or are searched for here. They lie within public ones, if
        these are given; targets are measured from the point of these that is nearest to 0. About
        as many targets lie beyond them as the noise of products with d columns amounts to: a wider
        cut adds as much noise as it takes away bias. Also return the budget fractions that remain,
        or None, and wider bounds, of the mean: the norm of a row of d columns is about sqrt(d), so
        products with targets have about d times the noise of sums.
        """
        shares, given, centered = fit.shares, fit.scale, self.fit_intercept
        share, whole = shares["target_bounds"], _linear.model_share(shares) + fit.tail_share
        if fit.exact:
            return given or TargetScale.in_ball(math.inf, fit.q), shares, None
        found = fit.targets or find_columns(
            fit.ask.targets(), fit.q, share, fit.n, centered=centered
        )
        columns, share, rest = find_targets(found, fit.ask, share, whole, given, centered)
        remedy = "'target_bounds'" if given is None else "'target_bounds' close to the targets"
        words = {"needed": columns.needed, "remedy": remedy, "of": "targets"}
        if not rest:
            none, words["category"] = np.ones(fit.q, bool), NoSignalWarning
            outcome = "so that all predictions are one released number"
            warn_undetected_columns(self, none, outcome=outcome, **words)
            scale = given or target_scale(columns, columns.scale, centered=True)
            center = columns.center + (0.0 if given is None else given.nearest)
            return scale._replace(center=center), None, None
        if given is None:
            warn_undetected_columns(self, ~columns.located, outcome="and used a guess", **words)
        tail_share = kept_share(fit.tail_share, rest, whole)
        left = left_for_model(shares, rest - tail_share)
        part = max(left["regression_moments"], shares["target_bounds"]) / share
        d = fit.d if fit.screened else min(fit.d, _DIRECTIONS)
        search = d * columns.sums_noise(part), tail_share / fit.q, CLEAR
        radius = np.empty(fit.q)
        for i, scale in enumerate(columns.scale):
            far = fit.ask.target_distances(i, float(columns.center[i])).above
            radius[i] = lowest_level(far, scale * np.array(_CUTS), *search)
        scale = target_scale(columns, radius, given, centered=centered)
        if not centered:
            return scale, left, None
        usual = columns.mean_radius(columns.sums_noise(left["target_mean"] / share))
        wide = target_scale(columns, np.maximum(radius, usual), given, centered=True)
        return scale, left, (wide, columns)

    def _with_mean(self, fit, moments, wider, targets):
        """Release the mean of the targets under wider bounds; the moments know their variance."""
        mean_arguments = fit.ask.within(moments.clip_norm, wider), wider, targets, moments, fit.n
        mean = target_mean(*mean_arguments, fit.scale.center, fit.shares["target_mean"])
        half = (fit.scale.high - fit.scale.low) / 2
        spread = np.minimum(DEVIATION * targets.deviation, half)
        return moments._replace(square=spread**2), mean

    def _chosen_cuts(self, fit, wider, coefficients, intercepts):
        """Return the wider bounds if predictions are clearly better with them, else the usual.

        Long rows hardly count in the fit, and only they show whether its slopes hold that far.
        """
        scale, cuts = fit.scale, fit.cuts
        seen = {"center": scale.center, "size": scale.size / _CUTS[0]}
        ask = fit.ask.within(math.inf, (wider[0] if wider else scale)._replace(**seen))
        at_zero = intercepts + scale.center + cuts[0].center @ coefficients
        model = coefficients * cuts[0].size[:, None], at_zero
        gain = ask.gains(tuple(cuts), model).target_sums(0.0, "cut_gain", share=fit.cuts_share)
        return cuts[int(gain.value[0] > CLEAR * gain.noise_scale)]

    def predict(self, X: Any) -> Any:
        """Predict targets; for private rows they are not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows. A Dask array gives a lazy Dask array, a list of files a generator of arrays.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted targets.
        """
        check_is_fitted(self)
        return self._linear(X, np.asarray, None if self.coef_.ndim == 1 else len(self.coef_))
