"""Fits of one user, made for many users at once: what a user computes alone, from public arrays.

Notation: arrays start with (users, rows): features F are (n, m, q), targets Y are (n, m, p). With
K = FF' + t 11' (t the prior variance of the intercept, inf: free) and B = lam (K + lam)^-1, a ridge
fit leaves the residuals BY, and (BY)_i / B_ii is the residual of row i when it was left out: exact,
for a free intercept too. Other losses are a fixed number of ridge fits to pseudo-responses, which
decrease the loss at each step; nothing stops early, so nothing tells of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_LEAST_DIAGONAL = 1e-9
_HUBER = 2.0  # times the median absolute residual: 1.35 standard deviations


def transposed(A: FloatArray) -> FloatArray:
    """Transpose each user's matrix."""
    return A.swapaxes(1, 2)


def centred(A: FloatArray) -> FloatArray:
    """Subtract each user's own column means (if there are three rows); constants become zero."""
    if A.shape[1] < 3:
        return A
    out = A - A.mean(axis=1, keepdims=True)
    return np.where(np.abs(out) > 1e-13 * np.abs(A).max(axis=1, keepdims=True), out, 0.0)


def _norms(A: FloatArray) -> FloatArray:
    flat = np.ascontiguousarray(A).reshape(len(A), -1)
    return np.asarray(np.sqrt((flat * flat).sum(axis=1)))


def _each(values: FloatArray, A: FloatArray) -> FloatArray:
    """Shape one number for each user so that it multiplies the users of A."""
    return values.reshape(-1, *[1] * (A.ndim - 1))


def unit(A: FloatArray) -> FloatArray:
    """Scale each user's array to Frobenius norm 1 (zero stays zero)."""
    norms = _norms(A)
    return np.asarray(A / _each(np.where(norms > 0, norms, np.inf), A))


def own_scale(A: FloatArray) -> FloatArray:
    """Root mean square of each user's entries; 1 where it is 0."""
    rms = _norms(A) / np.sqrt(A.shape[1] * A.shape[2])
    return np.asarray(np.where(rms > 0, rms, 1.0))


def moments(F: FloatArray, Y: FloatArray) -> FloatArray:
    """F'Y of each user: (n, q, p)."""
    return np.asarray(np.matmul(transposed(F), Y))


# -- losses ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvexLoss:
    """A convex loss as ridge fits to pseudo-responses.

    Attributes
    ----------
    n_steps : int
        How many ridge fits.
    pseudo : callable
        (Y, linear predictor) -> pseudo-responses: predictor minus scaled gradient, the scale an
        upper bound of the curvature, so that each step decreases the loss.
    losses : callable
        (Y, linear predictor) -> loss of each row, (n, m).
    mean : callable or None
        Linear predictor -> expected indicators, where Y are indicators of classes.
    judges : bool
        Whether heads are judged by it; else by least squares, where leaving out is exact.
    skewed : bool
        Whether residuals of two signs cost differently: intercepts are then no means.
    beside : callable or None
        (targets, predictions of the model of all) -> what users fit; None: the difference.
    typical : callable or None
        (Y, linear predictor) -> ordinary curvature of each user's rows in units of the upper bound:
        penalties count beside ordinary rows, and so does a row that is left out. None: 1.
    """

    n_steps: int
    pseudo: Callable[[FloatArray, FloatArray], FloatArray]
    losses: Callable[[FloatArray, FloatArray], FloatArray]
    mean: Callable[[FloatArray], FloatArray] | None = None
    judges: bool = False
    skewed: bool = False
    beside: Callable[[FloatArray, FloatArray], FloatArray] | None = None
    typical: Callable[[FloatArray, FloatArray], FloatArray] | None = None


class CountLoss(Protocol):
    """A convex loss of counts and linear predictors, the logarithms of their means."""

    largest: float
    link: str

    def mean(self, eta: FloatArray) -> FloatArray:
        """Return the mean count of each linear predictor."""
        ...

    def value(self, count: FloatArray, eta: FloatArray) -> FloatArray:
        """Return the loss of each count."""
        ...

    def derivative(self, count: FloatArray, eta: FloatArray) -> FloatArray:
        """Return its derivative in eta."""
        ...

    def beside(self, logs: FloatArray, eta: FloatArray) -> FloatArray:
        """Return counts in units of their means in the model of all."""
        ...


class RowLoss(Protocol):
    """A convex loss of single residuals, checked: what users may minimise."""

    def value(self, residual: FloatArray) -> FloatArray:
        """Return the loss of each residual."""
        ...

    def derivative(self, residual: FloatArray) -> FloatArray:
        """Return its derivative at each residual."""
        ...


_STEPS = 30  # ridge fits for a loss of one's own
_WIDTH = 1.0  # of smoothing, in median absolute residuals
_EITHER: FloatArray = np.array([[[0.5], [3.0]]])


def _count_loss(loss: CountLoss) -> ConvexLoss:
    """Return a loss of counts as ridge fits.

    The curvature of a row is its mean, on the way to the minimum at most the largest count or mean
    of the user: gradient steps of its inverse. An ordinary one is about the mean count, drawn to
    that of the model of all, 1.
    """

    def steepest(Y: FloatArray, eta: FloatArray) -> FloatArray:
        largest = np.maximum(loss.mean(eta), Y).max(axis=(1, 2))
        return np.asarray(np.maximum(largest, ordinary(Y)))

    def ordinary(Y: FloatArray) -> FloatArray:
        return np.asarray((Y.sum(axis=(1, 2)) + 1.0) / (Y.shape[1] + 1.0))

    def pseudo(Y: FloatArray, eta: FloatArray) -> FloatArray:
        return np.asarray(eta - loss.derivative(Y, eta) / _each(steepest(Y, eta), Y))

    def typical(Y: FloatArray, eta: FloatArray) -> FloatArray:
        return ordinary(Y) / steepest(Y, eta)

    def losses(Y: FloatArray, eta: FloatArray) -> FloatArray:
        return np.asarray(loss.value(Y, eta).sum(axis=2))

    return ConvexLoss(
        _STEPS, pseudo, losses, loss.mean, judges=True, beside=loss.beside, typical=typical
    )


def convex_loss(loss: str | RowLoss | CountLoss) -> ConvexLoss:
    """Return a loss as ridge fits: one of `LOSSES`, or one of residuals.

    A loss with a declared `curvature` takes gradient steps of its inverse. Another one has a
    derivative in declared `bounds` (a, b): its mean over residuals up to w away, (value(r + w) -
    value(r - w)) / 2w, has a slope of at most (b - a)/2w.
    """
    if isinstance(loss, str):
        return LOSSES[loss]
    if getattr(loss, "link", None) == "log":
        return _count_loss(cast(CountLoss, loss))
    loss = cast(RowLoss, loss)

    def losses(Y: FloatArray, eta: FloatArray) -> FloatArray:
        return np.asarray(loss.value(Y - eta).sum(axis=2))

    skewed = not np.array_equal(loss.value(_EITHER), loss.value(-_EITHER))
    curvature = getattr(loss, "curvature", None)
    if curvature is not None:

        def smooth(Y: FloatArray, eta: FloatArray) -> FloatArray:
            return np.asarray(eta + loss.derivative(Y - eta) / curvature)

        return ConvexLoss(_STEPS, smooth, losses, judges=True, skewed=skewed)
    low, high = loss.bounds  # type: ignore[attr-defined]

    def steep(Y: FloatArray, eta: FloatArray) -> FloatArray:
        R = Y - eta
        width = _WIDTH / _HUBER * _huber_width(R)
        return np.asarray(eta + (loss.value(R + width) - loss.value(R - width)) / (high - low))

    return ConvexLoss(_STEPS, steep, losses, skewed=skewed)


def _square_loss(Y: FloatArray, eta: FloatArray) -> FloatArray:
    R = Y - eta
    return np.asarray((R * R).sum(axis=2))


def _huber_width(R: FloatArray) -> FloatArray:
    return np.asarray(_HUBER * np.median(np.abs(R), axis=(1, 2))[:, None, None])


def _huber_pseudo(Y: FloatArray, eta: FloatArray) -> FloatArray:
    R = Y - eta
    width = _huber_width(R)
    return np.asarray(eta + np.clip(R, -width, width))


def _absolute_loss(Y: FloatArray, eta: FloatArray) -> FloatArray:
    return np.asarray(np.abs(Y - eta).sum(axis=2))


def _sigmoid(eta: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -40.0, 40.0))))


def _softmax(eta: FloatArray) -> FloatArray:
    shifted = np.exp(np.maximum(eta - eta.max(axis=2, keepdims=True), -40.0))
    return np.asarray(shifted / shifted.sum(axis=2, keepdims=True))


def _logistic_pseudo(Y: FloatArray, eta: FloatArray) -> FloatArray:
    return eta + 4.0 * (Y - _sigmoid(eta))


def _softmax_pseudo(Y: FloatArray, eta: FloatArray) -> FloatArray:
    return eta + 2.0 * (Y - _softmax(eta))


LOSSES: dict[str, ConvexLoss] = {
    "squared": ConvexLoss(1, lambda Y, eta: Y, _square_loss),
    "huber": ConvexLoss(8, _huber_pseudo, _absolute_loss, judges=True),
    "logistic": ConvexLoss(20, _logistic_pseudo, _square_loss, _sigmoid),
    "softmax": ConvexLoss(30, _softmax_pseudo, _square_loss, _softmax),
}


# -- ridge -----------------------------------------------------------------------------------------


def _left_factor(F: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (P, s) with FF' = P diag(s) P', from the smaller of the two Gram matrices."""
    m, q = F.shape[1:]
    if m <= q:
        s, P = np.linalg.eigh(np.matmul(F, transposed(F)))
        return P, np.maximum(s, 0.0)
    s, Q = np.linalg.eigh(np.matmul(transposed(F), F))
    kept = s > 1e-13 * np.maximum(s[:, -1:], 0.0)
    roots = np.where(kept, np.sqrt(np.where(kept, s, 1.0)), np.inf)
    return np.matmul(F, Q) / roots[:, None, :], np.where(kept, s, 0.0)


@dataclass(frozen=True)
class LocalFit:
    """One fit of each user.

    Attributes
    ----------
    eta : array of shape (n, m, p)
        Linear predictor of the rows.
    left_out : array of shape (n, m, p)
        Linear predictor of each row when it was left out.
    target : array of shape (n, m, p)
        The last pseudo-responses.
    dual : array of shape (n, m, p)
        Coefficients are F' times it.
    intercept : array of shape (n, p)
        The intercept.
    """

    eta: FloatArray
    left_out: FloatArray
    target: FloatArray
    dual: FloatArray
    intercept: FloatArray


def _prior_rows(penalty: FloatArray, variance: float) -> FloatArray:
    """How many rows the prior of an intercept counts for; without coefficients it stands alone."""
    return np.where(np.isinf(penalty), 1.0, penalty) / variance


@dataclass(frozen=True)
class RidgePath:
    """The decomposed features of each user: ridge fits for any penalty cost little after it.

    Attributes
    ----------
    F : array of shape (n, m, q)
        Features.
    size : array of shape (n,)
        Mean of the diagonal of FF': penalties and intercept variances are in units of it.
    P, s : arrays
        Left singular vectors and squared singular values of F.
    """

    F: FloatArray
    size: FloatArray
    P: FloatArray
    s: FloatArray

    @classmethod
    def of(cls, F: FloatArray) -> RidgePath:
        """Decompose the features of each user."""
        P, s = _left_factor(F)
        size = s.sum(axis=1) / F.shape[1]
        return cls(F, np.where(size > 0, size, 1.0), P, s)

    def take(self, users: NDArray[np.intp]) -> RidgePath:
        """Return the path of some of the users."""
        return RidgePath(self.F[users], self.size[users], self.P[users], self.s[users])

    def residuals(
        self, Y: FloatArray, penalty: FloatArray, variance: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return BY, diag(B) and the intercept, for one relative penalty of each user."""
        g = (self.s / (self.s + (penalty * self.size)[:, None]))[:, :, None]
        both = np.concatenate([Y, np.ones((*Y.shape[:2], 1))], axis=2)
        left = both - np.matmul(self.P, g * np.matmul(transposed(self.P), both))
        BY, B1 = left[:, :, :-1], left[:, :, -1:]
        diagonal = 1.0 - np.matmul(self.P * self.P, g)[:, :, 0]
        if variance == 0 or Y.shape[1] == 1:  # one row cannot tell its intercept
            return BY, diagonal, np.zeros((len(BY), BY.shape[2]))
        inner = B1.sum(axis=1)[:, 0] + _prior_rows(penalty, variance)
        weight = (1.0 / np.maximum(inner, 1e-300))[:, None]
        intercept = weight * np.ascontiguousarray(transposed(BY)).sum(axis=2)
        BY = BY - B1 * intercept[:, None, :]
        return BY, diagonal - B1[:, :, 0] ** 2 * weight, intercept

    def grid_errors(
        self, Y: FloatArray, penalties: FloatArray, variances: FloatArray
    ) -> FloatArray:
        """Mean squares of left-out rows, for each column of Y: (n, penalties, variances, columns).

        The same numbers as `residuals`, for all penalties in one product.
        """
        (n, m, c), L = Y.shape, len(penalties)
        g = self.s[:, :, None] / (self.s[:, :, None] + self.size[:, None, None] * penalties)
        both = np.concatenate([Y, np.ones((n, m, 1))], axis=2)
        inside = g[:, :, :, None] * np.matmul(transposed(self.P), both)[:, :, None, :]
        fitted = np.matmul(self.P, inside.reshape(n, -1, L * (c + 1))).reshape(n, m, L, c + 1)
        left = both[:, :, None, :] - fitted
        BY, B1 = left[..., :-1], left[..., -1]
        diagonal = 1.0 - np.matmul(self.P * self.P, g)
        out = np.empty((n, L, len(variances), c))
        for t, variance in enumerate(variances):
            R, D = BY, diagonal
            if variance > 0 and m > 1:
                rows = _prior_rows(penalties, variance)
                weight = 1.0 / np.maximum(B1.sum(axis=1) + rows, 1e-300)
                R = BY - B1[..., None] * (weight[:, :, None] * BY.sum(axis=1))[:, None]
                D = diagonal - B1 * B1 * weight[:, None]
            R = R / np.maximum(D, _LEAST_DIAGONAL)[..., None]
            out[:, :, t] = (R * R).sum(axis=1) / m
        return out

    def fit(
        self,
        Y: FloatArray,
        offset: FloatArray,
        loss: ConvexLoss,
        penalty: FloatArray,
        variance: float,
    ) -> LocalFit:
        """Fit Y by offset + F b + intercept under the loss."""
        eta = offset
        for _ in range(loss.n_steps):
            target, own = loss.pseudo(Y, eta), penalty
            if loss.typical is not None:
                own = penalty * loss.typical(Y, eta)
            BY, diagonal, intercept = self.residuals(target - offset, own, variance)
            eta = target - BY
        if loss.typical is not None:  # once more in units of ordinary rows: a fixed point of both
            step = loss.pseudo(Y, eta) - eta
            target = eta + step / _each(loss.typical(Y, eta), Y)
            BY, diagonal, intercept = self.residuals(target - offset, penalty, variance)
        left_out = target - BY / np.maximum(diagonal, _LEAST_DIAGONAL)[:, :, None]
        dual = BY / _each(penalty * self.size, BY)
        return LocalFit(eta, left_out, target, dual, intercept)

    def coefficients(self, fit: LocalFit) -> FloatArray:
        """Return the coefficients (n, q, p) of a fit."""
        return moments(self.F, fit.dual)
