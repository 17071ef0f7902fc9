"""Checks of measurement matrices, and the row and column biases of a trace regression."""

import math
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_array, check_X_y, validate_data

from skdp import _inputs, _validation
from skdp._limits import CLEAR
from skdp.data.blocks import is_dask_array
from skdp.data.records import MAX_ROWS
from skdp.data.units import in_memory
from skdp.data.views import RecordForm
from skdp.queries.columns import ColumnQuery
from skdp.regression._linear import LinearPredictor
from skdp.solvers.columns import find_center
from skdp.solvers.postprocess import drawn
from skdp.solvers.trace import TraceFacts, median_steps, zero_fit
from skdp.solvers.verdict import calibration
from skdp.solvers.whitening import (
    Means,
    MeansFacts,
    Whitening,
    energies,
    mixing,
    trace_attributes,
    whitening,
)
from skdp.units import unit_of

# Row and column biases in a trace regression of single entries, such as ratings.


# Fraction of the budget of the gradients (or of the initial estimate) for first biases.
_BIAS_SHARE = 0.06
_STEPS = 8  # gradient steps where records are few
# For the release that calibrates predictions, in standard deviations of the targets. _CLIP_NORMS:
# range of the clip norm of its rows; within it, the noise is at most _NOISE_RATIO of the sum of
# squares. _LEAST_CUT: smallest radius at which predictions are clipped.
_CLIP_NORMS, _NOISE_RATIO, _LEAST_CUT = (2.0, 8.0), 0.01, 4.0
_LOW_R2 = 0.1  # a fit that explains less of the variance of the targets warns
_ZERO_COEF = "learnt nothing from the data, and coef_ is zero"
_NO_BETTER = "its predictions are not clearly better than"
_TOO_FEW = "its records are too few for a matrix of this size"


class BiasStage(NamedTuple):
    """The released row and column biases, and the settings of the descent that follows."""

    facts: TraceFacts
    means: Means

    def biases(self):
        """Return the row and the column biases; None if they were not found."""
        return (self.means.rows.means, self.means.columns.means) if self.means.found else None

    def residuals(self, ask):
        """Return the query over records whose targets have the biases subtracted."""
        biases = self.biases()
        return ask if biases is None else ask.about_means(*biases)

    def fit(self, ask):
        """Spend the budget of the matrix on better biases, and return a zero matrix."""
        self.means.release(ask, self.facts.init + self.facts.gradients)
        shape, rank = self.facts.shape, self.facts.rank
        return zero_fit(shape, rank, _TOO_FEW)._replace(noise_sd=self.means.sd)


def first_means(ask, facts, design, centre):
    """Release first row and column biases."""
    rows, columns = energies(design, facts.shape, facts.n)
    settings = MeansFacts(rows, columns, facts.n, centre.value, centre.sd, facts.unit_noise)
    key = "gradients" if facts.gradients else "init"
    share = _BIAS_SHARE * getattr(facts, key)
    stage = BiasStage(facts._replace(**{key: getattr(facts, key) - share}), Means(settings))
    stage.means.release(ask, share)
    return stage


def calibrated(ask, fit, facts, design, stage, centre, share, place):
    """Calibrate a fit on released moments of predictions and targets, and return its attributes.

    The descent assumes that the covariance of X is a product of a row and a column covariance,
    which is wrong for nested factors, correlated rows or few records of large norm. The moments
    show how well the fit predicts, whatever the distribution of X is: coefficients are scaled
    accordingly, or set to zero.
    """
    failure, slope, shift, means = "", 1.0, 0.0, stage and stage.biases()
    residual_sd = fit.noise_sd if math.isfinite(fit.noise_sd) else 0.0
    half_width = math.inf if means or fit.values.any() else 0.0
    if fit.zero_because and not means:
        failure = f"{_ZERO_COEF}: {fit.zero_because}"
    if facts.unit_noise and share and half_width:
        squared = _NOISE_RATIO * facts.n * math.sqrt(share) / facts.unit_noise
        radius = float(np.clip(math.sqrt(squared), *_CLIP_NORMS))
        # After few steps, a matrix has about a third of its degrees of freedom.
        fraction = min(max(facts.max_iter, _STEPS) / (3 * _STEPS), 1.0) * bool(fit.values.any())
        cut, n_free = max(radius, _LEAST_CUT), fraction * facts.tangent_size
        n_free += stage.means.n_free if means else 0.0
        query = ask.tangent(fit.U, np.diag(fit.values), fit.V, fit.intercept)
        centred = centre.sd > 0  # if not, there is no intercept
        unit = centre.sd or fit.target_sd
        moments = query.prediction_moments(unit, cut, radius, share=share)
        slope, shift, r2, mean, sd = calibration(moments, n_free, centred)
        # The median scale of residuals has less noise, and is wrong for tails: so it is
        # cut to the confidence interval that the moments give.
        residual, error = 1.0 - r2.share, CLEAR * r2.standard_error
        squared = np.clip((residual_sd / (unit * sd)) ** 2, residual - error, residual + error)
        residual_sd = unit * sd * math.sqrt(max(float(squared), 0.0))
        if not r2.exceeds(0.0):
            slope, shift, means, residual_sd = 0.0, float(drawn(*mean)[0]), None, unit * sd
            failure = f"{_ZERO_COEF}: {_NO_BETTER} {'the mean of the targets' if centred else 0}"
        elif r2.share < _LOW_R2:
            failure = f"explains little: {r2.share:.0%} of the variance of targets"
        half_width = slope * cut * unit
    location = centre.value + shift * centre.sd
    attributes = trace_attributes(fit, design[:2] if design else (None, None), place.units, means)
    for name in ("coef_", "singular_values_"):
        attributes[name] *= slope
    location_offset = float(place.at @ attributes["coef_"].ravel())
    return attributes | {
        "intercept_": location + slope * facts.bias * fit.intercept - location_offset,
        "prediction_bounds_": np.array([location - half_width, location + half_width]),
        "residual_std_": residual_sd,
        "failure": failure,
    }


# Checks of measurement matrices, which may come as rows, matrices, CSR rows or factors.


def check_measurements(estimator, X, y):
    """Return (records, shape of a matrix): rows of d1 d2 numbers, or factors."""
    X, shape = _flat(X)
    if _inputs.as_blocks(X) is not None:
        placed = _inputs.in_blocks(estimator, X, y, numbers=True)
    elif isinstance(X, tuple):
        A, B = _check_factors(estimator, X)
        _, y = _inputs.advised(
            estimator, partial(check_X_y, estimator=estimator), A, y, y_numeric=True
        )
        y = _inputs.check_numbers(y).astype(np.float64, copy=False)
        placed, shape = in_memory(A, y=y, factors=B), (A.shape[1], B.shape[1])
    else:
        placed = _inputs.check_placed(estimator, X, y, numbers=True, multi_output=False)
    return placed, _shape(estimator, shape, math.prod(shape or (placed.rows.n_features,)))


def _flat(X):
    """Return matrices as rows, and their shape; what is not an array of matrices as it is."""
    if getattr(X, "ndim", 2) != 3 or sp.issparse(X) or is_dask_array(X):
        return X, None
    X = np.asanyarray(X)  # a map stays one
    return X.reshape(len(X), -1), tuple(int(d) for d in X.shape[1:])


def predictions(estimator, X):
    """Return <X_i, M> + intercept of each record, cut; those in blocks where they are."""
    low, high = estimator.prediction_bounds_
    cut = partial(np.clip, a_min=low, a_max=high)
    if isinstance(X, tuple):
        A, B = _check_factors(estimator, X, reset=False)
        return cut(np.einsum("ij,ij->i", A @ estimator.coef_, B) + estimator.intercept_)
    X, shape = _flat(X)
    if shape not in (None, estimator.coef_.shape):
        name = type(estimator).__name__
        raise ValueError(f"{name} was fitted to matrices of {estimator.coef_.shape}. Got {shape}.")
    linear = LinearPredictor(estimator.coef_.ravel(), estimator.intercept_, cut)
    return _inputs.mapped(estimator, X, linear, None)


def _check_factors(estimator, factors, *, reset=True):
    if len(factors) != 2:
        raise ValueError(f"a tuple X must be factors (A, B), two arrays. Got {len(factors)} items.")
    A, B = (_inputs.advised(estimator, check_array, factor, input_name="X") for factor in factors)
    check_consistent_length(A, B)
    rows = np.broadcast_to(0.0, (len(A), A.shape[1] * B.shape[1]))  # only their shape is used
    validate_data(estimator, rows, skip_check_array=True, reset=reset)
    return A, B


def _shape(estimator, given, n_features):
    """Return (d1, d2): of the data, or the parameter, or (n_features, 1)."""
    if estimator.matrix_shape is None:
        return given or (n_features, 1)
    shape = _validation.check_shape(estimator, "matrix_shape")
    if math.prod(shape) != n_features or given not in (None, shape):
        expected = f"None or two integers whose product is the number of features, {n_features}"
        _validation.refuse_value(estimator, "matrix_shape", expected, shape)
    return shape


def check_design(design, shape, *, sparse=False):
    """Return the public whitening that `design` gives, or None if it is to be learnt."""
    if isinstance(design, str):
        return None
    if isinstance(design, Real) and not isinstance(design, bool):
        if not 0 < design < math.inf:
            raise ValueError(
                f"a number as 'measurement_covariance' must be positive and finite. Got {design!r}."
            )
        return Whitening(None, None, float(design))
    if isinstance(design, np.ndarray) and design.ndim == 2:
        return _full_design(design, math.prod(shape), sparse)
    if not isinstance(design, Sequence) or len(design) != 2:
        raise ValueError(
            "The 'measurement_covariance' parameter must be 'private', a number, one covariance "
            f"or a pair of them (of rows, of columns). Got {type(design).__name__} instead."
        )
    R, C = (_validation.public_array("measurement_covariance", part) for part in design)
    for part, d in zip((R, C), shape, strict=True):
        if not _is_covariance(part, d):
            raise ValueError(
                f"a covariance in 'measurement_covariance' must be positive definite, {d} x {d}."
            )
    if sparse and any(np.count_nonzero(part - np.diag(np.diagonal(part))) for part in (R, C)):
        raise ValueError(
            "full covariances in 'measurement_covariance' need dense X; give diagonal ones for CSR."
        )
    r, c = np.trace(R), np.trace(C)
    if sparse:
        R, C = np.diagonal(R), np.diagonal(C)
    moments = np.concatenate([(R * c).ravel(), (C * r).ravel()])
    return whitening(moments, shape, 1.0, 0.0)


def _is_covariance(matrix, d, least=0.0):
    """Return whether a matrix is symmetric with all eigenvalues above `least` times the largest."""
    if matrix.shape != (d, d) or not np.allclose(matrix, matrix.T):
        return False
    values = np.linalg.eigvalsh(matrix)
    return values[0] > least * values[-1]


def searches_covariance(estimator):
    """Return whether the covariance of X costs budget; it is public for the unit "label"."""
    return isinstance(estimator.measurement_covariance, str) and not unit_of(estimator).of_targets


def _full_design(design, size, sparse):
    """Return the map of records that a full public covariance of vec(X) asks for."""
    design = _validation.public_array("measurement_covariance", design)
    if not _is_covariance(design, size, 1e-6):
        raise ValueError(
            f"a full covariance as 'measurement_covariance' must be symmetric, {size} x {size}, of "
            f"positive eigenvalues and a condition number below 1e6. Got shape {design.shape}."
        )
    if sparse or size > MAX_ROWS:
        raise ValueError(
            "a full covariance as 'measurement_covariance' needs dense X of at most "
            f"{MAX_ROWS} features; give a pair of covariances instead."
        )
    return mixing(design)


def check_parameters(estimator):
    """Check the parameters of a trace regression that need no data."""
    _validation.check_int(estimator, "rank", 1)
    _validation.check_int(estimator, "max_iter", 1)
    _validation.check_option(estimator, "privacy_unit", tuple(estimator._privacy_units))
    _validation.check_option(estimator, "solver", ("riemannian", "spectral_init"))
    _validation.check_bool(estimator, "shrink_singular_values", "fit_intercept", "fit_biases")
    level = _validation.check_real(
        estimator, "gradient_clip_factor", 1e-3, math.inf, closed="both", also=("auto",)
    )
    if level != "auto" and level > 1e6 and estimator.epsilon != math.inf:
        raise ValueError(
            "'gradient_clip_factor' bounds what one record adds: use a multiple of the median norm "
            f"from .001 to 1e6, or 'auto'. Only epsilon=inf needs no bound. Got {level!r}."
        )
    if isinstance(estimator.measurement_covariance, str):
        _validation.check_option(estimator, "measurement_covariance", ("private",))


def default_shares(estimator):
    """Return the budget fraction of each release."""
    shares = {"initialization": 0.15, "gradient_clip": 0.0365, "calibration": 0.08}
    if estimator.adjacency == "add_remove" and unit_of(estimator).by_rows:
        shares["count"] = 0.01
    if searches_covariance(estimator):
        shares |= {"covariance": 0.05, "units": 0.08, "mean": 0.03}
    if estimator.fit_intercept:
        shares["center"] = 0.03
    if estimator.solver == "spectral_init":
        shares["initialization"] = 1 - math.fsum(shares.values()) + shares["initialization"]
        return shares
    return shares | {"gradients": 1 - math.fsum(shares.values())}


def descent_facts(estimator, shape, n, unit_noise, needed=math.inf):
    """Public numbers of a descent, for entries of variance 1; `needed` records are of use."""
    shares, factor = estimator._shares(), estimator.gradient_clip_factor
    # With more records each step has less noise, so more steps are taken.
    steps = min(estimator.max_iter, max(_STEPS, int(_STEPS * n / (4 * max(needed, 1)))))
    max_iter = 0 if estimator.solver == "spectral_init" else steps
    private_X = searches_covariance(estimator)
    medians = median_steps(max_iter, placed=estimator.fit_intercept, searches_covariance=private_X)
    return TraceFacts(
        shape=shape, rank=min(estimator.rank, *shape), n=n, lam=1.0, unit_noise=unit_noise,
        init=shares["initialization"], gradients=shares.get("gradients", 0.0),
        rank_share=shares["gradient_clip"] / medians, max_iter=max_iter,
        shrink=estimator.shrink_singular_values, useful=needed,
        clip_level=None if factor == "auto" else float(factor),
    )  # fmt: skip


def release_center(estimator, session, placed, share, n, *, far=False):
    """Release the centre and the standard deviation of the targets (see `Center`)."""
    targets = placed.column("y", RecordForm(_inputs.as_columns, 1).alone, 1)
    query = ColumnQuery(targets, adjacency=session.adjacency, n_jobs=estimator.n_jobs)
    return find_center(session.ask(query), share, n, far=far)


def remedy_of(n, needed, shape):
    """Return the advice in a warning of little signal; `needed` records are required."""
    if n < needed:
        said = f"At this budget about {needed} records are needed: use more, a larger 'epsilon' "
        flat = " If rows of X are flattened matrices, give 'matrix_shape'." * (shape[1] == 1)
        return f"{said}or a smaller matrix.{flat}"
    return (
        f"There are enough records ({needed}, if 'measurement_covariance' fits X): the entries of "
        "X may be correlated in another way, as pixels are. Use DPRidge, or give the public "
        "covariance of X as 'measurement_covariance'."
    )
