"""The mean of the users' heads, which the classifier releases: a model for users without rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.solvers.global_models import GlobalModel
from skdp.solvers.personalization import Count, NumberMessage, SumMessage
from skdp.solvers.user_batches import UserBatch
from skdp.solvers.user_heads import AsksHeads, Heads

FloatArray = NDArray[np.float64]
_CLASSES = 0.3  # of the share of a mean head: where the classes lie
_LOGIT, _BESIDE = 1.0, 0.5  # reach of intercepts; their level, in that of the coefficients
_RARE = 0.005  # least share of a class, before logarithms


@dataclass(frozen=True)
class HeadNorms(NumberMessage):
    """The norm of each user's coefficients (inf where it is not finite)."""

    heads: Heads

    name = "coef"

    @property
    def public(self) -> tuple[FloatArray | None, ...]:
        """Its arrays."""
        view = self.heads.view
        return view.whitener, view.bounds, view.center, self.heads.U

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the norms."""
        size = self.heads.U.shape[1] * self.heads.model.intercept.size
        values = self.heads.small(batch)[:, :size]
        sizes = np.sqrt((values * values).sum(axis=1))
        return np.where(np.isfinite(sizes), sizes, np.inf)


@dataclass(frozen=True)
class ClassMeans(SumMessage):
    """The shares of each user's rows that lie in the p classes: a norm of at most 1."""

    p: int

    name = "class_means"
    public = ()

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """One nonnegative vector."""
        return (((self.p,), 1.0, True),)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return the shares."""
        means = np.ldexp(batch.Y.mean(axis=1), batch.y_exponent[:, None])
        return np.asarray(np.clip(means, 0.0, 1.0))


@dataclass(frozen=True)
class MeanHead(SumMessage):
    """Each user's coefficients, and its intercept about public logits, within a public bound."""

    heads: Heads
    logits: FloatArray
    coef_bound: float

    name = "mean_head"

    @property
    def public(self) -> tuple[Any, ...]:
        """Its numbers."""
        view = self.heads.view
        sight = view.bounds, view.center
        return view.whitener, *sight, self.heads.U, self.logits, self.coef_bound

    @property
    def beside(self) -> float:
        """Level of intercepts, for which each counts up to one logit."""
        return _BESIDE * self.coef_bound

    @property
    def parts(self) -> tuple[tuple[Any, ...], ...]:
        """Coefficients, and intercepts."""
        p = len(self.logits)
        k = self.heads.U.shape[1]
        return ((k * p,), self.coef_bound, False), ((p,), self.beside, False)

    def __call__(self, batch: UserBatch) -> FloatArray:
        """Return both, the intercepts in units of one logit."""
        p, unit = len(self.logits), self.beside / _LOGIT
        values = self.heads.small(batch)
        return np.concatenate([values[:, :-p], unit * (values[:, -p:] - self.logits)], axis=1)


def global_model(
    ask: AsksHeads, heads: Heads, count: Count, coef_bound: float, share: float
) -> GlobalModel:
    """Release the mean head, clipped at a public bound: a model for users without rows.

    Intercepts are logits. Released shares of the classes say where they lie, and each counts up to
    one logit from there, whatever bounds the coefficients.
    """
    k, p = heads.U.shape[1], heads.model.intercept.size
    logits = np.zeros(p)
    if heads.view.intercept:
        shares = ClassMeans(p).asked(ask, share=_CLASSES * share)
        level = count.value / max(p, 2)  # of classes that are alike
        gap = _kept(shares.value - level, shares.noise_scale)
        logits, share = class_logits((level + gap) / count.value), (1 - _CLASSES) * share
    message = MeanHead(heads, logits, coef_bound)
    released = message.asked(ask, share=share)
    V = _kept(released.value[: k * p], released.noise_scale) / count.value
    coef = heads.view.coefficients(heads.U @ V.reshape(k, p))
    noise = released.noise_scale * math.sqrt((k + 1) * p) / count.value / coef_bound
    if heads.view.intercept:
        gap = _kept(released.value[k * p :], released.noise_scale) / count.value
        logits = logits + gap * _LOGIT / message.beside
    if heads.view.center is not None:
        logits = logits - heads.view.center @ coef
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
