"""The mean of the users' heads, which the classifier releases: a model for users without rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.personalization import Count, GlobalModel, UserBatch
from skdp.solvers.user_heads import AsksHeads, Heads

FloatArray = NDArray[np.float64]
_CLASSES = 0.3  # of the share of a mean head: where the classes lie
_LOGIT, _BESIDE = 1.0, 0.5  # reach of intercepts; their level, in that of the coefficients
_RARE = 0.005  # least share of a class, before logarithms


def head_norms(heads: Heads) -> Callable[[UserBatch], FloatArray]:
    """Return the norm of each user's coefficients (inf where it is not finite)."""
    size = heads.U.shape[1] * heads.model.intercept.size

    def norms(batch: UserBatch) -> FloatArray:
        values = heads.small(batch)[:, :size]
        sizes = np.sqrt((values * values).sum(axis=1))
        return np.where(np.isfinite(sizes), sizes, np.inf)

    return norms


def class_means(batch: UserBatch) -> FloatArray:
    """Return the shares of each user's rows that lie in the classes: a norm of at most 1."""
    means = np.ldexp(batch.Y.mean(axis=1), batch.y_exponent[:, None])
    return np.asarray(np.clip(means, 0.0, 1.0))


def about(heads: Heads, logits: FloatArray, unit: float) -> Callable[[UserBatch], FloatArray]:
    """Return each user's coefficients, and its intercept about public logits, in a public unit."""
    p = len(logits)

    def parts(batch: UserBatch) -> FloatArray:
        values = heads.small(batch)
        return np.concatenate([values[:, :-p], unit * (values[:, -p:] - logits)], axis=1)

    return parts


def global_model(
    ask: AsksHeads, heads: Heads, count: Count, coef_bound: float, share: float
) -> GlobalModel:
    """Release the mean head, clipped at a public bound: a model for users without rows.

    Intercepts are logits. Released shares of the classes say where they lie, and each counts up to
    one logit from there, whatever bounds the coefficients.
    """
    k, p = heads.U.shape[1], heads.model.intercept.size
    logits, beside = np.zeros(p), _BESIDE * coef_bound
    if heads.view.intercept:
        shares = ask.sums("class_means", class_means, (((p,), 1.0, True),), share=_CLASSES * share)
        level = count.value / max(p, 2)  # of classes that are alike
        gap = _kept(shares.value - level, shares.noise_scale)
        logits, share = class_logits((level + gap) / count.value), (1 - _CLASSES) * share
    parts = (((k * p,), coef_bound, False), ((p,), beside, False))
    local = about(heads, logits, beside / _LOGIT)
    released = ask.sums("mean_head", local, parts, share=share)
    V = _kept(released.value[: k * p], released.noise_scale) / count.value
    coef = heads.view.coefficients(heads.U @ V.reshape(k, p))
    noise = released.noise_scale * math.sqrt((k + 1) * p) / count.value / coef_bound
    if heads.view.intercept:
        gap = _kept(released.value[k * p :], released.noise_scale) / count.value
        logits = logits + gap * _LOGIT / beside
    return GlobalModel(coef, logits, noise)


def _kept(sums: FloatArray, noise: float) -> FloatArray:
    """Return noisy sums, shortened by what the noise alone adds to their square."""
    square = float(sums @ sums)
    return np.asarray(sums * max(0.0, 1 - sums.size * noise**2 / max(square, 1e-300)))


def class_logits(shares: FloatArray) -> FloatArray:
    """Return the intercepts that predict released shares of the classes: of one, or of each."""
    kept = np.clip(shares, _RARE, 1 - _RARE)
    if len(kept) == 1:
        return np.asarray(np.log(kept / (1 - kept)))
    return np.asarray(np.log(kept) - np.log(kept).mean())
