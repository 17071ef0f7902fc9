"""What the linear read-outs share: bounds, the one release, the solution."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import validate_data

from skdp._inputs import as_blocks, map_blocks
from skdp._validation import (
    FLOATS,
    check_bool,
    check_clip_norm,
    check_n_jobs,
    check_real,
    check_split,
)
from skdp.base import BaseDPEstimator
from skdp.data.blocks import row_source
from skdp.data.places import Placed
from skdp.queries.readout import ReadoutQuery
from skdp.regression._planning import expect_readout
from skdp.solvers.quantiles import private_quantile
from skdp.solvers.readout import readout_moments, solve_readout
from skdp.theory import check_counts, rehearse, zero_rows

# Bounds are learnt as multiples of a private median, which is safe with few records: the search for
# a high quantile runs away upwards when the rows above it are fewer than its noise.
_CLIP_MEDIANS = 1.25
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

    def _release(self, session, records, scale_of):
        """Return (coefficients, intercepts, clip norm, scale), all from released numbers.

        `scale_of(ask)` returns the public scale of the targets; it may pay for it.
        """
        shares = self._check_parameters()
        none = scale_of(None)
        query = ReadoutQuery(
            records, clip_norm=math.inf, scale=none, adjacency=self.adjacency, n_jobs=self.n_jobs
        )
        ask = session.ask(query)
        clip_norm = self.clip_norm
        if clip_norm == "auto":
            median = private_quantile(ask.rows(), 0.5, shares["clip_norm"])
            clip_norm = _CLIP_MEDIANS * median
        clip_norm = float(clip_norm)
        scale = scale_of(ask.targets())
        corner, target = self._lengths(clip_norm)
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

    def _lengths(self, clip_norm):
        """Return the lengths of the corner and of the targets in the release."""
        length = clip_norm if math.isfinite(clip_norm) else 1.0
        corner = _CORNER * length if self.fit_intercept else 0.0
        return corner, _TARGET * math.hypot(length, corner)

    def _plan(self, n, d, columns, signal, *options, whole):
        """Rehearse the fit on records of zeros, with so many columns of targets."""
        check_counts(self, n_samples=n, n_features=d, columns=columns)
        if not 0 < signal <= 1:
            raise ValueError(f"'signal' must be a share in the range (0, 1]. Got {signal!r}.")
        self._check_parameters()
        rows = n if self.adjacency == "replace" else 1  # the other way nobody asks for it
        y = zero_rows(rows, columns) if not whole else np.zeros(rows)
        placed = Placed(row_source(zero_rows(rows, d)), {"y": y})
        rehearsal = rehearse(self, n, placed, *options)
        clip_norm, unit = rehearsal.clip_norm(self.clip_norm, "within")
        target = self._lengths(1.0)[1] / math.sqrt(columns)
        expected = expect_readout(
            rehearsal, n, d, signal, clip_norm=clip_norm, target=target, whole=whole
        )
        return rehearsal.plan(n, d, expected, unit)

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
