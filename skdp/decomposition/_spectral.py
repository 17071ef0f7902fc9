"""What the spectral estimators share: routes for row units, and fits for the other units.

A route is chosen from public shapes and parameters only.
"""

import math

import numpy as np

from skdp._scales import learn_scale
from skdp._validation import check_option
from skdp.queries.sums import Neighbours
from skdp.solvers.linalg import (
    fix_signs,
    leading_eigenvectors,
    symmetric_noise_edge,
    top_eigenpairs,
)
from skdp.solvers.postprocess import debias_eigenvalues
from skdp.solvers.scales import Level, raised_level
from skdp.solvers.screening import screened_subspace
from skdp.solvers.spectral import (
    RowNoise,
    gram_subspace,
    moment_of_long_rows_pays,
    power_subspace,
)

GRAM_FEATURES = 1500  # beyond it a d x d release costs more time and noise than it is worth
_RAISING = 0.2  # of the share of a clip norm, for how far above the median it should be
DIRECTION_LEVEL = 24.0  # deviations of the noise: how many rows may be shortened
SPECTRUM_LEVEL = 3.0  # clips few rows: eigenvalues matter as much as directions
SCREENED_FEATURES = 100  # screening needs more columns than it keeps
_FEW_STEPS, _MORE_STEPS = 1.5, 5.5  # mu, of epsilon 8 and 50: with less noise there are more steps
_EXACT_SHARE = 1e-5  # of a product without noise, of which there may be thousands


def row_route(name, d, k, sparse, *, centred=True):
    """Return "gram", "power" or "screened" for a solver name of ours or of scikit-learn.

    Sums show which columns of sparse rows hold most, but not of rows that may be centred.
    """
    if name in ("gram", "power", "screened"):
        return name
    if name == "randomized":
        return "power"
    least = GRAM_FEATURES if centred else 0
    if name == "auto" and sparse and d > max(4 * k, SCREENED_FEATURES, least):
        return "screened"
    return "power" if name == "auto" and d > GRAM_FEATURES else "gram"


def row_clip_norm(estimator, session, ask, share, d, *, level=DIRECTION_LEVEL, near=None):
    """Return the clip norm of some rows: given, or learnt from the median of their norms upwards.

    Beside it how many of them may be several times longer.

    About `level` noise scales of a d x d moment may be shortened. `near` is an earlier clip norm,
    of the same rows about another centre.
    """
    if estimator.clip_norm != "auto":
        return Level(float(estimator.clip_norm), 0.0)
    if session.budget.exact:  # nothing is protected, so that nothing need be cut
        return Level(math.inf, 0.0)
    scale = learn_scale(
        estimator, ask.kept_below, (1 - _RAISING) * share,
        of="the rows", remedy="'clip_norm'", near=1.0 if near is None else near,
    )  # fmt: skip
    goal = level * session.noise_multiplier * math.sqrt(2 * d)
    return raised_level(ask.norms_above, scale.value / math.sqrt(2), goal, _RAISING * share)


def kept_rows(session, ask, route, d, noise):
    """Return the rows as a route reads them: their moment is kept where it is released anyway.

    Not elsewhere: each part of a moment would be rounded by itself.
    """
    if route != "gram" or not session.holds_rows:
        return ask
    return ask.kept(moment_of_long_rows_pays(d, noise))


def row_noise(session, adjacency, n, clip_norm):
    """Public facts on the noise of a row-unit fit."""
    multiplier = session.noise_multiplier
    neighbours = Neighbours(adjacency)
    psd, rect = neighbours.positive(multiplier), neighbours.array(multiplier)
    return RowNoise(psd, rect, n, clip_norm)


def step_shares(n_iter, share, mu):
    """Shares of the power steps: the last one gets half. With little noise there are more."""
    steps = 3 if mu < _FEW_STEPS else 6 if mu < _MORE_STEPS else 12
    steps = steps if n_iter == "auto" else n_iter
    if steps <= 1:
        return [share]
    return [share / (2 * (steps - 1))] * (steps - 1) + [share / 2]


def row_subspace(session, ask, route, d, k, share, noise, *, n_iter, n_oversamples):
    """Return the leading subspace (d x k) by a route, and the column sums if it released them."""
    if route == "gram":
        return gram_subspace(ask, d, k, share, noise), None
    if route == "screened" and noise.psd:
        V, sums, _ = screened_subspace(ask, d, k, share, noise)
        return V, sums
    extra = min(k, 10) if n_oversamples == "auto" else n_oversamples
    start = session.random_signs((d, min(d, k + extra)))
    if session.budget.exact:
        each = _EXACT_SHARE * share
        V = leading_eigenvectors(lambda Q: ask.gram_product(Q, share=each).value, start, k)
        return V, None
    shares = step_shares(n_iter, share, session.budget.mu)
    return power_subspace(ask, start, k, shares, noise), None


def in_rows(attributes, most):
    """Return attributes of persons in units of rows: a weight of 1 stands for `most` rows.

    Means, variances and directions are what they are; totals are not.
    """
    for name in attributes.keys() & {"n_samples_", "n_samples_seen_"}:
        attributes[name] = round(attributes[name] * most)
    if "singular_values_" in attributes:
        attributes["singular_values_"] = attributes["singular_values_"] * math.sqrt(most)
    return attributes


def rotate_by_ritz(project, V, share):
    """Rotate a subspace to its Ritz vectors; return (values without the noise's push, vectors).

    ``project(V, share=...)`` releases the moment in the subspace.
    """
    answer = project(V, share=share)
    values, Q = top_eigenpairs((answer.value + answer.value.T) / 2)
    edge = symmetric_noise_edge(answer.noise_scale, V.shape[1])
    return debias_eigenvalues(values, edge), V @ Q


def components_of(V):
    """Rows with fixed signs, from the columns of V."""
    return fix_signs(np.ascontiguousarray(V.T))


def check_normalizer(estimator):
    """Refuse normalisers that leave the iterate without a bounded norm."""
    check_option(estimator, "power_iteration_normalizer", ("auto", "QR", "LU", "none"))
    value = estimator.power_iteration_normalizer
    if value in ("LU", "none"):
        raise ValueError(
            f"power_iteration_normalizer={value!r} has no bounded sensitivity; use 'QR' or 'auto'. "
            f"Got {value!r}."
        )
