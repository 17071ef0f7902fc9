"""Synthetic data of the decompositions: rows, histories, graphs and matrices, and scores.

Each kind of data is drawn from stated facts, in the size and the units that the fit expects.
"""

from __future__ import annotations

import math
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from skdp._validation import check_rank
from skdp.privacy.streams.continual import stream_schedule
from skdp.solvers.linalg import leading_triplets
from skdp.solvers.one_shot import mean_degree
from skdp.theory import PlanData, PlansMixin, _made, _plan
from skdp.units import DEGREE, INTERVAL, bound_of, unit_of

MEASURE = "fraction of the best captured squared norm"


def n_planned(estimator: Any, d: int) -> int:
    """Return the number of components that a plan is for: a tenth, if the fit may keep all."""
    k = estimator.n_components
    return max(int(k), 1) if isinstance(k, Integral) and k < d else max(1, d // 10)


class DecompositionPlans(PlansMixin):
    """Plans of estimators with `components_`.

    Facts: `signal` (rows, interactions: the share of the squared length that the components hold,
    None lets shares fall like 1/i; other units: the singular value of each component), or
    `spectrum` (the variances in all directions; the singular values), `skew` (rows: skewness of
    each column), `nnz` (how many numbers of a sparse matrix are not 0: histories with popular
    columns, whose signs follow factors if both are in the bounds), `apart` (whether factors of
    these share no column).
    """

    _measure = MEASURE

    def _made(self, rng, n, d, signal=None, spectrum=None, skew=None, nnz=None, apart=False):
        unit, k = unit_of(self), n_planned(self, d)
        if nnz is not None:
            _plan.check_entries(self, nnz, n, d)
        if unit.by_rows and nnz is None:
            return self._made_rows(rng, n, _made.shares_of(d, k, signal, spectrum), skew)
        if unit.by_rows or unit.bound is DEGREE or (unit.bound is INTERVAL and nnz is not None):
            nnz = min(_plan.USUAL_ONES, d) * n if nnz is None else nnz
            return self._made_histories(rng, (n, d), nnz, signal, bool(apart))
        A, said = drawn_matrix(self, rng, (n, d), signal if spectrum is None else spectrum)
        return PlanData(lambda m: m.fit(A), _made.captured(A, k), said)

    def _made_rows(self, rng, n, shares, skew):
        """Draw dense rows, in the units of a clip norm or of bounds that are given."""
        rows, clip = _plan.rows_drawn(n, len(shares)), getattr(self, "clip_norm", "auto")
        given = isinstance(clip, float | int) and math.isfinite(clip)
        X = _made.skewed_rows(rng, rows, shares, skew) * (clip if given else 1.0)
        X = _made.fill_bounds(self, X)
        center = getattr(self, "center", None)
        if isinstance(center, np.ndarray | list):
            X = X + np.asarray(center, np.float64)
        k = n_planned(self, len(shares))
        which = "the components" if k == self.n_components else f"the first {k} of {len(shares)}"
        said = f"{rows} skewed rows, {which} hold {shares[:k].sum():.2g} of their squared norm"
        score = _made.captured(X, k, centred=hasattr(self, "center"))
        return PlanData(partial(_plan.fit_rows, X=X), score, (said,), n / rows)

    def _made_histories(self, rng, shape, nnz, signal, apart):
        """Draw sparse rows of ones, or the graph or matrix that they are."""
        (n, d), unit = shape, unit_of(self)
        rows, ones = _plan.histories_of(n, nnz) if unit.in_one_row else (n, nnz)
        k, ends = n_planned(self, d), bound_of(self) if unit.bound is INTERVAL else (0, 1)
        signed = ends[0] < 0 < ends[1]
        draw = partial(_made.made_signs, k=k) if signed else _made.made_histories
        draw = partial(draw, d=d, apart=apart)
        fact, usual, most = ("clear", 1.0, 8.0) if signed else ("tail", _made.TAIL, 2.5)
        if signal is not None:
            least = min(rows, 2000)
            few = partial(draw, n=least, nnz=max(ones * least // rows, 1))
            usual = _made.exponent(
                lambda a: _held(few(np.random.default_rng(0), **{fact: a}), k), signal, most
            )
        X = draw(rng, n=rows, nnz=ones, **{fact: usual})
        if unit.symmetric:
            X = sp.triu(X, 1)
            X = sp.csr_array(X + X.T)
        if unit.bound is INTERVAL:
            X = sp.csr_array(X * float(ends[1] or ends[0]))
        elif isinstance(clip := getattr(self, "clip_norm", None), float) and unit.by_rows:
            X = _made.of_length(X, clip if math.isfinite(clip) else 1.0)
        seen = X
        if unit.bound is DEGREE:
            floor = getattr(self, "unit_bound", None) or mean_degree(X.nnz, rows)
            lengths = np.sqrt(np.maximum(np.diff(X.indptr), floor))
            seen = sp.csr_array(sp.diags_array(1 / lengths) @ X)
        kind = "latent factors that " + ("share no column" if apart else "overlap")
        decay = _made.TAIL if signed else usual
        said = f"rows with {nnz} ones; the popularity of columns decays as rank^-{decay:.2g}; "
        return PlanData(
            partial(_plan.fit_rows, X=X), _made.captured(seen, k), (said + kind,), n / rows
        )

    def _planned_shape(self, n, d):
        return n, n if d is None and unit_of(self).symmetric else d


def drawn_matrix(estimator, rng, shape, values):
    """Draw a matrix of a public shape with singular values in blocks, smaller if it is large.

    A smaller one has the same ratio of its values to the noise edge. Where no value is stated,
    entries are about as large as one unit may change them. Return it, and what it is.
    """
    (m, n), unit, k = shape, unit_of(estimator), min(estimator.n_components, *shape)
    smaller = min(1.0, math.sqrt(_plan.MOST_NUMBERS / math.prod(shape)))
    sizes = tuple(max(k, round(size * smaller)) for size in shape)
    ends = bound_of(estimator) if unit.bound is INTERVAL else None
    change = max(map(abs, ends)) if ends else float(bound_of(estimator) or 1.0)
    usual = change * math.sqrt(math.prod(sizes)) / (2 * k if ends else math.sqrt(k))
    if values is None:
        values = np.full(k, usual)
    else:
        given = np.atleast_1d(np.asarray(values, np.float64))
        if not given.size or not np.isfinite(given).all() or (given <= 0).any():
            raise ValueError(
                "'signal' must be the singular value of what is found, a positive number, and "
                f"'spectrum' a list of them. Got {values!r} instead."
            )
        given = np.full(k, given[0]) if np.ndim(values) == 0 else np.sort(given)[::-1][:k]
        values = given * math.sqrt(smaller)
    A = _made.made_blocks(rng, sizes, values, ends=ends, symmetric=unit.symmetric and m == n)
    said = f"a matrix of {sizes[0]} x {sizes[1]} with {len(values)} blocks, of singular values "
    said += f"from {np.min(values):.3g} to {np.max(values):.3g}"
    return A, (said,)


def _held(X, k):
    """Return the share of the squared length that k directions hold."""
    rows = _made.of_length(X)
    k = min(k, *(size - 1 for size in rows.shape))
    values = leading_triplets(rows, k, np.ones(min(rows.shape)), 1e-3)[1]
    return float(np.sum(values**2)) / max(float(np.sum(rows.data**2)), 1e-300)


class IncrementalPlans(DecompositionPlans):
    """Plans of incremental PCA: facts `signal`, `skew` and `stream`.

    With `stream`, the last release of `max_releases` calls of `partial_fit` is scored; else one
    call of `fit`.
    """

    def _made(self, rng, n, d, signal=None, skew=None, stream=True):
        made = self._made_rows(rng, n, _made.shares_of(d, n_planned(self, d), signal, None), skew)
        if not stream:
            return made
        X, steps = made.fit.keywords["X"], min(self.max_releases, 2)
        people = np.arange(len(X)) if unit_of(self).of_groups else None
        # Two releases, with less budget, are as noisy at last; so is the search in a larger batch.
        less = self._last_noise(d, steps) / self._last_noise(d, self.max_releases)
        first = math.ceil(len(X) / self.max_releases / less)

        def fit(model):
            model.max_releases = steps
            for part in np.split(np.arange(len(X)), [first][: steps - 1]):
                model.partial_fit(X[part], groups=None if people is None else people[part])
            return model

        return made._replace(fit=fit, units_per_row=made.units_per_row * less)

    def _last_noise(self, d, releases):
        stream = stream_schedule(d * d, releases, self.mechanism)
        return stream.factor * stream.noise_factor(releases)


class FactorizerPlans(PlansMixin):
    """Plans of a factored matrix: facts `signal` and `stream`.

    `signal` is the singular value of each component, `stream` whether the matrix comes by updates
    (None: if `matrix_shape` is given); of several releases the last is scored.
    """

    _measure = "1 - relative Frobenius error of the matrix"

    def _planned_shape(self, n, d):
        if self.matrix_shape is None:
            return n, d
        shape = self.matrix_shape if n is d is None else (n, d)
        self._check_matrix(shape)
        return shape

    def _made(self, rng, n, d, signal=None, stream=None):
        check_rank(self, n, d)
        A, said = drawn_matrix(self, rng, (n, d), signal)
        stream = self.matrix_shape is not None if stream is None else stream
        by_rows = unit_of(self).by_rows

        def fit(model):
            if model.matrix_shape is not None or stream:
                model.matrix_shape = A.shape
            if not stream:
                return model.fit(A)
            for step in range(model.max_releases):
                rows = A[step :: model.max_releases]
                if by_rows:
                    model.partial_fit(rows).release()
                else:
                    model.update_matrix(A / model.max_releases).release()
            return model

        size = float(np.linalg.norm(A))

        def score(model):
            return 1 - float(np.linalg.norm(A[order] - model.reconstruct())) / size

        order = np.argsort(np.arange(len(A)) % self.max_releases, kind="stable")
        order = order if stream and by_rows else slice(None)
        return PlanData(fit, score, said)
