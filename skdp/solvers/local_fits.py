"""Fits of one user, made for many users at once: what a user computes alone, from public arrays.

Notation: arrays start with (users, rows): features F are (n, m, q), targets Y are (n, m, p). With
K = FF' + t 11' (t the prior variance of the intercept, inf: free) and B = lam (K + lam)^-1, a ridge
fit leaves the residuals BY, and (BY)_i / B_ii is the residual of row i when it was left out: exact,
for a free intercept too. Other losses are a fixed number of ridge fits to pseudo-responses, which
decrease the loss at each step; nothing stops early, so the number of steps reveals nothing about
the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from skdp._limits import NEGLIGIBLE, FloatArray
from skdp.data.factorisations import eigh, row_squares

# Convex losses of one user as ridge fits to pseudo-responses: each step decreases the loss.
#
# Notation as above: targets Y and linear predictors are (n, m, p).


Arrays = tuple[NDArray[Any], ...]
_HUBER = 2.0  # times the median absolute residual: 1.35 standard deviations
_STEPS = 20  # ridge fits for a loss other than squares: more cost time alone


def each(values: NDArray[Any], A: FloatArray) -> NDArray[Any]:
    """Shape one number for each user so that it multiplies the users of A."""
    return values.reshape(-1, *[1] * (A.ndim - 1))


class ConvexLoss(NamedTuple):
    """A convex loss as ridge fits to pseudo-responses.

    Attributes
    ----------
    pseudo : callable
        (Y, linear predictor) -> pseudo-responses: predictor minus scaled gradient, the scale an
        upper bound of the curvature, so that each step decreases the loss.
    losses : callable
        (Y, linear predictor) -> loss of each row, (n, m).
    mean : callable or None
        Linear predictor -> expected indicators, where Y are indicators of classes.
    judges : bool
        Whether rules for heads are compared by it, or by least squares, where leaving out is exact.
    skewed : bool
        Whether residuals of two signs cost differently: intercepts are then no means.
    n_steps : int
        How many ridge fits.
    """

    pseudo: Callable[[FloatArray, FloatArray], FloatArray]
    losses: Callable[[FloatArray, FloatArray], FloatArray]
    mean: Callable[[FloatArray], FloatArray] | None = None
    judges: bool = False
    skewed: bool = False
    n_steps: int = _STEPS


class RowLoss(Protocol):
    """A convex loss of single residuals, checked: what users may minimise."""

    def value(self, residual: FloatArray) -> FloatArray:
        """Return the loss of each residual."""

    def derivative(self, residual: FloatArray) -> FloatArray:
        """Return its derivative at each residual."""


_EITHER: FloatArray = np.array([[[0.5], [3.0]]])


def convex_loss(loss: str | RowLoss) -> ConvexLoss:
    """Return a loss as ridge fits: one of `LOSSES`, or one of residuals.

    A loss with a declared `curvature` takes gradient steps of its inverse. Another one has a
    derivative in declared `bounds` (a, b): its mean over residuals up to w away, (value(r + w) -
    value(r - w)) / 2w, has a slope of at most (b - a)/2w.
    """
    if isinstance(loss, str):
        return LOSSES[loss]

    def losses(Y: FloatArray, eta: FloatArray) -> FloatArray:
        return np.asarray(loss.value(Y - eta).sum(axis=2))

    skewed = not np.array_equal(loss.value(_EITHER), loss.value(-_EITHER))
    curvature = getattr(loss, "curvature", None)
    if curvature is not None:

        def smooth(Y: FloatArray, eta: FloatArray) -> FloatArray:
            return np.asarray(eta + loss.derivative(Y - eta) / curvature)

        return ConvexLoss(smooth, losses, judges=True, skewed=skewed)
    low, high = loss.bounds  # type: ignore[attr-defined]

    def steep(Y: FloatArray, eta: FloatArray) -> FloatArray:
        R = Y - eta
        width = _median_size(R)
        return np.asarray(eta + (loss.value(R + width) - loss.value(R - width)) / (high - low))

    return ConvexLoss(steep, losses, skewed=skewed)


def _square_loss(Y: FloatArray, eta: FloatArray) -> FloatArray:
    R = Y - eta
    return np.asarray((R * R).sum(axis=2))


def _median_size(R: FloatArray) -> FloatArray:
    return np.asarray(np.median(np.abs(R), axis=(1, 2))[:, None, None])


def _huber_pseudo(Y: FloatArray, eta: FloatArray) -> FloatArray:
    R = Y - eta
    width = _HUBER * _median_size(R)
    return np.asarray(eta + np.clip(R, -width, width))


def _sigmoid(eta: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(eta, -40.0, 40.0))))


def softmax(eta: FloatArray) -> FloatArray:
    """Return positive numbers of sum 1 along the last axis."""
    shifted = np.exp(np.maximum(eta - eta.max(axis=2, keepdims=True), -40.0))
    return np.asarray(shifted / shifted.sum(axis=2, keepdims=True))


LOSSES: dict[str, ConvexLoss] = {
    "squared": ConvexLoss(lambda Y, eta: Y, _square_loss, n_steps=1),
    "huber": ConvexLoss(_huber_pseudo, lambda Y, eta: np.abs(Y - eta).sum(axis=2), judges=True),
    "logistic": ConvexLoss(lambda Y, eta: eta + 4.0 * (Y - _sigmoid(eta)), _square_loss, _sigmoid),
    "softmax": ConvexLoss(lambda Y, eta: eta + 2.0 * (Y - softmax(eta)), _square_loss, softmax),
}


def transposed(A: FloatArray) -> FloatArray:
    """Transpose each user's matrix."""
    return A.swapaxes(1, 2)


def own_means(A: FloatArray) -> FloatArray:
    """Return each user's own column means, (n, 1, q)."""
    return np.asarray(np.matmul(np.full((1, A.shape[1]), 1.0 / A.shape[1]), A))


def shrunk_means(A: FloatArray) -> FloatArray:
    """Return own column means, shrunk to 0 by the part of their squares that chance explains."""
    means, m = own_means(A), A.shape[1]
    chance = np.square(A - means).mean(axis=1, keepdims=True) / max(m - 1, 1)
    kept = 1 - chance / np.maximum(np.square(means), 1e-300)
    return np.asarray(means * np.maximum(kept, 0.0))


def centred(A: FloatArray) -> FloatArray:
    """Subtract each user's own column means (if there are three rows); constants become zero."""
    if A.shape[1] < 3:
        return A
    means = own_means(A)
    out: FloatArray = A - means
    left, most = np.square(out).sum(axis=1), np.square(2e-13 * means[:, 0])
    alike = (left <= A.shape[1] * most) & (means[:, 0] != 0)  # most users have no such column
    some = np.flatnonzero(alike.any(axis=1))
    if some.size:
        constant = np.abs(out[some]) <= 1e-13 * np.abs(A[some]).max(axis=1, keepdims=True)
        out[some] = np.where(constant, 0.0, out[some])
    return out


def _norms(A: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(row_squares(np.ascontiguousarray(A).reshape(len(A), -1))))


def unit(A: FloatArray) -> FloatArray:
    """Scale each user's array to Frobenius norm 1 (zero stays zero)."""
    norms = _norms(A)
    return np.asarray(A / each(np.where(norms > 0, norms, np.inf), A))


def own_scale(A: FloatArray) -> FloatArray:
    """Root mean square of each user's entries; 1 where it is 0."""
    rms = _norms(A) / np.sqrt(A.shape[1] * A.shape[2])
    return np.asarray(np.where(rms > 0, rms, 1.0))


def moments(F: FloatArray, Y: FloatArray) -> FloatArray:
    """F'Y of each user: (n, q, p)."""
    return np.asarray(np.matmul(transposed(F), Y))


# -- ridge -----------------------------------------------------------------------------------------


def _left_factor(F: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (P, s) with FF' = P diag(s) P', from the smaller of the two Gram matrices."""
    m, q = F.shape[1:]
    if m <= q:
        K = np.matmul(F, transposed(F.copy()))  # of one array it takes half as long again
        s, P = eigh(K)
        return P, np.maximum(s, 0.0)
    s, Q = eigh(np.matmul(transposed(F), F))
    kept = s > 1e-13 * np.maximum(s[:, -1:], 0.0)
    roots = np.where(kept, np.sqrt(np.where(kept, s, 1.0)), np.inf)
    return np.matmul(F, Q) / roots[:, None, :], np.where(kept, s, 0.0)


def _mean_square(s: FloatArray, P: FloatArray) -> FloatArray:
    """Return the mean of the diagonal of FF', 1 where it is 0."""
    size = s.sum(axis=1) / P.shape[1]
    return np.where(size > 0, size, 1.0)


class LocalFit(NamedTuple):
    """One fit of each user.

    Attributes
    ----------
    left_out : array of shape (n, m, p)
        Linear predictor of each row when it was left out.
    dual : array of shape (n, m, p)
        Coefficients are F' times it.
    intercept : array of shape (n, p)
        The intercept.
    """

    left_out: FloatArray
    dual: FloatArray
    intercept: FloatArray


def _rows_first(A: FloatArray) -> FloatArray:
    return np.ascontiguousarray(transposed(A))


def _left_out_squares(BY: FloatArray, diagonal: FloatArray) -> FloatArray:
    """Return mean squares (n, c) of left-out rows."""
    left_out = BY / np.maximum(diagonal, NEGLIGIBLE)[:, :, None]
    return np.asarray(row_squares(left_out).sum(axis=2) / BY.shape[3])


class Basis:
    """Orthonormal columns P (n, m, r) of each user, and what all fits make of them, once."""

    def __init__(self, P: FloatArray) -> None:
        self.P = P

    @cached_property
    def rows(self) -> FloatArray:
        """Each P transposed."""
        return _rows_first(self.P)

    @cached_property
    def squares(self) -> FloatArray:
        """Their squares."""
        return self.rows * self.rows


class RidgePath(NamedTuple):
    """The decomposed features of each user: ridge fits for any penalty cost little after it.

    Attributes
    ----------
    size : array of shape (n,)
        Mean of the diagonal of FF': penalties and intercept variances are in units of it.
    basis : Basis
        Orthonormal columns P (n, m, r).
    s : array of shape (n, r)
        Numbers: FF' = P (diag(s) + W W') P'.
    W : array of shape (n, r, k) or None
        What a few features add to a decomposition that is known; None: nothing.
    F : array of shape (n, m, q) or None
        Features, for their coefficients.
    """

    size: FloatArray
    basis: Basis
    s: FloatArray
    W: FloatArray | None = None
    F: FloatArray | None = None

    @classmethod
    def of(cls, F: FloatArray) -> RidgePath:
        """Decompose the features of each user."""
        P, s = _left_factor(F)
        return cls(_mean_square(s, P), Basis(P), s, None, F)

    def extended(self, part: float, Z: FloatArray) -> RidgePath:
        """Return the path of ``part FF' + (1 - part) ZZ'``; the columns of Z are those of F."""
        P = self.basis.P
        W = math.sqrt(max(0.0, 1.0 - part)) * np.matmul(transposed(P), Z)
        s = part * self.s
        total = s + np.ascontiguousarray((W * W).sum(axis=2))
        return RidgePath(_mean_square(total, P), self.basis, s, W)

    def _left(self, Y: FloatArray, penalty: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return BY (n, c, p, m) and the diagonals of B (n, c, m), for c penalties of each user.

        With h = lam / (s + lam), P'BP is diag(h) minus the outer squares of k vectors: one for each
        column of W after the other, by the formula of Sherman and Morrison. Rows stand last, as the
        longest axis.
        """
        lam = (penalty * self.size[:, None])[:, :, None]
        g = self.s[:, None] / (self.s[:, None] + lam)
        columns, Pt = _rows_first(Y), self.basis.rows
        t = np.matmul(columns, self.basis.P)
        inside = g[:, :, None] * t[:, None]
        diagonal = 1.0 - np.matmul(g, self.basis.squares)
        for v in self._taken_by(lam):
            inside += np.matmul(v, transposed(t))[:, :, :, None] * v[:, :, None]
            diagonal -= np.square(np.matmul(v, Pt))
        taken = np.matmul(inside.reshape(len(t), -1, t.shape[2]), Pt)
        taken = taken.reshape(*g.shape[:2], *columns.shape[1:])
        return np.subtract(columns[:, None], taken, out=taken), diagonal

    def _taken_by(self, lam: FloatArray) -> list[FloatArray]:
        """Return the vectors (n, c, r) of the columns of W."""
        found: list[FloatArray] = []
        if self.W is None:
            return found
        h = lam / (self.s[:, None] + lam)
        for w in np.moveaxis(self.W, 2, 0)[:, :, None]:
            v = h * w
            for u in found:
                v -= (u * w).sum(axis=2, keepdims=True) * u
            gain = np.maximum((v * w).sum(axis=2, keepdims=True), 0.0)
            found.append(v / np.sqrt(lam + gain))
        return found

    def residuals(
        self, Y: FloatArray, penalty: FloatArray, variance: Any, of: Any = slice(None)
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return BY, diag(B) and the intercepts, for c relative penalties (n or 1, c).

        `of` says which of the penalties goes with each of c variances.
        """
        both = np.concatenate([Y, np.ones((*Y.shape[:2], 1))], axis=2)
        left, diagonal = self._left(both, penalty)
        left, diagonal, penalty = left[:, of], diagonal[:, of], penalty[:, of]
        BY, B1 = left[:, :, :-1], left[:, :, -1]
        if Y.shape[1] == 1 and not np.isinf(penalty).all():  # one row determines a level only
            return BY, diagonal, np.zeros(BY.shape[:3])
        # The prior of an intercept counts for some rows; without coefficients it stands alone.
        with np.errstate(divide="ignore"):
            inner = B1.sum(axis=2) + np.where(np.isinf(penalty), 1.0, penalty) / variance
        weight = (1.0 / np.maximum(inner, 1e-300))[:, :, None]
        intercept = weight * BY.sum(axis=3)
        BY = BY - B1[:, :, None] * intercept[:, :, :, None]
        return BY, diagonal - B1 * B1 * weight, intercept

    def errors(self, Y: FloatArray, penalty: Any, variance: Any) -> FloatArray:
        """Return mean squares of left-out rows, all columns together, (n, c): for c of each."""
        known, of = np.unique(np.ravel(penalty), return_inverse=True)
        return _left_out_squares(*self.residuals(Y, known[None], np.asarray(variance), of)[:2])

    def best_dual(self, Y: FloatArray, penalties: FloatArray, variance: float) -> FloatArray:
        """Return the dual coefficients (n, m, p) of the penalty of each user's least error."""
        BY, diagonal, _ = self.residuals(Y, penalties[None], variance)
        best = np.argmin(_left_out_squares(BY, diagonal), axis=1)
        BY = _rows_first(BY[np.arange(len(best)), best])
        return np.asarray(BY / each(penalties[best] * self.size, BY))

    def fit(
        self,
        Y: FloatArray,
        offset: FloatArray,
        loss: ConvexLoss,
        penalty: FloatArray,
        variance: float,
    ) -> LocalFit:
        """Fit Y by offset + F b + intercept under the loss.

        The penalty of each user, and the prior `variance` of intercepts (inf: they are free), are
        in units of `size`.
        """
        eta = offset
        for _ in range(loss.n_steps):
            target = loss.pseudo(Y, eta)
            left, diagonal, intercept = self.residuals(target - offset, penalty[:, None], variance)
            BY = _rows_first(left[:, 0])
            eta = target - BY
        left_out = target - BY / np.maximum(diagonal[:, 0], NEGLIGIBLE)[:, :, None]
        dual = BY / each(penalty * self.size, BY)
        return LocalFit(left_out, dual, intercept[:, 0])

    def coefficients(self, fit: LocalFit) -> FloatArray:
        """Return the coefficients (n, q, p) of a fit."""
        return moments(cast(FloatArray, self.F), fit.dual)


# What the solvers of personal models ask of a batch of users; see `skdp.data.units.Batch`.


class UserBatch(Protocol):
    """Users with equally many rows; see `skdp.data.units.Batch`."""

    @property
    def X(self) -> FloatArray:
        """Rows, (n, m, d)."""

    @property
    def Y(self) -> FloatArray:
        """Targets, (n, m, p)."""

    @property
    def x_exponent(self) -> NDArray[np.intc]:
        """Power of two of the rows."""

    @property
    def y_exponent(self) -> NDArray[np.intc]:
        """Power of two of the targets."""

    def in_own_units(self, centre: bool) -> tuple[UserBatch, FloatArray, FloatArray]:
        """Return rows in units of their users; see `skdp.solvers.scaling.ScaledUsers`."""

    def keep(self, key: Hashable, make: Callable[[], Arrays], *, large: bool = False) -> Arrays:
        """Return what `make` returned for these users under a public key, or call it."""
