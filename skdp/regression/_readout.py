"""What the linear read-outs share: bounds, the one release, the solution."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import validate_data

from skdp._inputs import as_blocks, map_blocks
from skdp._scales import learn_scale
from skdp._validation import (
    FLOATS,
    check_bool,
    check_clip_norm,
    check_n_jobs,
    check_real,
    check_split,
)
from skdp.base import BaseDPEstimator
from skdp.queries.readout import ReadoutQuery
from skdp.regression._readout_planning import check_counts, plan_readout
from skdp.solvers.readout import readout_moments, solve_readout

# Bounds are learnt as multiples of a private median, which is safe with few records: the search for
# a high quantile runs away upwards when the rows above it are fewer than its noise.
_LEARNT = 0.05  # share of a bound that is learnt
# Lengths, in clip norms, of the scaled targets and of the corner: they balance the noise on X'Y and
# on the sums against that on X'X, for coefficients that take the longest row to the target bound.
_TARGET, _CORNER = 0.6, 0.3


class ReadoutBase(BaseDPEstimator):
    """A linear model from one release of its second moments."""

    def _check_parameters(self):
        check_real(self, "alpha", 0, math.inf, closed="left")
        check_bool(self, "fit_intercept")
        check_clip_norm(self)
        check_n_jobs(self)
        return check_split(self, self._default_shares())

    def _default_shares(self):
        shares = {"readout": 1.0}
        if self._is_auto("clip_norm"):
            shares["clip_norm"] = _LEARNT
        if self._is_auto("target_bounds"):
            shares["target_bounds"] = _LEARNT
        shares["readout"] -= math.fsum(shares.values()) - 1.0
        return shares

    def _is_auto(self, name):
        value = getattr(self, name, None)
        return isinstance(value, str) and value == "auto"

    def _release(self, session, records, shares, scale_of):
        """Return (coefficients, intercepts, clip norm, scale), all from released numbers.

        `scale_of(ask)` returns the public scale of the targets; it may pay for it.
        """
        none = scale_of(None)
        query = ReadoutQuery(
            records, clip_norm=math.inf, scale=none, adjacency=self.adjacency, n_jobs=self.n_jobs
        )
        ask = session.ask(query)
        clip_norm = self.clip_norm
        if clip_norm == "auto":
            clip_norm = learn_scale(
                self, session, ask.rows().kept_below, shares["clip_norm"],
                of="the rows", remedy="'clip_norm'",
            )  # fmt: skip
        clip_norm = float(clip_norm)
        scale = scale_of(ask.targets())
        length = clip_norm if math.isfinite(clip_norm) else 1.0
        corner = _CORNER * length if self.fit_intercept else 0.0
        target = _TARGET * math.hypot(length, corner)
        answer = ask.within(clip_norm, scale).readout(corner, target, share=shares["readout"])
        released = readout_moments(
            answer.value,
            answer.noise_scale,
            scale.size / target,
            corner=corner,
            clip_norm=clip_norm,
            target_norm=target if np.isfinite(scale.high - scale.low).all() else math.inf,
        )
        coefficients, intercepts = solve_readout(released, float(self.alpha))
        return coefficients, intercepts, clip_norm, scale

    def _linear(self, X, finish, n_columns, dtype=None):
        """Return ``finish(linear predictor)`` of each row, for blocks where they are."""
        predict = LinearPredictor(self.coef_, self.intercept_, finish)
        source = as_blocks(X)
        if source is None:
            X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=False)
            return predict(X)
        return map_blocks(self, X, source, predict, n_columns, dtype)

    def _plan(self, n_samples, n_features, columns, signal, *, whole):
        name = type(self).__name__
        check_counts(name, n_samples=n_samples, n_features=n_features, columns=columns)
        corner = _CORNER if self.fit_intercept else 0.0
        self._check_parameters()
        return plan_readout(
            self, self._checked_session(), (n_samples, n_features), columns, signal,
            corner=corner, target=_TARGET * math.hypot(1.0, corner), whole=whole,
        )  # fmt: skip

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class LinearPredictor(NamedTuple):
    """The public map of `predict`; it holds no reference to the estimator."""

    coef: np.ndarray
    intercept: Any
    finish: Callable

    def __call__(self, X):
        """Predict rows; those of another dtype than float32 in float64."""
        X = X if X.dtype in FLOATS else X.astype(np.float64)
        linear = X @ self.coef.T
        return self.finish((np.asarray(linear) if sp.issparse(X) else linear) + self.intercept)
