"""Steps of a trace regression: its shares, the centre, row and column biases, the calibration."""

import math

import numpy as np

from skdp._inputs import as_columns
from skdp._limits import CLEAR
from skdp.data.views import RecordForm
from skdp.queries.columns import ColumnQuery
from skdp.regression._measurements import searches_covariance
from skdp.solvers.columns import CUT, find_center
from skdp.solvers.postprocess import denoised
from skdp.solvers.trace import TraceFacts, median_steps, zero_fit
from skdp.solvers.verdict import calibration
from skdp.solvers.whitening import Means, energies, trace_attributes
from skdp.units import unit_of

# Fraction of the budget of the gradients (or of the initial estimate) for first biases.
_BIAS_SHARE = 0.2
_STEPS = 8  # gradient steps where records are few
# For the release that calibrates predictions, in standard deviations of the targets. _CLIP_NORMS:
# range of the clip norm of its rows; within it, the noise is at most _NOISE_RATIO of the sum of
# squares. _LEAST_CUT: smallest radius at which predictions are clipped.
_CLIP_NORMS, _NOISE_RATIO, _LEAST_CUT = (2.0, 8.0), 0.01, 4.0
_LOW_R2 = 0.1  # a fit that explains less of the variance of the targets warns
_ZERO_COEF = "learnt nothing from the data, and coef_ is zero"
_NO_BETTER = "its predictions are not clearly better than"
_TOO_FEW = "its records are too few for a matrix of this size"


def first_biases(ask, facts, design, centre):
    """Release first row and column biases; return them, and what is left for the descent."""
    sizes = energies(design, facts.shape, facts.n)
    biases = Means(*sizes, facts.n, centre, facts.unit_noise)
    share = _BIAS_SHARE * facts.steps_share
    biases.release(ask, share)
    return biases, facts.with_more(-share)


def biases_alone(ask, facts, biases):
    """Spend the budget of the matrix on better biases, and return a zero matrix."""
    biases.release(ask, facts.init + facts.gradients)
    return zero_fit(facts.shape, facts.rank, _TOO_FEW)._replace(noise_sd=biases.sd)


def calibrated(ask, fit, facts, design, biases, centre, share, place):
    """Calibrate a fit on released moments of predictions and targets, and return its attributes.

    The descent assumes that the covariance of X is a product of a row and a column covariance,
    which is wrong for nested factors, correlated rows or few records of large norm. The moments
    show how well the fit predicts, whatever the distribution of X is: coefficients are scaled
    accordingly, or set to zero.
    """
    failure, slope, shift, means = "", 1.0, 0.0, biases and biases.found
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
        n_free += biases.n_free if means else 0.0
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
            slope, shift, means, residual_sd = 0.0, float(denoised(*mean)[0]), None, unit * sd
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


def default_shares(estimator):
    """Return the budget fraction of each release."""
    shares = {"initialization": 0.15, "gradient_clip": 0.0365, "calibration": 0.08}
    if estimator.adjacency == "add_remove" and unit_of(estimator).by_rows:
        shares["count"] = 0.01
    if searches_covariance(estimator):
        shares |= {"covariance": 0.05, "units": 0.08, "mean": 0.03}
    if estimator.fit_intercept:
        shares["center"] = 0.06
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
    centered, private_X = estimator.fit_intercept, searches_covariance(estimator)
    medians = median_steps(max_iter, centered=centered, searches_covariance=private_X)
    return TraceFacts(
        shape=shape, rank=min(estimator.rank, *shape), n=n, lam=1.0, unit_noise=unit_noise,
        init=shares["initialization"], gradients=shares.get("gradients", 0.0),
        rank_share=shares["gradient_clip"] / medians, max_iter=max_iter,
        shrink=estimator.shrink_singular_values, useful=needed,
        clip_level=None if factor == "auto" else float(factor),
    )  # fmt: skip


def release_center(estimator, session, placed, share, n, *, far=False):
    """Release the centre and the standard deviation of the targets (see `Center`).

    With `far` they are searched for in the widest range, with a budget that is left.
    """
    targets = placed.column("y", RecordForm(as_columns, 1).alone, 1)
    query = ColumnQuery(targets, adjacency=session.adjacency, n_jobs=estimator.n_jobs)
    cut = math.inf if session.budget.exact else CUT
    return find_center(session.ask(query), share, n, far=far, cut=cut)


def remedy_of(n, needed, shape):
    """Return the advice in a warning of little signal; `needed` records are required."""
    if n < needed:
        said = f"At this budget about {needed} records are needed: use more, a larger 'epsilon' "
        flat = " If rows of X are flattened matrices, give 'matrix_shape'." * (shape[1] == 1)
        return f"{said}or a smaller matrix.{flat}"
    return (
        f"There are enough records ({needed}, if 'measurement_covariance' fits X): the entries of "
        "X may be correlated in another way, as pixels are, or few targets differ from the others. "
        "Use DPRidge or a larger 'epsilon', or give the public covariance of X as "
        "'measurement_covariance'."
    )
