"""Correlated noise for running sums: which sums of steps get noise, and how much it adds up to.

Notation: step j of T contributes X_j, an integer array. One unit changes X_j by D_j, and the
contract of every stream is that the *sum over time* of the norms ||D_j|| is at most the bound. (A
bound on the root of the sum of their squares is not enough: 2.7 times too little at T = 33.)

Both mechanisms publish integers y_i = sum_j C_ij X_j + z_i, C a public integer matrix with zeros
above the diagonal, z_i independent integer Gaussians. Proof: D_j moves the vector (y_i) by
||C_.j|| ||D_j||, so a unit moves it by at most max_j ||C_.j|| times the bound (triangle
inequality), and the streams may depend on earlier answers, since y_i needs no later step (Denisov
et al. 2022, theorem 2.1). All that is computed from the y_i is post-processing. There is no
rounding: C is integer, and sums modulo 2**64 keep the proof whatever the size of the data.

- Square root: C is Toeplitz with coefficients near those of (1 - x)^(-1/2).
- Tree: C_ij is 1 where node i of the dyadic tree holds step j; a step lies in one node a level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from skdp.privacy.gate.bounds import Bound

MECHANISMS = ("auto", "sqrt", "tree")
_STATE_BYTES = 2**28  # "auto" keeps the square root's state, which grows with time, below this
_LONGEST_SQRT = 2**13  # and its time, which grows with the square of the horizon
_MOST_STEPS = 2**40

FloatArray = NDArray[np.float64]
Node = tuple[int, int]  # (level, index): steps index * 2**level + 1 .. (index + 1) * 2**level


def square_root_coefficients(horizon: int) -> NDArray[np.int64]:
    """Return integers near 2**b binom(2j, j) / 4**j, the series of (1 - x)^(-1/2).

    Rounding by at most 1/2 adds horizon/12 to the squared norm 4**b (ln(horizon)/pi + 1.06) of a
    row of the inverse, to first order; b keeps this below one percent. Coarser is better: the unit
    of the steps, of which the largest coefficient is a multiple, gets finer.
    """
    j = np.arange(1, horizon, dtype=np.float64)
    exact = np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))
    bits = math.ceil(math.log2(2.6 * horizon) / 2)
    rounded = np.rint(exact * 2.0**bits).astype(np.int64)
    return np.asarray(rounded // np.gcd.reduce(rounded))


def prefix_weights(coefficients: NDArray[np.int64]) -> FloatArray:
    """Return b with b * c = (1, 1, 1, ...): prefix sums from encoded steps."""
    c = coefficients[1:].astype(np.float64)
    b = np.empty(len(coefficients))
    for n in range(len(b)):
        b[n] = (1.0 - c[:n] @ b[:n][::-1]) / float(coefficients[0])
    return b


def dyadic_cover(start: int, stop: int, levels: int = 64) -> Iterator[Node]:
    """Yield the dyadic nodes, of few levels, that make up the steps start + 1 .. stop."""
    while start < stop:
        largest = (stop - start).bit_length() - 1
        aligned = (start & -start).bit_length() - 1 if start else largest
        level = min(largest, aligned, levels - 1)
        yield level, start >> level
        start += 1 << level


@dataclass(frozen=True)
class StreamSchedule:
    """What a stream does, from public sizes.

    Attributes
    ----------
    mechanism : {"sqrt", "tree"}
        How the noise is correlated.
    horizon : int
        Number of releases.
    window : int or None
        Each release is the sum of so many last steps (of all steps, with None).
    levels : int
        Levels of the tree that get noise.
    coefficients, weights : ndarray
        Of the square root: encoding, and decoding.
    """

    mechanism: str
    horizon: int
    window: int | None = None
    levels: int = 0
    coefficients: NDArray[np.int64] = field(default_factory=lambda: np.ones(0, np.int64))
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def factor(self) -> float:
        """Norm of the largest column of C: what a unit contribution moves all y_i by."""
        if self.mechanism == "tree":
            return math.sqrt(self.levels)
        return float(np.linalg.norm(self.coefficients.astype(np.float64))) * (1 + 1e-12)

    @property
    def unit(self) -> int:
        """Largest coefficient: divides sensitivity and noise scale in the ledger."""
        return 1 if self.mechanism == "tree" else int(self.coefficients[0])

    @property
    def draws(self) -> int:
        """Number of arrays of noise, at most."""
        return self.horizon if self.mechanism == "sqrt" else 2 * self.horizon

    @property
    def note(self) -> str:
        """Words for the ledger."""
        name = "square-root" if self.mechanism == "sqrt" else "tree"
        window = "" if self.window is None else f" of the last {self.window} steps"
        return f", {name} stream of {self.horizon} releases{window}"

    def noise_factor(self, steps: int) -> float:
        """Standard deviation of the release after so many steps, in units of that of one z_i."""
        if self.mechanism == "sqrt":
            return float(np.linalg.norm(self.weights[:steps]))
        start = 0 if self.window is None else max(0, steps - self.window)
        return math.sqrt(sum(1 for _ in dyadic_cover(start, steps, self.levels)))

    def total_factor(self, steps: int) -> float:
        """Standard deviation of that release against one release at the same budget."""
        return self.factor * self.noise_factor(steps)

    def widened(self, bound: Bound, touches: int) -> Bound:
        """Return the bound of all y_i together.

        One unit touches at most so many steps, and rounding that the bound of a step leaves out
        (`slack`, `cross`) comes with each.
        """
        times = self.factor * touches
        l2, cross = self.factor * bound.l2, times * bound.cross
        return replace(bound, l2=l2, slack=times * bound.l2_slack, cross=cross, l1=None)


def _check_count(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name!r} must be a positive int. Got {value!r} instead.")
    if value > most:
        raise ValueError(f"{name!r} must be at most {most}. Got {value!r} instead.")
    return int(value)


def stream_schedule(
    size: int, horizon: int, mechanism: str = "auto", window: int | None = None
) -> StreamSchedule:
    """Choose and describe a stream of arrays of `size` numbers, from public sizes.

    Parameters
    ----------
    size : int
        Numbers in one answer.
    horizon : int
        Number of releases.
    mechanism : {"auto", "sqrt", "tree"}
        "sqrt" has less noise, a state of all steps, and prefix sums only. "auto" takes it where
        there is no window and the state stays below 256 MB.
    window : int or None
        Release the last so many steps (tree only).
    """
    horizon = _check_count("horizon", horizon, _MOST_STEPS)
    if mechanism not in MECHANISMS:
        raise ValueError(f"'mechanism' must be one of {MECHANISMS}. Got {mechanism!r} instead.")
    if window is not None:
        window = _check_count("window", window, horizon)
        if mechanism == "sqrt":
            raise ValueError("mechanism='sqrt' has no windows; use 'tree' or 'auto'.")
    small = horizon <= _LONGEST_SQRT and 16 * size * horizon <= _STATE_BYTES
    if mechanism == "sqrt" or (mechanism == "auto" and window is None and small):
        coefficients = square_root_coefficients(horizon)
        weights = prefix_weights(coefficients)
        return StreamSchedule("sqrt", horizon, None, 0, coefficients, weights)
    return StreamSchedule("tree", horizon, window, (window or horizon).bit_length())
