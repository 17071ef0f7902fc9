"""What decompositions share: the linear map, routes for row units, the model behind PCA.

A route is chosen from public shapes and parameters, and from released numbers, only.
"""

from __future__ import annotations

import math
from contextvars import ContextVar, copy_context
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from skdp import _validation
from skdp._inputs import advised, mapped, split_rows
from skdp._limits import CLEAR, GRAM_FEATURES, NEGLIGIBLE
from skdp.answer import NOTHING, Answer
from skdp.base import check_given, clip_norm_of, units_of
from skdp.data.products import row_products, saturated
from skdp.exceptions import NoSignalWarning, PartialSignalWarning, warn_caller
from skdp.queries.sums import Neighbours
from skdp.solvers import linalg, postprocess, spectral
from skdp.solvers.median_search import raised_level
from skdp.solvers.verdict import ShareKept, nonnegative, on_their_own, share_kept

# The linear map that decompositions share: transform, inverse_transform, feature names.


_EACH: ContextVar[bool] = ContextVar("skdp_each_by_itself", default=False)


def each_by_itself(transform: Any, X: Any) -> Any:
    """Project the fitted rows so that no bit of a projection depends on other rows.

    A private step behind a model is fitted on the result (see `row_products`).
    """
    context = copy_context()
    context.run(_EACH.set, True)
    return context.run(transform, X)


class LinearTransformMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Project rows on the released components.

    The components are private; rows projected by them are as private as the rows were.
    """

    def transform(self, X: Any) -> Any:
        """Project X on the components.

        The map is public, but its output for private rows is not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), or blocks
            Rows to project.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Projected rows. For a Dask array a lazy Dask array; for a list of files and for a row
            source a generator of arrays, one for each block.
        """
        check_is_fitted(self, "components_")
        scale = self._whitening_scale() if getattr(self, "whiten", False) else None
        project = Projection(self.components_, getattr(self, "mean_", None), scale, _EACH.get())
        return mapped(self, X, project, len(self.components_), accept_sparse=("csr", "csc"))

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the model and project X. The projected private rows are not covered by epsilon.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The private rows.
        y : array-like of shape (n_samples,), default=None
            Private targets, if ``fit`` takes them.
        **fit_params : dict
            Further arguments of ``fit``, for instance ``groups``.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Projected rows.
        """
        return each_by_itself(self.fit(X, y, **fit_params).transform, X)

    def _whitening_scale(self):
        """Return the deviations of the components; the least known one for those that are 0.

        Noise hides these: rows do vary along them, and a division by 0 would make them huge.
        """
        scale = np.sqrt(self.explained_variance_)
        known = scale[scale > np.finfo(scale.dtype).eps]
        return np.maximum(scale, np.min(known) if len(known) else 1.0)

    def inverse_transform(self, X: Any) -> Any:
        """Map projected rows back to the original space.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Projected rows.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            Reconstructed rows.
        """
        check_is_fitted(self, "components_")
        X = advised(self, check_array, X, input_name="X", ensure_min_features=0)
        if getattr(self, "whiten", False):
            X = X * self._whitening_scale()
        original = X @ self.components_
        mean = getattr(self, "mean_", None)
        return original if mean is None else original + mean

    @property
    def _n_features_out(self):
        return self.components_.shape[0]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class Projection(NamedTuple):
    """The linear map of `transform`, for blocks of rows wherever they are."""

    components: np.ndarray
    mean: np.ndarray | None
    scale: np.ndarray | None
    exact: bool = False  # each row from itself alone, bit by bit (scipy does so anyway)

    def __call__(self, X):
        """Project rows; those of another dtype than float32 in float64."""
        X = X if X.dtype in _validation.FLOATS else X.astype(np.float64)
        if not self.exact:
            return self._finished(X @ self.components.T)
        with np.errstate(over="ignore"):  # one row near the largest float stays a finite row
            if is_sparse(X):
                return saturated(self._finished(X @ self.components.T))
            products = row_products(X, self.components.T).astype(X.dtype, copy=False)
            return saturated(self._finished(products))

    def _finished(self, projected):
        if self.mean is not None:
            projected = _in_place(np.subtract, projected, self.mean[None, :] @ self.components.T)
        if self.scale is not None:
            projected = _in_place(np.divide, projected, self.scale)
        return np.asarray(projected)


def _in_place(ufunc, projected, numbers):
    """Apply a function to rows that we own, in place if their dtype allows it."""
    same = np.result_type(projected, numbers) == projected.dtype
    return ufunc(projected, numbers, out=projected if same else None)


def is_sparse(X):
    """Whether X is a scipy sparse matrix or array, or a source of such rows."""
    return sp.issparse(X) or getattr(X, "sparse", False)


def stays_sparse(X):
    """Whether rows are sparse and have so many columns that they are not centred."""
    return is_sparse(X) and X.n_features > spectral.FEWEST_KEPT


def check_center(center, n_features):
    """Return a public centre as a float array of the right length, or None for a string."""
    if isinstance(center, str):
        return None
    center = _validation.public_array("center", center, ensure_2d=False)
    if center.shape != (n_features,):
        raise ValueError(
            "The 'center' parameter must be 'private', 'none' or an array of shape "
            f"({n_features},). Got an array of shape {center.shape} instead."
        )
    return center


def public_range(estimator, d, *, centers):
    """Return a public centre, a guess at the norms and (low, high), as far as they are known.

    If the mean is released (`centers`), the centre is the midpoint of the bounds, otherwise 0.
    Norms of rows are usually far below what bounds allow, so they are searched for in any case.
    """
    if estimator.bounds is None:
        return check_center(estimator.center, d), 1.0, ()
    low, high = _validation.column_bounds(estimator, d, _validation.feature_names(estimator))
    middle, radius = _validation.middle_and_radius(low, high, centered=centers)
    return middle, float(np.linalg.norm(radius)), (low, high)


def warn_of_verdict(estimator, found, asked, kept, chance=0.0, positive=0):
    """Warn if a fit learnt nothing, or could use a part only: see `skdp.solvers.verdict`.

    `asked` is the number of requested components, unless the whole spectrum was requested, a part
    of which is always below the noise. There is no warning either if the components hold most of
    all squares, as the others cannot hold much. Returns whether anything was learnt.
    """
    if estimator.epsilon == math.inf:
        return True
    name = type(estimator).__name__
    least = max(asked, 1) if isinstance(estimator.n_components, Integral) else 1
    # If all together hold clearly more than as many random directions, those with a value above 0
    # are used.
    if chance >= 1.0 or kept.exceeds(chance):
        found = max(found, positive)
    if found >= least or (found and kept.share > _ENOUGH):
        return True
    if not found:
        said = f"{name} learnt nothing from the data: no component exceeds the noise level. Use "
        if estimator._protects.in_rows:
            said += f"more {units_of(estimator)} or a larger 'epsilon'; plan() estimates how many."
        else:
            said += "a larger 'epsilon'; plan() estimates what it gains."
        warn_caller(said + check_given(estimator), NoSignalWarning)
    else:
        said = f"{name} could use only {found} of {asked} components: the others do not "
        said += f"exceed the noise level. Use the first {found} of this fit: a new one with "
        said += f"n_components={found} would spend another budget, and may find fewer."
        warn_caller(said, PartialSignalWarning)
    return bool(found)


def found_of(values):
    """Return how many values are above 0, how many there are, and an empty `ShareKept`."""
    return int(np.count_nonzero(values)), len(values), ShareKept(0.0, 0.0)


def warn_of_found(estimator, found, ratios):
    """Warn of how many components of a whole spectrum exceed the noise."""
    warn_of_verdict(estimator, found, len(ratios), ShareKept(float(ratios.sum()), 0.0))


def with_learnt(shares, learnt=None):
    """Return budget fractions after those of a clip norm, or of `learnt`, are taken off."""
    if learnt is None:
        about_mean = {"clip_norm": 0.06, "center_search": 0.05}
        learnt = about_mean if "center" in shares else {"clip_norm": 0.07}
    scale = (1 - math.fsum(learnt.values())) / math.fsum(shares.values())
    return {name: scale * share for name, share in shares.items()} | learnt


# What the spectral estimators share: routes for row units.
#
# A route is chosen from public shapes and parameters, and from released numbers, only.


_ENOUGH = 0.75  # of all squares: components that hold more cause no warning
RAISING = 0.2  # of the share of a clip norm, for how far above the median it should be
_BIAS = 0.5  # of the clip norm: balances the noise of the mean against that of the moment
SPECTRUM_LEVEL = 3.0  # clips few rows: eigenvalues matter as much as directions


def row_route(name, d, k, sparse, *, centred=True):
    """Return "gram", "power" or "screened" for a solver name of ours or of scikit-learn.

    Sums show the largest columns of sparse rows, and of dense rows of one sign, but not of rows
    that may be centred.
    """
    if name in ("gram", "power", "screened"):
        return name
    if name == "randomized":
        return "power"
    least = GRAM_FEATURES if centred else spectral.FEWEST_KEPT  # screening keeps so many at least
    if name == "auto" and sparse and d > max(4 * k, least):
        return "screened"
    return "power" if name == "auto" and d > GRAM_FEATURES else "gram"


def row_clip_norm(estimator, session, ask, share, d, *, level=spectral.DIRECTION_LEVEL, near=1.0):
    """Return the clip norm of some rows: learnt from the median of their norms upwards.

    About `level` noise scales of a d x d moment is the number of rows that may be clipped; `near`
    is a public guess. A given number is the largest.
    """
    largest = math.inf if estimator.clip_norm == "auto" else float(estimator.clip_norm)
    median = min(clip_norm_of(estimator, session, ask, (1 - RAISING) * share, near), largest)
    raised = lengthened(session, ask, median, RAISING * share, d, level=level) if share else median
    return min(raised, largest)


def lengthened(session, ask, median, share, d, *, level):
    """Return a clip norm, from a median of norms upwards, that clips as few rows as noise hides.

    These are `level` noise deviations of a d x d moment.
    """
    if session.budget.exact:
        return median
    goal = level * session.noise_multiplier * math.sqrt(2 * d)
    return raised_level(ask.norms_above, median, goal, share)


def bias_of(clip_norm):
    """Return the value of the bias column, if a moment gives the mean too."""
    return _BIAS * clip_norm if math.isfinite(clip_norm) else 1.0


def row_noise(session, ask, n, clip_norm, share):
    """Return public facts on the noise of a fit to rows.

    If their number is private (n is None), it is released with the `share`.
    """
    n, n_noise = (n, 0.0) if n is not None else ask.count(share=share)
    multiplier, neighbours = session.noise_multiplier, Neighbours(session.adjacency)
    psd, rect = neighbours.positive(multiplier), neighbours.array(multiplier)
    n = postprocess.released_count(n, n_noise)
    return spectral.RowNoise(psd, rect, n, clip_norm, n_noise)


def default_oversamples(k):
    """Return how many columns beyond k are multiplied by default: k, and ten at most."""
    return min(k, 10)


def row_subspace(
    session, ask, route, d, k, shares, noise,
    *, n_iter, n_oversamples, sums=NOTHING, alone=False,
):  # fmt: skip
    """Return the leading subspace (d x k) by a route.

    Also return column sums (given, or released by the route), and what a whole moment shows, or
    sums that may stand `alone` (None if there is neither).
    """
    share = shares["subspace"]
    if route == "gram":
        share += shares["spectrum"]  # the moment itself shows what directions hold
        found, share = spectral.by_sums(ask, sums, d, k, share, noise) if alone else (None, share)
        if found:
            return found
        V, shown = spectral.gram_subspace(ask, d, k, share, noise)
        return V, sums, shown
    if route == "screened" and noise.psd:
        spare = shares["spectrum"] * alone
        return spectral.screened_subspace(ask, d, k, share, noise, spare)
    extra = default_oversamples(k) if n_oversamples == "auto" else n_oversamples
    start, each = session.random_signs((d, min(d, k + extra))), NEGLIGIBLE * share
    if sums.noise_scale:  # columns of one sign have their mean near the first direction
        start[:, 0] = spectral.about_common(*sums)
    if session.budget.exact:
        V = linalg.leading_eigenvectors(lambda Q: ask.gram_product(Q, share=each).value, start, k)
    else:
        steps = 4 if n_iter == "auto" else max(n_iter, 1)  # the last one gets half
        shares = [share / (2 * max(steps - 1, 1))] * (steps - 1) + [share / min(steps, 2)]
        V = spectral.power_subspace(ask, start, k, shares, noise)
    return V, sums, None


class Ritz(NamedTuple):
    """Eigenvalues in a public subspace.

    Attributes
    ----------
    values : ndarray
        Not negative; their sum is the unbiased estimate of the variance in the subspace.
    vectors : ndarray
        Their vectors, in the subspace.
    held : Answer
        That estimate, and its noise.
    edge : float
        The largest value that noise alone makes.
    """

    values: Any
    vectors: Any
    held: Answer
    edge: float


def rotated(answer, V, k=None):
    """Rotate a subspace by a moment in it, and keep k leading vectors."""
    values, Q = linalg.top_eigenpairs((answer.value + answer.value.T) / 2)
    return ritz_of(values[:k], V @ Q[:, :k], answer.noise_scale)


def held_by(estimator, ask, V, shares, shown, bias=NOTHING, beyond=0.0, added=(0.0, 0.0)):
    """Return Ritz values and vectors of a subspace, and the total of all rows; warn if needed.

    `shown` is the moment in the subspace, if a moment of these rows (perhaps with a smaller clip
    norm) was released before; otherwise it is released here. The sum of squares of the rows of
    `ask` is too large by `beyond`. Public numbers are `added` to the moment in the subspace and to
    the total.
    """
    fresh = shown is None
    inside = ask.projected_gram(V, share=shares["spectrum"]) if fresh else shown.inside
    trace = ask.square_sum(share=shares["total_variance"]).plus(-beyond - added[1])
    known = trace if fresh or shown.total is None else shown.total.plus(-added[1])
    inside, total = inside.plus(-added[0]), known
    least = max(float(total.value), total.noise_scale, 1e-300)
    ratio = max(1.0, float(trace.value) / least)
    # Clipped rows have less of the bias: by a ratio that noise of the total does not explain.
    least_ratio = max(1.0, float(trace.value - CLEAR * trace.noise_scale) / least)
    bias = Answer(bias.value / least_ratio, bias.noise_scale / least_ratio)
    inside, total, bias = (
        Answer(ratio * x.value + offset, ratio * x.noise_scale)
        for x, offset in ((inside, added[0]), (total, added[1]), (bias, 0.0))
    )
    ritz = rotated(inside, V)
    verdict = verdict_of_ritz(ritz, total, len(V), shown and shown.shares, bias)
    return ritz.values * warn_of_verdict(estimator, *verdict), ritz.vectors, total


def ritz_of(values, vectors, noise_scale):
    """Return the eigenvalues in a subspace from its noisy Ritz values, descending."""
    k = len(values)
    edge = linalg.detection_limit(linalg.symmetric_noise_edge(noise_scale, k), k)
    return Ritz(nonnegative(values), vectors, Answer(values.sum(), noise_scale * k**0.5), edge)


def verdict_of_ritz(ritz, total, d, shown=None, bias=NOTHING):
    """Return the arguments of `warn_of_verdict`, from a subspace and the total of all d columns.

    `shown`: the fractions shown by the moment that it came from. Without these, each value must
    exceed what a random direction holds. `bias` is what the error of a mean adds.
    """
    k, trace = len(ritz.values), float(total.value)
    if shown is None:
        excess = ritz.values - max(trace, 0.0) / d
        shown = np.where(excess > ritz.edge, excess / max(trace, ritz.edge, 1e-300), 0.0)
    held = ritz.held.value - bias.value, math.hypot(ritz.held.noise_scale, bias.noise_scale)
    kept = share_kept(Answer(*held), total._replace(value=trace - bias.value))
    found = on_their_own(shown, total, bias)
    # A direction is used if it holds clearly more than the mean of those after it.
    after = np.maximum(trace - np.cumsum(ritz.values), 0.0) / np.maximum(d - np.arange(k) - 1, 1)
    clear = ritz.values - after > CLEAR * ritz.held.noise_scale / math.sqrt(k)
    return found, k, kept, k / d, int(np.count_nonzero(clear))


def check_iteration(estimator):
    """Check the normaliser, which must give the iterate a bounded norm, and the tolerance."""
    _validation.check_option(estimator, "power_iteration_normalizer", ("auto", "QR", "LU", "none"))
    value = estimator.power_iteration_normalizer
    if value in ("LU", "none"):
        raise ValueError(
            f"power_iteration_normalizer={value!r} has no bounded sensitivity; use 'QR' or 'auto'. "
            f"Got {value!r}."
        )
    _validation.check_real(estimator, "tol", 0, math.inf, closed="left")


# The probabilistic model behind PCA, from released values only.


class ProbabilisticModelMixin:
    """Covariance, precision, likelihoods and synthetic rows of a fitted PCA."""

    def get_covariance(self) -> Any:
        """Return the covariance of the probabilistic model.

        Returns
        -------
        cov : ndarray of shape (n_features, n_features)
            Covariance, from released values.
        """
        check_is_fitted(self)
        return postprocess.model_covariance(*self._model())

    def get_precision(self) -> Any:
        """Return the inverse of the model's covariance.

        Returns
        -------
        precision : ndarray of shape (n_features, n_features)
            Precision, from released values.
        """
        check_is_fitted(self)
        return postprocess.model_precision(*self._model())

    def _model(self, *, scaled=True):
        components = self.components_
        if self.whiten and scaled:  # scikit-learn scales the axes of a whitened model, and so do we
            components = components * np.sqrt(self.explained_variance_)[:, None]
        return components, self.explained_variance_, self.noise_variance_

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """Draw synthetic rows from the released model. They cost no budget and may be published.

        Rows are normal with the released mean and covariance, truncated to public `bounds` if
        given. They have means, variances and correlations, but no clusters, no skew and no other
        dependence. Fit one model for each class to distinguish classes.

        Parameters
        ----------
        n_samples : int, default=1
            Number of rows; `n_samples_` is the released number of private ones.
        random_state : int, Generator or None, default=None
            Seed of the draws. It does not weaken the guarantee, which covers the released model.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Synthetic rows.

        Examples
        --------
        >>> import numpy as np
        >>> from skdp import DPPCA
        >>> X = np.random.default_rng(0).uniform(0, 1, (5000, 3))
        >>> pca = DPPCA(epsilon=1.0, bounds=(0, 1)).fit(X)
        >>> pca.sample(4, random_state=0).shape
        (4, 3)
        """
        check_is_fitted(self)
        _validation.check_count("n_samples", n_samples, 1)
        rng = np.random.default_rng(random_state)
        components, variances, noise = self._model(scaled=False)
        excess = np.sqrt(np.maximum(variances - noise, 0.0))
        inside = rng.standard_normal((n_samples, len(components))) * excess @ components
        outside = np.sqrt(noise) * rng.standard_normal((n_samples, components.shape[1]))
        rows = self.mean_ + inside + outside
        if getattr(self, "bounds", None) is not None:
            names = getattr(self, "feature_names_in_", None)
            rows = np.clip(rows, *_validation.column_bounds(self, rows.shape[1], names))
        return rows.astype(self.components_.dtype, copy=False)

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row; for private rows it is not covered by epsilon.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score.

        Returns
        -------
        ll : ndarray of shape (n_samples,)
            Log-likelihood of each row; -inf with all components, if a released variance is 0.
        """
        check_is_fitted(self)
        X, _ = split_rows(self, X, None, reset=False)
        centred, precision = X - self.mean_, self.get_precision()
        quadratic = np.einsum("ij,ij->i", centred, centred @ precision)
        log_det = float(np.linalg.slogdet(precision)[1])
        return -0.5 * (quadratic + X.shape[1] * math.log(2.0 * math.pi) - log_det)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood; on private rows it is not covered by epsilon.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows to score.
        y : Ignored
            Not used.

        Returns
        -------
        ll : float
            Mean log-likelihood.
        """
        return float(np.mean(self.score_samples(X)))
