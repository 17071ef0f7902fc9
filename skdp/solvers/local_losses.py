"""Convex losses of one user as ridge fits to pseudo-responses: each step decreases the loss.

Notation as in `skdp.solvers.local_fits`: targets Y and linear predictors are (n, m, p).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_HUBER = 2.0  # times the median absolute residual: 1.35 standard deviations


def each(values: NDArray[Any], A: FloatArray) -> NDArray[Any]:
    """Shape one number for each user so that it multiplies the users of A."""
    return values.reshape(-1, *[1] * (A.ndim - 1))


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
        return np.asarray(eta - loss.derivative(Y, eta) / each(steepest(Y, eta), Y))

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
