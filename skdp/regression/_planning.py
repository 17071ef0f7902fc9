"""What theory expects of rehearsed regressions, and the shapes that they are rehearsed on."""

import math
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from skdp.data.places import in_memory
from skdp.data.users import UserRows
from skdp.queries.sums import Neighbours
from skdp.queries.users import UserQuery
from skdp.regression._means import TOO_FEW, first_shares, has_means
from skdp.regression._measurements import descent_facts
from skdp.solvers.trace import READABLE, clip_multiplier
from skdp.solvers.user_rounds import GAIN
from skdp.theory import (
    Expectation,
    check_counts,
    constant_error,
    expected_error,
    readout_loss,
    rehearse,
    vote_error,
    vote_threshold,
    weighted_rows,
    zero_rows,
)

# Measured: with this part of the users from which a subspace stands out of the noise half of it is
# missed, and how fast that falls (three shapes, seven budgets).
_HALF_MISSED, _SHARP = 0.52, 3.2


def shape_of(given, parameter):
    """Return (d1, d2) from what was given, or from the parameter `matrix_shape`."""
    if isinstance(given, Integral) and parameter is not None:
        if given != math.prod(parameter):
            raise ValueError(
                f"n_features={given} does not fit matrix_shape={parameter!r}; leave it out."
            )
        given = None
    shape = parameter if given is None else given
    if shape is None:
        raise ValueError("plan needs the shape of the matrix: set 'matrix_shape'. Got None.")
    return (int(shape), 1) if isinstance(shape, Integral) else tuple(map(int, shape))


# -- records: a matrix -------------------------------------------------------------------------


def plan_trace(estimator, n_samples, n_features, nnz, signal):
    """Return the plan of a trace regression of dense records; with `nnz`, of CSR rows."""
    shape = shape_of(n_features, estimator.matrix_shape)
    check_counts(estimator, n_samples=n_samples)
    estimator._check_parameters()
    if nnz is not None and (
        not isinstance(nnz, Integral) or not 1 <= nnz <= n_samples * math.prod(shape)
    ):
        raise ValueError(
            f"'nnz' must be a number of entries of X, at least 1. Got {nnz!r} instead."
        )
    known, sparse = estimator.privacy_unit == "label", nnz is not None
    rows = n_samples if known or estimator.adjacency == "replace" else 1  # else nobody asks
    by_record = isinstance(estimator.design, str) and estimator.design == "records"
    records = planned_records(rows, shape, known=known, by_record=by_record, sparse=sparse)
    planned = estimator if sparse else clone(estimator).set_params(fit_means=False)
    moments = single_moments(shape) if sparse else ordinary_moments(shape)
    rehearsal = rehearse(planned, n_samples, records, shape, design_moments=moments)
    unit_noise = Neighbours(estimator.adjacency).units / rehearsal.mu
    facts = descent_facts(estimator, shape, n_samples, unit_noise)
    needed = 0.0
    if has_means(planned, shape, sparse=sparse):
        facts, needed = first_shares(facts)[1], TOO_FEW * estimator._records_needed(shape).useful
    expected = expect_trace(facts, signal, needed)
    return rehearsal.plan(n_samples, math.prod(shape), expected, "1; sums: the median length")


def planned_records(n, shape, *, known, by_record=False, sparse=False):
    """Return records of a public shape; where X is public, those of an even design."""
    size, y = math.prod(shape), np.broadcast_to(np.zeros(()), (n,))
    if by_record:
        rows = np.broadcast_to(np.zeros(()), (n, size))
        return in_memory(rows, y=y, covariance=np.broadcast_to(np.ones(()), (n,)))
    if not known:
        return in_memory(zero_rows(n, size, sparse=sparse), y=y)
    places = np.arange(n) % size
    values = np.full(n, math.sqrt(size))
    rows = sp.csr_array((values, places, np.arange(n + 1)), shape=(n, size))
    return in_memory(rows, y=y)


def ordinary_moments(shape):
    """Return the moments of records whose entries are alike and whose moments have norm 1."""
    d1, d2 = shape

    def moments(n, noise, _clip_level):
        diagonal = len(noise.value) == d1 + d2
        parts = [np.ones(d) if diagonal else np.eye(d) for d in shape]
        length = math.sqrt(d1 * d2 * (d1 + d2))
        return n / length * np.concatenate([d2 * parts[0].ravel(), d1 * parts[1].ravel()])

    return moments


def single_moments(shape):
    """Return the moments of records of a single 1, all places alike."""

    def moments(n, _noise, _clip_level):
        return np.concatenate([np.full(d, n / d) for d in shape])

    return moments


def expect_trace(facts, signal, needed=0.0):
    """Expect the error of the matrix; the noise of y has standard deviation 1, <X, M> `signal`.

    `facts` are those of the fit, for entries of variance 1. With fewer records than `needed` no
    matrix is looked for.
    """
    readable = max(READABLE * facts.unit_noise / math.sqrt(facts.rank_share), needed)
    size = facts.tangent_size
    level = clip_multiplier(facts, size, facts.gradients or facts.init)
    return Expectation(
        error=partial(matrix_error, facts=facts, readable=readable, signal=float(signal)),
        meaning="relative error of the matrix, 1 is the zero matrix",
        found=math.ceil(readable),
        signal="records from which medians can be read",
        assumptions=(
            f"<X_i, M> has {signal:g} times the standard deviation of the noise of y",
            f"entries of X have equal variances; clip levels near {level:g} medians",
        ),
        goal=0.5,
    )


def matrix_error(n, facts, readable, signal):
    """Return the expected error for another number of records."""
    if n < readable:
        return 1.0
    return expected_error(facts._replace(n=n), noise_sd=1.0, signal_sd=signal)


# -- records: a read-out -----------------------------------------------------------------------


class GuessedRows(NamedTuple):
    """What who plans a read-out assumes: see `DPRidge.plan`."""

    signal: float
    spectrum: Any
    length: Any

    def checked(self, clip_norm):
        """Return the same, or refuse it; rows longer than a given clip norm are cut to it."""
        if not 0 < self.signal <= 1:
            raise ValueError(f"'signal' must be a share in the range (0, 1]. Got {self.signal!r}.")
        if self.length is None:
            return self
        if isinstance(clip_norm, str) or not math.isfinite(clip_norm):
            raise ValueError(
                "plan takes 'length' with a finite 'clip_norm': a learnt one suits the rows. "
                f"Got length={self.length!r} instead."
            )
        if isinstance(self.length, bool) or not isinstance(self.length, Real) or self.length <= 0:
            raise ValueError(f"'length' must be None or a positive number. Got {self.length!r}.")
        return self._replace(length=min(float(self.length), 1.0))


def alike(d, correlation):
    """Return the shares in orthogonal directions of d columns that all have this correlation."""
    shares = np.full(d, (1 - correlation) / d)
    shares[0] += correlation
    return shares


class ReadoutFacts(NamedTuple):
    """What a plan takes for granted of a read-out, beside the noise of its release.

    `spectrum` holds the shares of the squared length of rows in orthogonal directions, `target` is
    the length of their targets in the release, in clip norms; `cut` is where targets are cut, in
    their standard deviations, and `level` the clip norm in median lengths of rows that are normal;
    None are rows of one `length`, in clip norms.
    """

    clip_norm: float
    spectrum: np.ndarray
    target: float
    cut: float = math.inf
    level: float | None = None
    length: float = 1.0

    def rows(self):
        """Return the length of rows in clip norms, and their mean squares as they are weighted."""
        if self.level is None:
            return self.length, self.length**2 * self.spectrum
        return weighted_rows(self.spectrum, self.level)


def expect_readout(noise_scale, n, signal, facts, kind="falling"):
    """Expect the loss of a read-out, from the noise of its release; `kind` names the spectrum."""
    noise = noise_scale / math.sqrt(2) / facts.clip_norm**2
    length, seen = facts.rows()
    known = {"length": length, "seen": seen, "target": facts.target, "cut": facts.cut}
    spread = {"falling": "in shares that fall like 1/i", "given": "in the shares given"}[kind]
    cut = "" if math.isinf(facts.cut) else f", normal, cut at {facts.cut:.2g} deviations"
    kind_of_rows = "rows are" if facts.level is None else "rows are normal,"
    return Expectation(
        error=partial(readout_loss, spectrum=facts.spectrum, noise=noise, signal=signal, **known),
        meaning="share of the explainable variance that is lost",
        found=min(1.0, 2 * noise * math.sqrt(len(seen)) / n / float(np.sum(seen))),
        signal="share of the squared length that one direction must hold",
        assumptions=(
            f"{kind_of_rows} {length:.2g} times as long as the clip norm, spread over orthogonal "
            f"directions {spread}",
            f"targets are {facts.target:.2g} times as long as the clip norm (bounds that are much "
            "wider cost accuracy), linear in the rows up to "
            f"{1 - signal:g} of their variance{cut}; alpha is small; scales are found",
        ),
        goal=0.5,
    )


# -- users -------------------------------------------------------------------------------------


def no_users(n, d, adjacency):
    """Return a query of so many users without numbers; one output, as more change no norm.

    A private number of users is not asked for.
    """
    n = n if adjacency == "replace" else 1
    rows = UserRows(zero_rows(n, d), zero_rows(n, 1), np.arange(n), True)
    return UserQuery(rows, adjacency=adjacency)


def user_risk(n, angle, d, k, rounds, rows, noise, found):
    """Return the expected risk of least-squares heads, relative to the model of all.

    With fewer users than `found` the subspace is missed more and more often.

    Each of the `rounds` (noise scale, clip level) takes most of the error away and brings its own
    noise. A head of h numbers on m rows costs h/(m - h - 1) of what it cannot explain: the noise,
    and what lies outside the subspace.
    """
    error, each = angle(n), n / k
    for scale, level in rounds:
        brought = (d - k) * (scale**2 + each * level**2 / (2 * d)) / max(each, 2 * scale) ** 2
        error = min(1 - k / d, (1 - GAIN) ** 2 * error + brought)
    spare = rows - k - 1
    cost = k / (spare - 1) if spare > 1 else math.inf
    risk = min(1.0, error + (error + noise) * cost)
    missed = 1 / (1 + (n / (_HALF_MISSED * found)) ** _SHARP) if found else 0.0
    return missed + (1 - missed) * risk


def expect_risk(expected, rehearsal, d, k, clip_level, rows, noise):
    """Expect the risk of heads on so many rows, in place of the angle of the subspace."""
    rounds = [(line.noise_scale, clip_level) for line in rehearsal.named("round")]
    facts = {"angle": expected.error, "d": d, "k": k, "rounds": rounds, "rows": rows}
    facts["found"] = expected.found
    assumed = (
        f"users have {rows:g} rows, with noise of {noise:g} times the variance to be explained"
    )
    return replace(
        expected,
        error=partial(user_risk, noise=noise, **facts),
        meaning="risk of heads, 1 is the model of all",
        assumptions=(*expected.assumptions[:1], f"{k} components of equal weight", assumed),
        goal=0.5,
    )


def expect_users(rehearsal, d, k, alignment):
    """Expect the angle after the start, which rounds improve; known for votes."""
    votes = rehearsal.named("votes")
    facts = {"d": d, "k": k, "alignment": alignment}
    known = bool(votes) and math.isfinite(rehearsal.mu)
    if known:
        facts["noise_scale"] = votes[0].noise_scale
    return Expectation(
        error=partial(vote_error, **facts) if known else constant_error,
        meaning="squared sine between released and true subspace after the start",
        found=vote_threshold(**facts) if known else 0.0,
        signal="users from which the subspace stands out",
        assumptions=(
            f"{alignment:g} of the square of a user's own direction lies in the subspace",
            f"{k} components of equal weight; rounds improve on the start",
        ),
        goal=0.5 * (1 - k / d) if known and k < d else 0.0,
    )
