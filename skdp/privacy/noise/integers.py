"""Integer noise: Gaussian, Laplace, and the exponential mechanism, from uniform 64-bit words.

Every sampler states its law, its total variation from that law, what it adds to delta, and the
number of words it reads. That number is fixed by the shape: no loop depends on the noise, so the
time taken tells next to nothing about it (`gumbel_choice` reads private scores: see there). The
one exception is the reserve of 16 words that settles ties; a call that reads 2^36 words or fewer
exhausts it with probability below 2^-300, and then reads further words, which keeps the law exact.

All statements suppose uniform independent words.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import cache, partial, reduce
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.noise import table as _table
from skdp.privacy.noise.words import WordArray, Words

IntArray = NDArray[np.int64]

_TABLE_SHA256: Final = "2fa958387ce1de80b46d9431b6d9fb335565b48600dccc8dc496b1d7b8d6f31c"
_LEVEL_FACTOR: Final = 150
_RESERVE: Final = 16
_CHUNK: Final = 2048  # draws: words and work arrays stay in the second-level cache
_FEW: Final = 8  # draws: as fast one by one
_OVERFLOW: Final = _table.CELLS - 1
_LARGEST_GAP: Final = 700
_GAP_BITS: Final = 1010  # exp(-700) > 2^-1010


def sigma_int(levels: int) -> float:
    """Return the standard deviation 300 sqrt(sum of 150^(2 i), i < levels) of the convolution."""
    return _table.TABLE_SIGMA * math.sqrt(sum(_LEVEL_FACTOR ** (2 * i) for i in range(levels)))


def effective_sigma(levels: int) -> float:
    """Return s with N_Z(sigma_int) close to a *rounded* N(0, s^2): s^2 = sigma_int^2 - 1/12.

    An integer answer plus rounded N(0, s^2) is the rounding of the Gaussian mechanism with
    standard deviation s, so accounting uses s and is exact but for `delta_per_draw`.
    """
    return math.sqrt(sigma_int(levels) ** 2 - 1.0 / 12.0)


def delta_per_draw(levels: int) -> float:
    """Return a bound on the total variation of one draw from rounded N(0, effective_sigma^2).

    Table, per level: 2^-116 (2^-116.63, computed from the table).
    Convolution, per further level: 2^-112. P(x) of 150 Y + N_Z(300) is the wanted law times
    sum over y of exp(-(y - c x)^2 / (2 s^2)), 1/s^2 = 1/4 + 1/sigma_Y^2, s >= 1.99995; by
    Poisson summation this is constant within a factor 1 +- 2.01 exp(-2 pi^2 s^2), 2^-112.8.
    Rounding: N_Z(sigma) is within 4.9e-4 / sigma^4 of rounded N(0, sigma^2 - 1/12), sigma >= 3.
    """
    return sampler_error(levels) + rounding_error(sigma_int(levels))


def sampler_error(levels: int) -> float:
    """Return a bound on the total variation of one draw from the discrete Gaussian itself."""
    return levels * 2.0**-116 + (levels - 1) * 2.0**-112


def rounding_error(sigma: float) -> float:
    """Return a bound on the total variation of N_Z(sigma) from rounded N(0, sigma^2 - 1/12)."""
    return 4.9e-4 / sigma**4


LEVELS: Final = 4
SIGMA_INT: Final = sigma_int(LEVELS)
EFFECTIVE_SIGMA: Final = effective_sigma(LEVELS)
DELTA_PER_DRAW: Final = delta_per_draw(LEVELS)

PART_LEVELS: Final = 3  # the noise part of one client of a federation
PART_SIGMA_INT: Final = sigma_int(PART_LEVELS)
PART_EFFECTIVE_SIGMA: Final = effective_sigma(PART_LEVELS)
PART_DELTA_PER_DRAW: Final = delta_per_draw(PART_LEVELS)

LAPLACE_SCALE: Final = 2.0**30


def sampler_delta(epsilon: float, n_draws: int, levels: int = LEVELS) -> float:
    """Return (1 + e^epsilon) n_draws delta_per_draw: what integer Gaussians add to delta.

    Proof: P(S) <= P'(S) + t <= e^eps Q'(S) + delta + t <= e^eps (Q(S) + t) + delta + t, where
    t is the total variation of the released integers. Overflow gives inf.
    """
    if n_draws == 0:
        return 0.0
    try:
        return (1.0 + math.exp(epsilon)) * (n_draws * delta_per_draw(levels))
    except OverflowError:
        return math.inf


def integer_gaussian(words: Words, shape: tuple[int, ...], levels: int = LEVELS) -> IntArray:
    """Draw independent discrete Gaussians of standard deviation ``sigma_int(levels)``.

    Law: P(x) prop. to exp(-x^2 / (2 sigma^2)) on the integers, as x <- 150 x + N_Z(300).
    Total variation: `delta_per_draw` for each draw; see `sampler_delta` for the cost in delta.
    Words: levels * size + 16. A level uses one word: sign, cell of an alias table, 51 bits that
    decide unless they tie with the threshold (probability 2^-51); one spare word decides a tie
    exactly. Support: all integers to 12.7 standard deviations, whatever the answer.

    Parameters
    ----------
    words : Words
        Source of 64-bit words.
    shape : tuple of int
        Shape of the result. Memory beyond the result is a constant.
    levels : int, default=4
        1 to 5 levels of convolution.

    Returns
    -------
    ndarray of int64
    """
    if levels not in range(1, 6):
        raise ValueError(f"levels must be 1, 2, 3, 4 or 5. Got {levels!r}.")
    flat = np.empty(math.prod(shape), dtype=np.int64)
    # One reading of reserve and first chunk: each is a call of the operating system.
    ahead = _Ahead(words, _RESERVE + levels * min(flat.size, _CHUNK))
    table, spare = _gaussian_table(), _Spare(ahead)
    if flat.size <= _FEW:
        few = table.draw_few(_take(ahead, levels * flat.size).tolist(), spare)
        for i in range(flat.size):
            flat[i] = reduce(_next_level, few[i :: flat.size])
        return flat.reshape(shape)
    for part in _chunks(flat):
        drawn = table.draw(_take(ahead, levels * part.size), spare).reshape(levels, part.size)
        part[:] = drawn[0]
        for level in drawn[1:]:
            part *= _LEVEL_FACTOR
            part += level
    return flat.reshape(shape)


def _next_level(high: int, low: int) -> int:
    return _LEVEL_FACTOR * high + low


def integer_laplace(words: Words, shape: tuple[int, ...]) -> IntArray:
    """Draw independent discrete Laplace integers: P(k) prop. to exp(-|k| / LAPLACE_SCALE).

    Law: exact, hence total variation 0, nothing added to delta: an integer answer that changes
    by at most l1 in sum of absolute values is (l1 / LAPLACE_SCALE)-DP.
    A draw is the difference of two geometrics G, P(G = g) prop. to q^g, q = exp(-1 / scale); the
    digits of G in base 4096 are independent and P(digit i = j) prop. to q^(4096^i j). The third
    digit is not bounded: its last entry means 4095 or more (probability 2^-92), which adds 4095
    and draws again, the law being memoryless.
    Words: 6 * size + 16. A tie with the first 51 bits of a threshold takes a spare word; if the
    next 64 bits tie as well, another, against a threshold computed to more bits.

    Parameters
    ----------
    words : Words
        Source of 64-bit words.
    shape : tuple of int
        Shape of the result. Memory beyond the result is a constant.

    Returns
    -------
    ndarray of int64
    """
    spare = _Spare(words)
    flat = np.empty(math.prod(shape), dtype=np.int64)
    for part in _chunks(flat):
        geometric = _geometrics(words, spare, 2 * part.size)
        np.subtract(geometric[: part.size], geometric[part.size :], out=part)
    return flat.reshape(shape)


def integer_geometric(words: Words, size: int) -> IntArray:
    """Draw independent geometrics: P(G >= g) = exp(-g / LAPLACE_SCALE), g = 0, 1, ...

    Law: exact, as that of `integer_laplace`, which is the difference of two of them. Words:
    3 * size + 16.
    """
    spare = _Spare(words)
    flat = np.empty(size, dtype=np.int64)
    for part in _chunks(flat):
        part[:] = _geometrics(words, spare, part.size)
    return flat


def _geometrics(words: Words, spare: _Spare, size: int) -> IntArray:
    digits = _take(words, 3 * size).reshape(3, size)
    geometric = _top_digits(digits[2], spare)
    for place in (1, 0):
        geometric *= _table.CELLS
        geometric += _digit_table(place).draw(digits[place], spare)
    return geometric


def gumbel_choice(words: Words, scores: IntArray, rate: float) -> int:
    """Choose an index with P(i) prop. to exp(rate * scores[i]): the exponential mechanism.

    Law: that of argmax(rate * scores + Gumbel noise), by inversion in integers. If the changes
    of all scores between two neighbours lie in an interval of length r, the choice is r * rate
    bounded range, hence (r * rate)-DP. Nothing is added to delta:

    - the score is replaced by max(score, largest score - 700 / rate), whose changes lie in the
      same interval, so every index keeps a positive probability;
    - log P(i) is right within 2 * 10^-d, d >= 27 and 10^-d <= 10^-17 * rate, and the rate
      used is (1 - 1e-15) * rate. Changes that are not all equal have r >= 1, so the shrinking
      covers the error of a ratio, at most 4 * 10^-d. Equal changes leave the law as it is.

    Words: fixed by the number of candidates and the rate; 20 or so at rates above 1e-10.
    Time: about 12 microseconds a candidate; arithmetic on long numbers is not constant-time, so
    an observer with a clock is outside the guarantee.

    Parameters
    ----------
    words : Words
        Source of 64-bit words.
    scores : ndarray of int64, shape (n_candidates,)
        Larger is better.
    rate : float
        Positive and finite.

    Returns
    -------
    int
    """
    if not (isinstance(scores, np.ndarray) and scores.dtype == np.int64):
        raise TypeError("scores must be an int64 array.")
    if scores.ndim != 1 or scores.size == 0:
        raise ValueError(f"scores must have one dimension and one entry. Got {scores.shape}.")
    if not 0.0 < rate < math.inf:
        raise ValueError(f"rate must be positive and finite. Got {rate!r}.")
    digits = max(27, 17 + math.ceil(-math.log10(rate)))
    margin = math.ceil((digits + 1) * math.log2(10.0))
    bounds = list(accumulate(_choice_weights(scores, rate, digits, _GAP_BITS + margin)))
    n_words = -(-(_GAP_BITS + scores.size.bit_length() + 2 * margin) // 64)
    uniform = int.from_bytes(_take(words, n_words).astype("<u8").tobytes(), "little")
    return bisect_right(bounds, (uniform * bounds[-1]) >> (64 * n_words))


def _choice_weights(scores: IntArray, rate: float, digits: int, bits: int) -> list[int]:
    """Return exp(-rate * gap), gap from the largest score, in units of 2^-bits."""
    top = scores.max(keepdims=True).astype(np.uint64)
    gaps: list[int] = (top - scores.astype(np.uint64)).tolist()  # exact modulo 2^64
    with localcontext(_table.precise(digits + 4)) as context:
        slope = Decimal(float(rate)) * (1 - Decimal("1e-15"))
        largest, unit = Decimal(_LARGEST_GAP), Decimal(1 << bits)
        return [int(unit * context.exp(-min(slope * gap, largest))) for gap in gaps]


def _top_digits(words: WordArray, spare: _Spare) -> IntArray:
    """Return geometrics of ratio exp(-1/64)."""
    table = _digit_table(2)
    digits = table.draw(words, spare)
    total = digits.astype(np.int64)
    while (digits == _OVERFLOW).any():
        again = np.flatnonzero(digits == _OVERFLOW)
        digits = np.zeros_like(digits)
        digits[again] = table.draw(np.array([spare() for _ in again], dtype=np.uint64), spare)
        total += digits
    return total


class _Ahead:
    """The same words in the same order, the first of them read at once."""

    def __init__(self, words: Words, n: int) -> None:
        self._words, self._taken = words, _take(words, n)

    def __call__(self, n: int, /) -> WordArray:
        if n <= self._taken.size:
            drawn, self._taken = self._taken[:n], self._taken[n:]
            return drawn
        left, self._taken = self._taken, self._taken[:0]
        more = _take(self._words, n - left.size)
        return np.concatenate([left, more]) if left.size else more


class _Spare:
    """Give the words that settle ties: 16 of each call, then (never seen) further ones."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._reserve: Iterator[int] = iter(_take(words, _RESERVE).tolist())

    def __call__(self) -> int:
        word = next(self._reserve, None)
        return int(_take(self._words, 1)[0]) if word is None else word


def _take(words: Words, n: int) -> WordArray:
    """Return n words, refusing any other dtype: int64 and uint64 would meet in float64."""
    drawn = words(n)
    if drawn.dtype != np.uint64 or drawn.shape != (n,):
        raise TypeError(f"words({n}) must be {n} uint64. Got {drawn.dtype} of {drawn.shape}.")
    return drawn


def _chunks(flat: IntArray) -> Iterator[IntArray]:
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))


@cache
def _gaussian_table() -> _table.AliasTable:
    """Load the thresholds, refuse them unless their digest is the committed one."""
    columns = np.load(_table.TABLE_PATH, allow_pickle=False)
    if columns.dtype != np.uint64 or _table.table_digest(columns) != _TABLE_SHA256:
        raise PrivacyError(
            f"The noise table {_table.TABLE_PATH.name} is damaged; install skdp again."
        )
    bounds = [0, *_table.join_columns(columns), 1 << _table.TABLE_BITS]
    weights = [high - low for low, high in pairwise(bounds)]
    return _table.AliasTable(lambda _: weights, _table.TABLE_BITS, exact=True, signed=True)


@cache
def _digit_table(place: int) -> _table.AliasTable:
    """Return the law of digit `place` of a geometric; the third has no upper end."""
    rate = Decimal(_table.CELLS**place) / Decimal(LAPLACE_SCALE)
    weights_at = partial(_table.geometric_weights, rate, place == 2)
    return _table.AliasTable(weights_at, 256, exact=False, signed=False)
