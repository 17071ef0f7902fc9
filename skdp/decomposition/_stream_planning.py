"""Plans of the decompositions that take streams: incremental PCA and the factorizer."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from skdp.decomposition._factorizer_layout import chosen_method
from skdp.decomposition._factorizer_state import begin
from skdp.decomposition._row_planning import check_shares, length_of
from skdp.decomposition._sparse_planning import n_planned
from skdp.decomposition._spectral import SPECTRUM_LEVEL
from skdp.theory import (
    Expectation,
    FitPlan,
    check_counts,
    constant_error,
    factorization_error,
    factorization_threshold,
    gram_loss,
    last_noise,
    moment_edge,
    rehearse,
    whole_rows,
    zero_rows,
)

# Root mean square length of rows in units of a learnt clip norm. Measured: beside many rows it lies
# well above the median norm; where it may shorten most rows, it ends below.
_SHORT, _CLIPPED = 0.75, 0.95


class IncrementalPlanMixin:
    """The method `plan` of DPIncrementalPCA."""

    def plan(
        self, n_samples: int, n_features: int, *, signal: Any = None, stream: bool = True
    ) -> FitPlan:
        """Say what a stream or a fit would release, and what error to expect; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone. Pass a guess for a
        number of samples that is private.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data: all rows up to the last release.
        signal : float or None, default=None
            Assumed share of the squared length that the components hold; shares of directions fall
            like the power of 1/i that agrees with it, None like 1/i.
        stream : bool, default=True
            Plan for `max_releases` calls of `partial_fit` (the error is that of the last release,
            whose noise is the largest), or for one call of `fit`.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        n, d = n_samples, n_features
        check_counts(self, n_samples=n, n_features=d)
        self._check_parameters()
        act = type(self)._first_step if stream else None
        rehearsal = rehearse(self, n, zero_rows(n, d), act=act)
        moments = rehearsal.named("moment", "gram")
        noise = math.nan
        horizon = self.max_releases if stream else 1
        if moments:
            length = self._length_in_batch(n / horizon, d, rehearsal.mu)
            noise = last_noise(moments[0], horizon, self.mechanism) / length**2
        shares = check_shares(self, signal, None, d)
        calls = f"{self.max_releases} releases, paid at once" if stream else "one release, by fit"
        if stream and self.clip_norm == "auto":
            calls += f"; the first batch has about {math.ceil(n / horizon)} rows, and is like all"
        expected = expect_moments(n, d, n_planned(self, d), shares, noise, calls)
        unit = "clip_norm" if self.clip_norm == "auto" else "1"
        return rehearsal.plan(n, d, expected, unit)

    def _length_in_batch(self, n, d, mu):
        """Return the length of rows in clip norms, where n rows showed their scale."""
        if self.clip_norm != "auto":
            return length_of(self, d)
        shortened = SPECTRUM_LEVEL * math.sqrt(2 * d) / mu  # as many rows as `row_clip_norm` lets
        return _SHORT + (_CLIPPED - _SHORT) * min(1.0, 2 * shortened / n)


def expect_moments(n, d, k, shares, noise, calls):
    """Expect the loss of components that are read off one moment; a sketch has no formula."""
    known = not math.isnan(noise)
    facts = {"spectrum": shares[0], "k": k, "moment": noise}
    loss = partial(lost_of_moment, **facts) if known else constant_error
    return Expectation(
        error=loss,
        meaning="share of the best captured squared length that is lost, at the last release",
        found=min(1.0, moment_edge(noise, d) / n) if known else math.nan,
        signal="share of the squared length that one direction must hold",
        assumptions=(
            calls,
            shares[1],
            "rows are about as long as the clip norm, and as one another, and centred",
        ),
        goal=loss(1e-9) / 2 if known and noise else 0.0,
    )


def lost_of_moment(n, spectrum, k, moment):
    """Return the expected loss of n rows that are alike in length."""
    return gram_loss(whole_rows(n, spectrum, k), k, moment=moment)


class FactorizerPlanMixin:
    """The method `plan` of DPLowRankFactorizer."""

    def plan(
        self,
        n_samples: Any = None,
        n_features: Any = None,
        *,
        signal: Any = None,
        stream: Any = None,
    ) -> FitPlan:
        """Say what a fit or a stream would release, and what error to expect; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone.

        Parameters
        ----------
        n_samples, n_features : int or None, default=None
            Shape of the matrix, which is public; None takes `matrix_shape`.
        signal : float or None, default=None
            Singular values that are assumed, all alike; None gives the threshold alone.
        stream : bool or None, default=None
            Plan for updates and `release`, or for `fit`; None is a stream if `matrix_shape` is
            given. With `max_releases` beyond 1 the error is that of the last release.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        if n_samples is None and n_features is None and self.matrix_shape is not None:
            n_samples, n_features = self.matrix_shape
        check_counts(self, n_samples=n_samples, n_features=n_features)
        self._check_parameters()
        shape = (n_samples, n_features)
        self._check_matrix(shape)
        stream = self.matrix_shape is not None if stream is None else stream
        if stream:
            rehearsal = rehearse(self, n_samples, shape, act=begin)
        else:
            rehearsal = rehearse(self, n_samples, zero_rows(*shape))
        horizon = self.max_releases if stream else 1
        expected = expect_factors(self, rehearsal, shape, signal, horizon)
        return rehearsal.plan(*shape, expected)


def expect_factors(estimator, rehearsal, shape, signal, horizon):
    """Expect the error of a matrix with equal singular values, at the last release."""
    method = chosen_method(estimator, shape)
    lasts = [
        last_noise(line, horizon, estimator.mechanism, estimator.window) * math.sqrt(line.share)
        for line in rehearsal.lines[:2]
    ]
    noise = sum(lasts) / len(lasts)  # as if each had the whole budget
    calls = "one release" if horizon == 1 else f"{horizon} releases, paid at once"
    assumed, error = [f"{calls}, method {method!r}"], math.nan
    if signal is not None:
        k, value = estimator.n_components, float(signal)
        assumed.append(f"{k} singular values of {value:g}, the others 0")
        error = factorization_error(method, *shape, noise, value)
    return Expectation(
        error=partial(constant_error, error=error),
        meaning="relative Frobenius error of the matrix",
        found=factorization_threshold(method, *shape, noise),
        signal="singular value",
        assumptions=tuple(assumed),
        scales=False,  # the noise depends on the shape
    )
