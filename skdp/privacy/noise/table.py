"""Exact tables behind the integer samplers, built with the standard library alone.

``python -m skdp.privacy.noise.table`` rewrites ``gaussian_table.npy``: the cumulative thresholds
floor(2^126 F(k)) of the absolute value of the discrete Gaussian N_Z(300), zero counted half
because the sign bit is free.

:class:`AliasTable` turns integer or real weights into a table read with one word a draw and in
constant time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

TABLE_PATH: Final = Path(__file__).with_name("gaussian_table.npy")
TABLE_SIGMA: Final = 300
TABLE_BITS: Final = 126
_COLUMN_BITS: Final = 63
_COLUMN_MASK: Final = (1 << _COLUMN_BITS) - 1

CELL_BITS: Final = 12
CELLS: Final = 1 << CELL_BITS
INDEX_BITS: Final = CELL_BITS + 1  # the sign bit and the cell
FRACTION_BITS: Final = 64 - INDEX_BITS
_FEW_MASK: Final = (1 << INDEX_BITS) - 1
_INDEX_MASK: Final = np.uint64(_FEW_MASK)
_INDEX_SHIFT: Final = np.uint64(INDEX_BITS)
_WEIGHT_SLACK: Final = 1 << 26  # bounds the error, in units, of a threshold of inexact weights


def precise(digits: int) -> Context:
    """Return a decimal context of our own: the caller's rounding and traps do not reach us."""
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, clamp=0)


def gaussian_thresholds() -> list[int]:
    """Return floor(2^126 F(k)) for k = 0, 1, ... while the sequence increases strictly.

    F is the law of |N_Z(300)| with half the weight at zero. The first repeated threshold ends
    the table (at 12.7 standard deviations): every value below the cut keeps a positive
    probability, and the value at the cut takes the tail, about 2^-121.
    """
    with localcontext(precise(100)) as context:
        scale = Decimal(2 * TABLE_SIGMA**2)
        weights = [context.exp(-Decimal(k * k) / scale) for k in range(24 * TABLE_SIGMA)]
        weights[0] /= 2
        factor, total = Decimal(2**TABLE_BITS) / sum(weights), Decimal(0)
        thresholds = [-1]
        for weight in weights:
            total += weight
            threshold = int(total * factor)
            if threshold == thresholds[-1]:
                return thresholds[1:]
            thresholds.append(threshold)
    raise AssertionError("the thresholds never repeat")


def split_columns(thresholds: list[int]) -> NDArray[np.uint64]:
    """Return rows (high 63 bits, low 63 bits) of 126-bit integers."""
    high = [t >> _COLUMN_BITS for t in thresholds]
    low = [t & _COLUMN_MASK for t in thresholds]
    return np.array([high, low], dtype=np.uint64)


def join_columns(columns: NDArray[np.uint64]) -> list[int]:
    """Undo :func:`split_columns`, in Python integers."""
    return [(int(h) << _COLUMN_BITS) | int(low) for h, low in columns.T]


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
        first = [self._first_bits(cell, FRACTION_BITS) for cell in range(CELLS)]
        self._threshold = np.repeat(np.array(first, dtype=np.uint64), 2)
        sign = np.array([1, -1 if signed else 1])
        values = np.stack([np.arange(CELLS), alias], axis=1)  # (cell, kept or alias)
        outcome = values[:, None, :] * sign[None, :, None]  # (cell, sign, kept or alias)
        self._outcome = outcome.astype(np.int16).ravel()
        # The same as numbers: of few words most time is the calls of numpy.
        self._few = self._threshold.tolist(), self._outcome.tolist()

    def _check(self) -> None:
        """Real thresholds lie in [0, 1], and one cell at most is full."""
        bits, own = self._precise
        if self._slack and len(self._pairs) != CELLS - 1:
            raise AssertionError("two cells are full, which only exact weights can prove")
        high = (1 << bits) - self._slack
        if not all(self._slack <= own[cell] <= high for cell, _ in self._pairs):
            raise AssertionError("the pairing needs weights of more bits")

    def draw(self, words: NDArray[np.uint64], spare: Callable[[], int]) -> NDArray[np.int16]:
        """Return one value for each word; ``spare()`` gives a 64-bit word to settle a tie."""
        index = (words & _INDEX_MASK).view(np.int64)
        fraction = words >> _INDEX_SHIFT
        threshold = self._threshold.take(index)
        position = index << 1
        position += fraction >= threshold
        drawn: NDArray[np.int16] = self._outcome.take(position)
        tied = fraction == threshold
        if tied.any():
            for i in np.flatnonzero(tied):
                over = self._settle(int(index[i]) >> 1, int(fraction[i]), spare)
                drawn[i] = self._outcome[2 * int(index[i]) + over]
        return drawn

    def draw_few(self, words: list[int], spare: Callable[[], int]) -> list[int]:
        """Return what `draw` does, faster for a handful of words."""
        thresholds, outcomes = self._few
        drawn = []
        for word in words:
            index, fraction = word & _FEW_MASK, word >> INDEX_BITS
            over = fraction >= thresholds[index]
            if fraction == thresholds[index]:
                over = self._settle(index >> 1, fraction, spare)
            drawn.append(outcomes[2 * index + over])
        return drawn

    def _settle(self, cell: int, fraction: int, spare: Callable[[], int]) -> bool:
        """Whether the uniform number that begins with `fraction` is at least t_cell."""
        bits = FRACTION_BITS
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
    return [w << CELL_BITS for w in weights] + [0] * (CELLS - len(weights))


if __name__ == "__main__":
    table = split_columns(gaussian_thresholds())
    np.save(TABLE_PATH, table, allow_pickle=False)
    print(f"{TABLE_PATH.name}: {table.shape}, sha256 {table_digest(table)}")
