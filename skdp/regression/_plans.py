"""Synthetic data of the regressions: records, users with rows, measurements of a matrix."""

from __future__ import annotations

import math
from functools import partial
from numbers import Integral
from operator import methodcaller
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import accuracy_score, balanced_accuracy_score, r2_score
from sklearn.preprocessing import scale

from skdp._limits import BLOCK
from skdp._validation import check_classes, check_range
from skdp.solvers.linalg import leading_triplets
from skdp.theory import PlanData, PlansMixin, _made
from skdp.theory._plan import check_share, fit_rows, histories_of, rows_drawn


def made_records(estimator, rng, n, d, spectrum, skew, nnz):
    """Return (rows as a regression takes them, what they are)."""
    rows, clip = rows_drawn(n, d), estimator.clip_norm
    given = not isinstance(clip, str) and math.isfinite(clip)
    if nnz is not None:
        rows, ones = histories_of(n, nnz)
        X = _made.made_histories(rng, rows, d, ones)
        X = _made.of_length(X, clip) if given else X
        return X, f"{rows} sparse rows with {nnz / n:.3g} ones each, of popular columns"
    X = _made.made_rows(rng, rows, _made.shares_of(d, 1, None, spectrum))
    X = _made.fill_bounds(estimator, _made.skewed(rng, X, skew))
    if estimator.bounds is None:
        offset = rng.standard_normal(d) * X.std(axis=0) * estimator.fit_intercept
        X = X * clip if given else X + offset
    form = "not centred" if estimator.bounds is None else "scaled to 'bounds'"
    return X, f"{rows} skewed rows, {form}"


def _quality(of, model, X, y, **who):
    return float(of(y, model.predict(X, **who)))


class RidgePlans(PlansMixin):
    """Plans of linear regression.

    Facts: `n_targets`, `signal` (share of the variance of the targets that is linear in the rows),
    `spectrum` (variances along all orthogonal directions, of standardised columns if their scales
    are learnt; None falls like 1/i), `skew` (skewness of each column), `nnz` (of sparse rows).
    """

    _measure = "R2 on synthetic records"

    def _made(self, rng, n, d, n_targets=1, signal=0.5, spectrum=None, skew=None, nnz=None):
        signal = check_share(signal)
        X, said = made_records(self, rng, n, d, spectrum, skew, nnz)
        y = linear_targets(rng, X, n_targets, signal)
        away = rng.standard_normal(n_targets) * self.fit_intercept
        y = in_target_bounds(self, y, away)
        y = y[:, 0] if n_targets == 1 else y
        fit, score = partial(fit_rows, X=X, y=y), partial(_quality, r2_score, X=X, y=y)
        linear = f"targets; a linear model explains {signal:g} of their variance"
        plain = partial(Ridge(self.alpha, fit_intercept=self.fit_intercept).fit, X, y)
        return PlanData(fit, score, (said, linear), n / X.shape[0], best=math.nan, plain=plain)


def _is_balanced(estimator):
    """Whether a fit is to treat rare classes as well as frequent ones, whatever accuracy costs."""
    return isinstance(estimator.class_weight, str)


class RidgeClassifierPlans(PlansMixin):
    """Plans of linear classification, by their accuracy (balanced, with such weights).

    Facts: `priors` (shares of the classes; None: all are equal), `signal` (share of the variance of
    the classes' 0/1 indicators that is linear in the rows; for sparse rows the share of the class
    scores that is linear in their leading directions), and `spectrum`, `skew` and `nnz` as of
    `DPRidge`.
    """

    @property
    def _measure(self):
        return f"{'balanced ' * _is_balanced(self)}accuracy on synthetic records"

    def _made(self, rng, n, d, priors=None, signal=None, spectrum=None, skew=None, nnz=None):
        names = np.arange(2 if priors is None else np.size(priors))
        names = names if self.classes is None else check_classes(self)
        priors = np.ones(len(names)) if priors is None else priors
        priors = _made.check_weights("priors", priors, len(names), "shares of classes")
        usual = 0.5 if nnz is None else 0.9
        signal = check_share(usual if signal is None else signal)
        X, said = made_records(self, rng, n, d, spectrum, skew, nnz)
        if nnz is None:
            labels = linear_classes(rng, scale(X), priors, signal)
            between = (
                f"{len(names)} classes; linear scores explain {signal:g} of their variance, or "
            )
            between += "the largest part that they can"
        else:
            # Classes of texts follow topics: the leading directions, not all rare columns equally.
            k = min(len(names), min(X.shape) - 1)
            leading = leading_triplets(X, k, np.ones(min(X.shape)))[2].T
            labels = np.argmax(linear_targets(rng, X @ leading, len(names), signal), axis=1)
            between = f"{len(names)} classes; leading directions explain {signal:g} of their scores"
        y = np.asarray(names)[labels]
        counts, balanced = np.unique(y, return_counts=True)[1], _is_balanced(self)
        trivial = 1 / len(counts) if balanced else float(np.max(counts)) / len(y)
        of = balanced_accuracy_score if balanced else accuracy_score
        fit, score = partial(fit_rows, X=X, y=y), partial(_quality, of, X=X, y=y)
        same = {"fit_intercept": self.fit_intercept, "class_weight": self.class_weight}
        plain = partial(RidgeClassifier(self.alpha, **same).fit, X, y)
        best = math.nan if trivial < 1 else 1.0  # of a few rows of one class
        return PlanData(fit, score, (said, between), n / X.shape[0], trivial, best, plain)


def in_target_bounds(estimator: Any, y: Any, away: Any = 0.0) -> Any:
    """Return targets of variance 1 that fill a usual part of public bounds, or lie away from 0."""
    bounds = check_range(estimator)
    if bounds is None:
        return y + away
    low, high = bounds
    return low + (high - low) / 2 * (1 + _made.FILLED * y)


def linear_targets(rng: Any, X: Any, q: int, signal: float) -> Any:
    """Return q targets of mean 0 and variance 1, whose share `signal` is linear in the rows."""
    f = X @ rng.standard_normal((X.shape[1], q))
    f = (f - f.mean(axis=0)) / np.maximum(f.std(axis=0), 1e-300)
    return math.sqrt(signal) * f + math.sqrt(1 - signal) * _made.drawn_normal(rng, *f.shape)


def linear_classes(rng: Any, Z: Any, priors: Any, signal: float) -> Any:
    """Return classes of which linear scores of centred rows explain a share, or what they can.

    Rows with the largest of noisy scores have a class, so that rows far out are as clear as in real
    tables: fits to classes that differ in their means alone lose too little.
    """
    linear, noise = (linear_targets(rng, Z, len(priors), part) for part in (1.0, 0.0))
    basis = np.linalg.qr(linear)[0]
    *rare, largest = np.argsort(priors)
    counts = np.rint(len(Z) * priors / priors.sum()).astype(int)

    def classes(part):
        scores = math.sqrt(part) * linear + math.sqrt(1 - part) * noise
        labels = np.full(len(Z), largest)
        for c in rare:
            free = np.where(labels == largest, scores[:, c], -math.inf)
            labels[np.argsort(-free)[: counts[c]]] = c
        return labels

    def explained(part):
        ones = scale(np.eye(len(priors))[classes(part)], with_std=False)
        return float(np.sum((basis.T @ ones) ** 2) / max(np.sum(ones**2), 1e-300))

    return classes(_made.exponent(explained, signal, 1.0))


class PersonalPlans(PlansMixin):
    """Plans of personal models; samples are users.

    Facts: `n_rows` (of each user), `noise` and `levels` (variances of the noise of y, and of users'
    levels, in units of what coefficients explain within users). Half of what these explain is
    common; users differ by the rest in a subspace.
    """

    def _made(self, rng, n, d, n_rows=20, noise=0.25, levels=2.0):
        for name, size in (("noise", noise), ("levels", levels)):
            if np.ndim(size) or not 0 <= size < math.inf:
                raise ValueError(f"'{name}' must be a number of at least 0. Got {size!r} instead.")
        levels *= self.fit_intercept
        users = rows_drawn(n, d * n_rows)
        k = min(d, 2 if self.n_components == "auto" else self.n_components)
        U = np.linalg.qr(rng.standard_normal((d, k)))[0]
        coef = rng.standard_normal((users, k)) @ U.T / math.sqrt(k)
        coef = math.sqrt(0.5) * (coef + rng.standard_normal(d) / math.sqrt(d))
        own = math.sqrt(levels) * rng.standard_normal(users)
        tasks, fresh = (self._made_tasks(rng, coef, own, n_rows, noise) for _ in range(2))
        said = f"{users} users of {n_rows} rows; half of their squared coefficients is common, and "
        said += f"the rest lies in {k} shared dimensions; in units of the variance that they "
        said += f"explain, noise has {noise:g} and users' levels have {levels:g}"
        of, trivial = (r2_score, 0.0) if self._y_numeric else (accuracy_score, 0.5)
        score = partial(_quality, of, **fresh)
        fit = methodcaller("fit", **tasks)
        return PlanData(fit, score, (said,), n / users, trivial, math.nan)

    def _made_tasks(self, rng, own, levels, m, noise):
        X = rng.standard_normal((len(own) * m, own.shape[1]))
        groups = np.repeat(np.arange(len(own)), m)
        y = np.einsum("ij,ij->i", X, own[groups]) + levels[groups]
        y += math.sqrt(noise) * rng.standard_normal(len(X))
        if not self._y_numeric:
            names = np.arange(2) if self.classes is None else check_classes(self)
            return {"X": X, "y": np.asarray(names)[(y > 0).astype(int)], "groups": groups}
        return {"X": X, "y": in_target_bounds(self, y / max(y.std(), 1e-300)), "groups": groups}

    @property
    def _measure(self):
        of = "R2" if self._y_numeric else "accuracy"
        return f"{of} of users' own models on fresh rows"


def matrix_shape_of(given, parameter):
    """Return (d1, d2) from what was given, or from the parameter `matrix_shape`."""
    if isinstance(given, Integral) and parameter is not None:
        if given != math.prod(parameter):
            raise ValueError(
                f"n_features={given} does not fit matrix_shape={parameter!r}; leave it out."
            )
        given = None
    shape = parameter if given is None else given
    if shape is None:
        raise ValueError("The shape of the matrix is needed: set 'matrix_shape'. Got None.")
    return (int(shape), 1) if isinstance(shape, Integral) else tuple(map(int, shape))


class TracePlans(PlansMixin):
    """Plans of trace regression.

    Facts: `signal` (deviation of <X, M> in units of the noise of y), `nnz` (of CSR rows with one
    entry each, as ratings are, which have means).
    """

    _measure = "R2 on synthetic records"

    def _planned_shape(self, n, d):
        return n, matrix_shape_of(d, self.matrix_shape)

    def _made(self, rng, n, d, signal=1.0, nnz=None):
        if not signal > 0 or not math.isfinite(signal):
            raise ValueError(f"'signal' must be a positive number. Got {signal!r} instead.")
        (d1, d2), size = d, math.prod(d)
        rows = rows_drawn(n, size if nnz is None else 1)
        if nnz is None and rows * size > 512 * BLOCK:  # 4 GiB
            raise ValueError(
                f"A plan would draw {rows} dense records of {size} entries, which is too much. "
                "State nnz=1 if each record is one entry, such as a rating."
            )
        r = min(self.rank, d1, d2)
        left, right = (np.linalg.qr(rng.standard_normal((s, r)))[0] for s in d)
        M = signal / math.sqrt(r) * left @ right.T
        if nnz is None:
            X = self._made_design(rng, rows, d)
            f = X @ M.ravel()
            f *= signal / max(float(f.std()), 1e-300)
        else:
            cells = rng.integers(0, size, rows)
            X = sp.csr_array((np.ones(rows), cells, np.arange(rows + 1)), shape=(rows, size))
            f = math.sqrt(size) * M.ravel()[cells]
        y = f + rng.standard_normal(rows)
        said = f"{rows} {'normal records' if nnz is None else 'records of one entry'}, noise of y "
        said += f"{1 / signal:.2g} times as large as what a matrix of rank {r} explains"

        def fit(model):
            model.matrix_shape = d
            return model.fit(X, y)

        score = partial(_quality, r2_score, X=X, y=y)
        return PlanData(fit, score, (said,), n / rows, best=math.nan)

    def _made_design(self, rng, rows, d):
        X, C = rng.standard_normal((rows, *d)), self.measurement_covariance
        if isinstance(C, tuple | list):
            left, right = (np.linalg.cholesky(np.asarray(part, np.float64)) for part in C)
            X = left @ X @ right.T
        elif np.ndim(C) == 2:
            X = X.reshape(rows, -1) @ np.linalg.cholesky(C).T
        elif not isinstance(C, str):
            X = math.sqrt(float(C)) * X
        return X.reshape(rows, -1)
