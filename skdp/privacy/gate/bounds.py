"""What is fixed before private data are read: sensitivity bounds of releases, and the budget.

A query returns `Bounded`: a public `Bound` and a function that computes the private answer later.
Solvers access private data through `Ask` objects only.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from numpy.typing import NDArray

from skdp._limits import MOST_DENSE, FloatArray
from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, SketchLaw, as_number
from skdp.privacy.noise import integers as noise

# Public facts on a statistic before it is read, and the grid on which its noise is added.


_MAX_ROUNDING = 1 / 4  # largest fraction of the noise that may serve to cover rounding


class Bound(NamedTuple):
    """The public description of a release, with its sensitivity, before any data is read.

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
        The smallest step for which the integers of the query are exact.
    l1 : float or None
        Supremum of the l1 norm of the change, for Laplace noise (delta = 0); `l1_slack` steps of
        rounding are not in it (None: size).
    linf : float or None
        For `choose`: supremum of (largest - smallest) change over the scores.
    law : SketchLaw or None
        Of a random sketch, whose change is random: its norm in steps is at most `l2_steps` times
        the root of a variable of this law. Such bounds need `grant_sketches` of the streams.
    cells : int
        For randomized response: how many cells of a binary array of this shape differ at most. The
        answer is the sorted places (int64) of its ones, counted along its rows.
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
    remedy: str = "Use a larger 'epsilon' or 'delta', or fewer features."

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


class Bounded(NamedTuple):
    """A bound, and a way to get the statistic that it bounds.

    ``answer(step)`` is an int64 array in units of `step`; with ``step == 0.0`` (epsilon is
    infinite) a float64 array. ``decode(value, step)``, if given, is applied to the noisy answer: a
    public map that undoes a rounding of public factors.
    """

    bound: Bound
    answer: Callable[[float], NDArray[Any]]
    decode: Callable[[FloatArray, float], FloatArray] | None = None

    def decoded(self, answer: Answer, step: float) -> Answer:
        """Return a noisy answer after that public map."""
        if self.decode is None or step == 0.0:
            return answer
        return answer._replace(value=self.decode(answer.value, step))


class PrivateQuery:
    """Base of the classes that own private data: `Ask` wraps these, and nothing else.

    `rounding` is larger the smaller the parts of the budget are that releases of a fit have:
    `check_later_releases` multiplies steps of rounding by it, and refuses a budget that these may
    use up.
    """

    rounding = 5.0

    def _with(self, **public: Any) -> Self:
        """Return this query with other public settings."""
        restricted = copy.copy(self)
        vars(restricted).update(public)
        return restricted


def _checked_step(
    bound: Bound, step: float, change: Callable[[float], float], allowed: float
) -> float:
    """Return the step if it is a normal float at which the change is at most `allowed`."""
    if not (sys.float_info.min <= step < math.inf and change(step) <= allowed):
        raise PrivacyError(
            f"the scale of {bound.name!r} is beyond floating point; use a 'clip_norm' nearer to 1"
        )
    return step


def _room(bound: Bound, sensitivity: float, slack: float, noise_steps: float) -> float:
    """Return the noise (in steps, for one unit of loss) minus the slack for rounding, or raise."""
    if not 0 < sensitivity < math.inf:
        raise PrivacyError(f"the sensitivity of {bound.name!r} must be positive and finite")
    if not (noise_steps > 0 and slack <= _MAX_ROUNDING * noise_steps):
        raise ValueError(
            f"The budget is too small to release {bound.name!r} ({bound.size} numbers) on the "
            f"integer grid of the noise. {bound.remedy}"
        )
    return noise_steps - slack


def gaussian_step(bound: Bound, mu: float, sigma: float = noise.EFFECTIVE_SIGMA) -> float:
    """Return the step for which ``l2/step + cross/sqrt(step) + slack == mu * sigma``.

    The noise always has the same integer scale `sigma`; the step carries the budget. With
    u = 1/sqrt(step) this is a quadratic in u.
    """
    room = _room(bound, bound.l2, bound.l2_slack, mu * sigma)
    root = 2 * math.sqrt(bound.l2) * math.sqrt(room)
    u = 2 * room / (bound.cross + math.hypot(bound.cross, root))  # without cancellation
    step = max((1 + 1e-12) * (1 / u) * (1 / u), bound.min_step)
    return _checked_step(bound, step, bound.l2_steps, mu * sigma)


def laplace_step(bound: Bound, epsilon: float) -> float:
    """Return the step for which ``l1/step + slack == epsilon * integer Laplace scale``."""
    if bound.l1 is None:
        raise ValueError(
            f"delta=0 is not available here: Laplace noise needs an l1 sensitivity, and the "
            f"release {bound.name!r} has no bound on it. Use delta > 0."
        )
    slack = float(bound.size) if bound.l1_slack is None else bound.l1_slack
    room = _room(bound, bound.l1, slack, epsilon * noise.LAPLACE_SCALE)
    step = max((1 + 1e-12) * bound.l1 / room, bound.min_step)
    return _checked_step(bound, step, bound.l1_steps, epsilon * noise.LAPLACE_SCALE)


# `Ask`: the interface through which solvers make releases, without access to the data.


Path: TypeAlias = "tuple[tuple[str, tuple[Any, ...]], ...]"


class _Answers(Protocol):
    """What makes the releases of an `Ask`: the session of a fit, or of a federated fit."""

    def answer(self, path: Path, bounded: Bounded, share: float) -> Any: ...


class Ask:
    """A proxy of a query for solvers: each method makes a release, or returns a restricted `Ask`.

    ``ask.gram(share=1.0)`` pays, reads, adds noise and returns the public `Answer`;
    ``ask.clipped(2.0)`` returns an `Ask` for the clipped query. `path` lists the methods and public
    arguments of all restrictions so far.
    """

    def __init__(self, session: _Answers, query: object, path: Path = ()) -> None:
        self._session = session
        self._query = query
        self._path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(type(self._query), name, None)):
            raise AttributeError(f"a query has no release named {name!r}")
        method = getattr(self._query, name)

        def ask(*public: Any, share: float | None = None) -> Any:
            out, path = method(*public), (*self._path, (name, public))
            if isinstance(out, PrivateQuery):
                return Ask(self._session, out, path)
            if not isinstance(out, Bounded):
                raise PrivacyError(f"{name} is neither a release nor a restricted query")
            if share is None:
                raise TypeError(f"{name} is a release: it needs a share of the budget")
            return self._session.answer(path, out, share)

        return ask


# What one fit may spend: a validated (epsilon, delta), and the numbers that noise needs.
#
# *Copies.* The error of the noise sampler costs (1 + e^epsilon) times its size in delta, so one
# draw is enough only for epsilons up to about 37 (delta 1e-6). A larger budget may be split into r
# copies, each an (epsilon/r, delta/r) mechanism with a sampler of its own. A release is then the
# mean of r noisy releases of the same integer answer. Interactive mechanisms that run side by side
# compose as if one came after the other (Lyu 2022; Vadhan and Zhang 2023), so basic composition
# gives (epsilon, delta). The mean of the noise is Gaussian, with sqrt(r) times the mu of one copy.


# Every fit is charged for this many noise draws, however many it uses. No fit reaches it (half a
# terabyte of noise), and a constant charge reveals nothing.
MAX_DRAWS = 2**36
SAMPLER_DISTANCE = MAX_DRAWS * noise.DELTA_PER_DRAW  # total variation of a fit's sampled noise

# Noise is calibrated to this epsilon at most: the guarantee for it implies that for larger ones.
MAX_EPSILON = 64.0
_MOST_COPIES = 32


def calibration_epsilon(epsilon: float, delta: float, distance: float = SAMPLER_DISTANCE) -> float:
    """Return the epsilon to calibrate to: the largest whose sampler charge leaves half of delta.

    `distance` is the total variation of the sampled noise: of one fit, or of all runs of a search.
    """
    half = delta / (2 * distance) - 1
    if half <= 1:
        raise ValueError(
            f"'delta' must be 0 or at least {4 * distance:.0e}, the sampler's own error over a fit "
            f"or all runs of a search. Got {delta!r} instead."
        )
    return min(epsilon, math.log(half), MAX_EPSILON)


@lru_cache(maxsize=64)  # the fits of a search have few budgets
def _best_copies(epsilon: float, delta: float) -> int:
    """Return the number of copies with the least noise: 1 unless epsilon is huge."""
    whole = calibration_epsilon(epsilon, delta)
    if epsilon <= whole:
        return 1
    # The delta of a copy has to cover the sampler's error.
    covered = math.ceil(delta / (4 * SAMPLER_DISTANCE) * (1 - 1e-9)) - 1
    most = max(1, min(math.ceil(min(epsilon / whole + 1, _MOST_COPIES)), covered))
    numbers = range(1, most + 1)
    return max(numbers, key=lambda r: math.sqrt(r) * _mu_of_copy(epsilon, delta, 0.0, r)[0])


def _mu_of_copy(
    epsilon: float, delta: float, pure: float, copies: int
) -> tuple[float, float, float]:
    """Return (mu, sampler's charge, pure part) of one of equal copies of a budget."""
    epsilon, delta = epsilon / copies, delta / copies
    calibrated = calibration_epsilon(epsilon, delta)
    charge = noise.sampler_delta(calibrated, MAX_DRAWS)
    pure = min(pure, calibrated / 2)
    return accounting.mu_with_pure(calibrated, delta - charge, pure), charge, pure


@dataclass(frozen=True)
class PrivacyBudget:
    """An (epsilon, delta) budget of one fit, split into a Gaussian and a pure part.

    Parameters
    ----------
    epsilon : float
        In (0, inf]. ``inf`` means that no noise is added at all.
    delta : float
        In [0, 1). With 0 every release is a Laplace release.
    pure_epsilon : float, default=0.0
        Epsilon set aside for pure parts (exponential mechanism) next to Gaussian releases.
    split : bool, default=False
        Whether a huge budget, without the pure part, is split into copies, for sessions whose noise
        all comes from grants. The pure part may then be larger: it was spent before.

    Attributes
    ----------
    mu : float
        Gaussian-DP parameter of all Gaussian releases of the fit together.
    sampler_delta : float
        What the noise sampler itself costs; taken off `delta` before calibrating.
    copies : int
        Number of releases whose mean is one release of the session.
    """

    epsilon: float
    delta: float
    pure_epsilon: float = 0.0
    split: bool = False
    mu: float = field(init=False, default=0.0)
    sampler_delta: float = field(init=False, default=0.0)
    copies: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        epsilon = as_number("'epsilon'", self.epsilon)
        delta = as_number("'delta'", self.delta, high=1.0)
        pure = as_number("'pure_epsilon'", self.pure_epsilon)
        if epsilon == 0:
            raise ValueError(f"'epsilon' must be in the range (0, inf]. Got {self.epsilon!r}.")
        if delta == 1:
            raise ValueError(f"'delta' must be in the range [0, 1). Got {self.delta!r} instead.")
        if not pure < epsilon and not (pure == epsilon == math.inf):
            raise ValueError(f"'pure_epsilon' must be below epsilon. Got {self.pure_epsilon!r}.")
        mu, charge, copies = 0.0, 0.0, 1
        if math.isinf(epsilon):
            mu = pure = math.inf
        elif delta == 0:
            pure = min(epsilon, MAX_EPSILON)
        else:
            mu, charge, least = _mu_of_copy(epsilon, delta, pure, 1)
            most = _best_copies(epsilon - pure, delta) if self.split else 0
            if most > 1 or (most and pure):
                # Given the pure part, whose sampler has no error, each copy holds as if alone.
                each, of_copy, _ = _mu_of_copy(epsilon - pure, delta, 0.0, most)
                if least < pure or math.sqrt(most) * each > mu:
                    mu, charge, copies = math.sqrt(most) * each, most * of_copy, most
                    least = pure
            pure = least
        names = ("epsilon", "delta", "pure_epsilon", "mu", "sampler_delta", "copies")
        for name, value in zip(names, (epsilon, delta, pure, mu, charge, copies), strict=True):
            object.__setattr__(self, name, value)

    @property
    def calibration(self) -> tuple[float, float]:
        """The (epsilon, delta) that noise is calibrated to, the sampler's cost taken off."""
        return calibration_epsilon(self.epsilon, self.delta), self.delta - self.sampler_delta

    @cached_property
    def exact(self) -> bool:
        """Whether nothing is protected (epsilon is infinite)."""
        return math.isinf(self.epsilon)

    @cached_property
    def pure(self) -> bool:
        """Whether delta is 0, so that every release must be pure."""
        return self.delta == 0 and not self.exact

    @cached_property
    def kind(self) -> str:
        """Of the losses of releases: "pure", or "gaussian"."""
        return "pure" if self.pure else "gaussian"


def check_later_releases(
    query: Any, budget: PrivacyBudget, left_open: tuple[Loss, ...],
    sigma: float = noise.EFFECTIVE_SIGMA,
) -> None:  # fmt: skip
    """Refuse a budget that rounding may use up once a part is paid, by the public shape."""
    if left_open:  # its first releases take half of epsilon at most
        budget = PrivacyBudget(budget.epsilon, left_open[-1].value, budget.epsilon / 2)
    n, side = getattr(query, "n_features", 1), min(getattr(query, "shape", (0,)))
    slack = query.rounding * (10 * math.sqrt(max(n, 4)) + min(side, MOST_DENSE))  # moments
    if budget.mu > 0:
        _room(Bound("all parts of a fit", (n,), 1.0), 1.0, slack, budget.mu * sigma)
