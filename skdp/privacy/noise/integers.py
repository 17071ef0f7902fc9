"""Integer noise: Gaussian, Laplace, flips, exponential mechanism, from uniform 64-bit words.

Every sampler states its law, its total variation from that law, what it adds to delta, and the
number of words it reads. That number is fixed by the shape: no loop depends on the noise, so the
time taken tells next to nothing about it (`gumbel_choice` reads private scores: see there). The
one exception is the reserve of 16 words that settles ties; a call that reads 2^36 words or fewer
exhausts it with probability below 2^-300, and then reads further words, which keeps the law exact.

All statements suppose uniform independent words.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skdp._limits import IntArray
from skdp.exceptions import PrivacyError
from skdp.privacy.noise.words import WordArray, Words

# Exact tables behind the integer samplers, built with the standard library alone.
#
# ``gaussian_table.npy`` has the cumulative thresholds floor(2^126 F(k)) of the absolute value of
# the discrete Gaussian N_Z(300), zero counted half because the sign bit is free.
# ``tests/tools/noise_table.py`` builds it.
#
# :class:`AliasTable` turns integer or real weights into a table read with one word a draw and in
# constant time.


TABLE_PATH: Final = Path(__file__).with_name("gaussian_table.npy")
TABLE_SIGMA: Final = 300
TABLE_BITS: Final = 126

CELLS: Final = 2**12
INDEX_BITS: Final = CELLS.bit_length()  # the sign bit and the cell
Spare: TypeAlias = Callable[[], int]  # gives one more word
_INDEX_MASK: Final = np.uint64(2 * CELLS - 1)
_INDEX_SHIFT: Final = np.uint64(INDEX_BITS)
_WEIGHT_SLACK: Final = 1 << 26  # bounds the error, in units, of a threshold of inexact weights


def precise(digits: int) -> Context:
    """Return a decimal context of our own: the caller's rounding and traps do not reach us."""
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, clamp=0)


def join_columns(columns: NDArray[np.uint64]) -> list[int]:
    """Return the 126-bit integers of rows (high 63 bits, low 63 bits)."""
    return [(int(h) << TABLE_BITS // 2) | int(low) for h, low in columns.T]


def table_digest(columns: NDArray[np.uint64]) -> str:
    """Return the SHA-256 of the table's shape and values (of the numbers, not of a file)."""
    values = np.ascontiguousarray(columns, dtype="<u8").tobytes()
    return hashlib.sha256(repr(columns.shape).encode() + values).hexdigest()


def geometric_weights(rate: Decimal, tail: bool, bits: int) -> list[int]:
    """Return P(j) in units of 2^-bits for j < 4096, P(j) prop. to exp(-rate j).

    With `tail` the last entry stands for "4095 or more" of the untruncated law. Each weight is
    within one unit of the truth except the first, which makes the sum exactly 2^bits and is
    within 4096 units.
    """
    with localcontext(precise(bits // 3 + 20)) as context:
        ratio = context.exp(-rate)
        power, powers = Decimal(1), []
        for _ in range(CELLS):
            powers.append(power)
            power *= ratio
        unit = Decimal(1 << bits) * (1 - ratio)
        if tail:
            powers[-1] /= 1 - ratio
        else:
            unit /= 1 - power
        weights = [int(unit * p) for p in powers]
    weights[0] += (1 << bits) - sum(weights)
    return weights


class AliasTable:
    """Draw from a law on 0..4095 with one word, two look-ups and no branch.

    Cell c (12 bits of the word) keeps c with probability t_c and else gives another value
    (Walker's alias method). The 51 high bits of the word decide unless they equal the first 51
    bits of t_c; such a tie (probability 2^-51 at most) is settled by spare words.

    Parameters
    ----------
    weights_at : callable
        ``weights_at(bits)``: weights in units of 2^-bits that sum to 2^bits.
    bits : int
        Precision at the start. Inexact weights are computed again with more when needed.
    exact : bool
        Whether the weights are the law, or within 4096 units of real weights. In both cases
        the law of the draws is exactly that of the weights.
    signed : bool
        Whether the low bit of the word is a sign, or is ignored.
    """

    def __init__(
        self, weights_at: Callable[[int], list[int]], bits: int, *, exact: bool, signed: bool
    ) -> None:
        self._weights_at = weights_at
        self._slack = 0 if exact else _WEIGHT_SLACK
        weights = weights_at(bits)
        self._pairs = _pair(weights, bits)
        self._precise = bits, _thresholds(weights, bits, self._pairs)
        self._check()
        alias = np.arange(CELLS)
        for small, large in self._pairs:
            alias[small] = large
        first = [self._first_bits(cell, 64 - INDEX_BITS) for cell in range(CELLS)]
        self._threshold = np.repeat(np.array(first, dtype=np.uint64), 2)
        sign = np.array([1, -1 if signed else 1])
        values = np.stack([np.arange(CELLS), alias], axis=1)  # (cell, kept or alias)
        outcome = values[:, None, :] * sign[None, :, None]  # (cell, sign, kept or alias)
        self._outcome = outcome.astype(np.int16).ravel()

    def _check(self) -> None:
        """Real thresholds lie in [0, 1], and one cell at most is full."""
        bits, own = self._precise
        if self._slack and len(self._pairs) != CELLS - 1:
            raise AssertionError("two cells are full, which only exact weights can prove")
        high = (1 << bits) - self._slack
        if not all(self._slack <= own[cell] <= high for cell, _ in self._pairs):
            raise AssertionError("the pairing needs weights of more bits")

    def draw(self, words: NDArray[np.uint64], spare: Spare) -> NDArray[np.int16]:
        """Return one value for each word; ``spare()`` gives a 64-bit word to settle a tie."""
        index = (words & _INDEX_MASK).view(np.int64)
        fraction = words >> _INDEX_SHIFT
        threshold = self._threshold.take(index)
        position = index << 1
        position += fraction >= threshold
        drawn: NDArray[np.int16] = self._outcome.take(position)
        for i in (fraction == threshold).nonzero()[0]:
            drawn[i] = self.one(int(words[i]), spare)
        return drawn

    def one(self, word: int, spare: Spare) -> int:
        """Return the value of one word, as `draw` does: faster where there are few."""
        index, fraction = word & (2 * CELLS - 1), word >> INDEX_BITS
        threshold = self._threshold.item(index)
        tied = fraction == threshold
        over = self._settle(index >> 1, fraction, spare) if tied else fraction > threshold
        return int(self._outcome.item(2 * index + over))

    def _settle(self, cell: int, fraction: int, spare: Spare) -> bool:
        """Whether the uniform number that begins with `fraction` is at least t_cell."""
        bits = 64 - INDEX_BITS
        while True:
            fraction, bits = (fraction << 64) | spare(), bits + 64
            threshold = self._first_bits(cell, bits)
            if fraction != threshold or self._slack == 0:  # exact: t_cell has at most 114 bits
                return fraction >= threshold

    def _first_bits(self, cell: int, bits: int) -> int:
        """Return floor(2^bits t_cell), with as much precision as that takes."""
        precision, own = self._precise
        if own[cell] == 1 << precision:  # full: 1 by conservation of the sum at any precision
            return 1 << bits
        if self._slack == 0:
            return (own[cell] << bits) >> precision
        if bits < precision:
            low, high = own[cell] - self._slack, own[cell] + self._slack
            if low >> (precision - bits) == high >> (precision - bits):
                return low >> (precision - bits)
        precision = 2 * max(precision, bits)
        own = _thresholds(self._weights_at(precision), precision, self._pairs)
        self._precise = precision, own  # one assignment: threads see a matching pair
        return self._first_bits(cell, bits)


def _pair(weights: list[int], bits: int) -> list[tuple[int, int]]:
    """Return Walker's pairing (small cell, large cell that fills it), in order."""
    one = 1 << bits
    left = _scaled(weights)
    small = [c for c in range(CELLS) if left[c] < one]
    large = [c for c in range(CELLS) if left[c] > one]
    pairs = []
    while small:
        cell, donor = small.pop(), large[-1]
        pairs.append((cell, donor))
        left[donor] -= one - left[cell]
        if left[donor] <= one:
            large.pop()
            if left[donor] < one:
                small.append(donor)
    return pairs


def _thresholds(weights: list[int], bits: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Return t_c in units of 2^-bits for a pairing, which may come from another precision."""
    one, left = 1 << bits, _scaled(weights)
    for cell, donor in pairs:
        left[donor] -= one - left[cell]
    return left


def _scaled(weights: list[int]) -> list[int]:
    return [w * CELLS for w in weights] + [0] * (CELLS - len(weights))


_TABLE_SHA256: Final = "2fa958387ce1de80b46d9431b6d9fb335565b48600dccc8dc496b1d7b8d6f31c"
_RESERVE: Final = 16
_POWERS: Final = np.power(TABLE_SIGMA // 2, np.arange(4, -1, -1))  # of levels of a convolution
_CHUNK: Final = 2048  # draws: words and work arrays stay in the second-level cache
_LARGEST_GAP: Final = 700
_GAP_BITS: Final = math.ceil(_LARGEST_GAP / math.log(2))


def sigma_int(levels: int) -> float:
    """Return the standard deviation 300 sqrt(sum of 150^(2 i), i < levels) of the convolution."""
    return TABLE_SIGMA * math.sqrt(sum((TABLE_SIGMA // 2) ** (2 * i) for i in range(levels)))


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


def sampler_delta(epsilon: float, n_draws: int) -> float:
    """Return (1 + e^epsilon) n_draws delta_per_draw: what integer Gaussians add to delta.

    Proof: P(S) <= P'(S) + t <= e^eps Q'(S) + delta + t <= e^eps (Q(S) + t) + delta + t, where
    t is the total variation of the released integers.
    """
    return (1.0 + math.exp(epsilon)) * (n_draws * DELTA_PER_DRAW)


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
    table, size = _gaussian_table(), math.prod(shape)
    if size == 1:  # without arrays
        taken, spare = _first(words, levels)
        number = 0
        for word in taken.tolist():
            number = TABLE_SIGMA // 2 * number + table.one(word, spare)
        return np.array(number, np.int64).reshape(shape)
    flat = np.empty(size, dtype=np.int64)
    for part, taken, spare in _chunks(words, flat, levels):
        drawn = table.draw(taken, spare).reshape(levels, part.size)
        np.matmul(_POWERS[-levels:], drawn, out=part)
    return flat.reshape(shape)


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
    flat = np.empty(math.prod(shape), dtype=np.int64)
    for part, taken, spare in _chunks(words, flat, 6):
        geometric = _geometrics(taken, spare)
        np.subtract(geometric[: part.size], geometric[part.size :], out=part)
    return flat.reshape(shape)


def integer_geometric(words: Words, size: int) -> IntArray:
    """Draw independent geometrics: P(G >= g) = exp(-g / LAPLACE_SCALE), g = 0, 1, ...

    Law: exact, as that of `integer_laplace`, which is the difference of two of them. Words:
    3 * size + 16.
    """
    flat = np.empty(size, dtype=np.int64)
    for part, taken, spare in _chunks(words, flat, 3):
        part[:] = _geometrics(taken, spare)
    return flat


def _geometrics(words: WordArray, spare: Spare) -> IntArray:
    digits = words.reshape(3, -1)
    geometric = _top_digits(digits[2], spare)
    for place in (1, 0):
        geometric *= CELLS
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
    with localcontext(precise(digits + 4)) as context:
        slope = Decimal(float(rate)) * (1 - Decimal("1e-15"))
        largest, unit = Decimal(_LARGEST_GAP), Decimal(1 << bits)
        return [int(unit * context.exp(-min(slope * gap, largest))) for gap in gaps]


def _top_digits(words: WordArray, spare: Spare) -> IntArray:
    """Return geometrics of ratio exp(-1/64)."""
    table = _digit_table(2)
    digits = table.draw(words, spare)
    total = digits.astype(np.int64)
    while (digits == CELLS - 1).any():
        again = np.flatnonzero(digits == CELLS - 1)
        digits = np.zeros_like(digits)
        digits[again] = table.draw(np.array([spare() for _ in again], dtype=np.uint64), spare)
        total += digits
    return total


def _take(words: Words, n: int) -> WordArray:
    """Return n words, refusing any other dtype: int64 and uint64 would meet in float64."""
    drawn = words(n)
    if drawn.dtype != np.uint64 or drawn.shape != (n,):
        raise TypeError(f"words({n}) must be {n} uint64. Got {drawn.dtype} of {drawn.shape}.")
    return drawn


def _first(words: Words, n: int) -> tuple[WordArray, Spare]:
    """Return n words, and what gives those that settle ties: 16 before these, then further ones."""
    drawn = _take(words, _RESERVE + n)
    reserve = drawn[:_RESERVE].tolist()
    return drawn[_RESERVE:], lambda: reserve.pop(0) if reserve else int(_take(words, 1)[0])


def _chunks(words: Words, flat: IntArray, each: int) -> Iterator[tuple[IntArray, WordArray, Spare]]:
    """Yield parts of an array, words for each of its numbers, and what settles ties."""
    taken, spare = _first(words, each * min(flat.size, _CHUNK))
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        yield part, _take(words, each * part.size) if start else taken, spare


@cache
def _gaussian_table() -> AliasTable:
    """Load the thresholds, refuse them unless their digest is the committed one."""
    columns = np.load(TABLE_PATH, allow_pickle=False)
    if columns.dtype != np.uint64 or table_digest(columns) != _TABLE_SHA256:
        raise PrivacyError(f"The noise table {TABLE_PATH.name} is damaged; install skdp again.")
    bounds = [0, *join_columns(columns), 1 << TABLE_BITS]
    weights = [high - low for low, high in pairwise(bounds)]
    return AliasTable(lambda _: weights, TABLE_BITS, exact=True, signed=True)


@cache
def _digit_table(place: int) -> AliasTable:
    """Return the law of digit `place` of a geometric; the third has no upper end."""
    rate = Decimal(CELLS**place) / Decimal(LAPLACE_SCALE)
    weights_at = partial(geometric_weights, rate, place == 2)
    return AliasTable(weights_at, 256, exact=False, signed=False)


# Noise for binary arrays: each cell is flipped by itself, with one probability (a pure law).
#
# The flips of n cells do not depend on what the cells hold, and most cells are not flipped. So
# their places are drawn by the gaps between them, which are geometric: exactly, from
# `integer_geometric`.


MAX_FLIPS = 2e7  # expected number in one array: seconds and a few hundred megabytes
_SLACK = 1 + 1e-12  # float error of the rate, on the safe side


def flip_rate(epsilon: float) -> int:
    """Return the smallest a for which flips with probability 1 - exp(-a/2^30) are epsilon-DP.

    A cell that differs changes the probability of each outcome by a factor (1 - p)/p at most,
    which is e^epsilon for p = 1/(1 + e^epsilon), that is a = 2^30 log(1 + e^-epsilon).
    """
    rate = math.ceil(LAPLACE_SCALE * math.log1p(math.exp(-epsilon)) * _SLACK)
    if not chance_of_flip(rate) < 0.5:
        raise ValueError("The budget of a cell is too small: it would be flipped half of the time.")
    return rate


def chance_of_flip(rate: int) -> float:
    """Return the probability of a flip, 1 - exp(-rate/2^30)."""
    return -math.expm1(-rate / LAPLACE_SCALE)


def unbiased_deviation(probability: float) -> float:
    """Return the standard deviation of the unbiased (y - p)/(1 - 2p) of one cell."""
    return math.sqrt(probability * (1 - probability)) / (1 - 2 * probability)


def draw_flips(words: Words, size: int, rate: int) -> IntArray:
    """Draw which of `size` cells are flipped: sorted places.

    Law: exact. The cells before the next flip are geometric with P(>= g) = exp(-rate g / 2^30),
    the law of floor(G / rate) for the G of `integer_geometric`. Words read: a function of the
    flips alone.
    """
    found: list[IntArray] = []
    place, probability = -1, chance_of_flip(rate)
    while place < size:
        expected = (size - place) * probability
        number = int(expected + 6 * math.sqrt(expected)) + 16
        gaps = integer_geometric(words, number) // rate
        # A gap beyond the end is as good as the end: sums stay far below 2^63.
        places = place + np.cumsum(np.minimum(gaps, size) + 1)
        found.append(places)
        place = int(places[-1])
    joined = np.concatenate(found)
    return joined[: int(np.searchsorted(joined, size))]


def flipped(ones: IntArray, flips: IntArray) -> IntArray:
    """Return the places that are in one of two sorted lists: the ones after flipping."""
    places = np.concatenate([ones, flips])
    places.sort(kind="stable")  # merges two sorted runs
    twice = np.flatnonzero(places[1:] == places[:-1])
    kept = np.ones(len(places), bool)
    kept[twice] = kept[twice + 1] = False
    return places[kept]
