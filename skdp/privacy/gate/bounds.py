"""What is known of a statistic before it is read, and the grid on which its noise is added."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.sketch_laws import SketchLaw
from skdp.privacy.noise import integers as noise

FloatArray = NDArray[np.float64]
_SMALLEST_STEP = 2.0**-1022  # below it floats lose their relative accuracy
_MAX_ROUNDING = 1 / 4  # rounding may take a quarter of the noise at most


@dataclass(frozen=True)
class Bound:
    """What the public knows of a statistic before any data is touched.

    Attributes
    ----------
    name : str
        Name of the release, as it appears in the ledger.
    shape : tuple of int
        Shape of the answer.
    l2 : float
        Supremum over neighbours of the Frobenius norm of the change.
    symmetric : bool
        The change is a symmetric matrix: noise is (G + G')/2, off-diagonal variance half.
    slack : float or None
        Rounding, in steps, that `l2` does not cover. None: ``sqrt(size)``, a rounded float.
    cross : float
        Rounding that grows like ``1/sqrt(step)``: the answer changes by at most
        ``l2/step + cross/sqrt(step) + slack`` steps.
    min_step : float
        The step may not be finer: integers of the query stay exact down to it.
    l1 : float or None
        Supremum of the l1 norm of the change, for Laplace noise (delta = 0); `l1_slack` steps of
        rounding are not in it (None: size).
    linf : float or None
        For `choose`: supremum of (largest - smallest) change over the scores.
    law : SketchLaw or None
        Of a random sketch, whose change is random: its norm in steps is at most `l2_steps` times
        the root of a variable of this law. Such bounds need `grant_sketches` of the streams.
    cells : int
        For `flip`: how many cells of a binary array of this shape differ at most. The answer is
        the sorted places (int64) of its ones, counted along its rows.
    remedy : str
        What to do where rounding alone exceeds the budget.
    """

    name: str
    shape: tuple[int, ...]
    l2: float
    symmetric: bool = False
    slack: float | None = None
    cross: float = 0.0
    min_step: float = 0.0
    l1: float | None = None
    l1_slack: float | None = None
    linf: float | None = None
    law: SketchLaw | None = None
    cells: int = 0
    remedy: str = "Use a larger 'epsilon' or fewer features."

    @property
    def size(self) -> int:
        """Number of coordinates of the answer."""
        return math.prod(self.shape)

    @property
    def l2_slack(self) -> float:
        """Rounding of the Frobenius norm, in steps."""
        return math.sqrt(self.size) if self.slack is None else self.slack

    def l2_steps(self, step: float) -> float:
        """Largest Frobenius norm of the change of the integer answer, in steps."""
        return self.l2 / step + self.cross / math.sqrt(step) + self.l2_slack

    def l1_steps(self, step: float) -> float:
        """Largest l1 norm of the change of the integer answer, in steps."""
        slack = float(self.size) if self.l1_slack is None else self.l1_slack
        return math.inf if self.l1 is None else self.l1 / step + slack


@dataclass(frozen=True)
class Bounded:
    """A bound, and a way to get the statistic that it bounds.

    ``answer(step)`` is an int64 array in units of `step`; with ``step == 0.0`` (epsilon is
    infinite) a float64 array. ``decode(value, step)``, if given, is applied to the noisy answer: a
    public map that undoes a rounding of public factors.
    """

    bound: Bound
    answer: Callable[[float], NDArray[Any]] = field(repr=False)
    decode: Callable[[FloatArray, float], FloatArray] | None = field(default=None, repr=False)


class PrivateQuery:
    """Base of the classes that own private data: `Ask` wraps these, and nothing else."""


def _check_positive(name: str, sensitivity: float) -> None:
    if not 0 < sensitivity < math.inf:
        raise PrivacyError(f"the sensitivity of {name!r} must be positive and finite")


def _checked_step(
    bound: Bound, step: float, change: Callable[[float], float], allowed: float
) -> float:
    """Return the step if it is an ordinary float for which the claim holds; else refuse."""
    if not (_SMALLEST_STEP <= step < math.inf and change(step) <= allowed):
        raise PrivacyError(
            f"the scale of {bound.name!r} is beyond floating point; use a 'clip_norm' nearer to 1"
        )
    return step


def _room(bound: Bound, slack: float, noise_steps: float) -> float:
    """Return what rounding leaves of the noise (in steps, for one unit of loss); else refuse."""
    room = noise_steps - slack
    if not room > 0 or slack > _MAX_ROUNDING * noise_steps:
        raise ValueError(
            f"The budget is too small for the release {bound.name!r} of {bound.size} numbers: "
            f"rounding alone would exceed it. {bound.remedy}"
        )
    return room


def gaussian_step(bound: Bound, mu: float, sigma: float = noise.EFFECTIVE_SIGMA) -> float:
    """Return the step for which ``l2/step + cross/sqrt(step) + slack == mu * sigma``.

    The noise always has the same integer scale `sigma`; the step carries the budget. With
    u = 1/sqrt(step) this is a quadratic in u.
    """
    _check_positive(bound.name, bound.l2)
    room = _room(bound, bound.l2_slack, mu * sigma)
    root = 2 * math.sqrt(bound.l2) * math.sqrt(room)
    u = 2 * room / (bound.cross + math.hypot(bound.cross, root))  # without cancellation
    step = max((1 + 1e-12) * (1 / u) * (1 / u), bound.min_step)
    return _checked_step(bound, step, bound.l2_steps, mu * sigma)


def laplace_step(bound: Bound, epsilon: float) -> float:
    """Return the step for which ``l1/step + slack == epsilon * integer Laplace scale``."""
    if bound.l1 is None:
        raise ValueError(
            f"delta=0 needs a bound on the l1 norm, and the release {bound.name!r} has none. "
            "Use delta > 0, or an option whose releases are counts or single vectors."
        )
    _check_positive(bound.name, bound.l1)
    slack = float(bound.size) if bound.l1_slack is None else bound.l1_slack
    room = _room(bound, slack, epsilon * noise.LAPLACE_SCALE)
    step = max((1 + 1e-12) * bound.l1 / room, bound.min_step)
    return _checked_step(bound, step, bound.l1_steps, epsilon * noise.LAPLACE_SCALE)
