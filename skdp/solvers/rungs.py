"""Releases that are bought in rungs: how many of them is decided on released values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer

FloatArray = NDArray[np.float64]
_RANK = 50  # the number of this rank must be readable, or that of a tenth of them


class Bought(NamedTuple):
    """Noisy numbers.

    Attributes
    ----------
    value : ndarray
    noise_scale : float
    spent : float
        Share of the budget that they took.
    readable : bool
        Whether the largest stand clearly above the noise.
    """

    value: FloatArray
    noise_scale: float
    spent: float
    readable: bool

    def with_more(self, answer: Answer, share: float) -> Bought:
        """Average the numbers with the same ones, bought again for a share."""
        both = averaged(Answer(self.value, self.noise_scale), answer)
        return Bought(both.value, both.noise_scale, self.spent + share, self.readable)


def averaged(first: Answer, second: Answer) -> Answer:
    """Average two answers to one question by their precision."""
    if first.noise_scale == 0.0:
        return first
    weights = first.noise_scale**-2, second.noise_scale**-2
    value = (weights[0] * first.value + weights[1] * second.value) / sum(weights)
    return Answer(value, sum(weights) ** -0.5)


def bought(
    ask: Callable[..., Answer],
    rungs: Iterable[tuple[float, ...]],
    clear: Callable[..., bool],
    start: Answer | None = None,
) -> Bought:
    """Buy the same numbers again until they are clear: rungs are (share, *limits).

    Each rung is one release, ``ask(share=...)``; they are averaged by precision. The rungs end
    where ``clear(value, noise_scale, *limits)``. With a `start`, which is there already, the first
    rung has no share: it says when that is enough.
    """
    value: Any = 0.0
    precision = spent = 0.0
    for share, *limits in rungs:
        answer = start if start is not None and not share else ask(share=share)
        if answer.noise_scale == 0.0:
            return Bought(answer.value, 0.0, share, True)
        weight = answer.noise_scale**-2
        value = (precision * value + weight * answer.value) / (precision + weight)
        precision, spent = precision + weight, spent + share
        if clear(value, precision**-0.5, *limits):
            return Bought(value, precision**-0.5, spent, True)
    return Bought(value, precision**-0.5, spent, False)


def ranked(values: FloatArray) -> float:
    """Return the number that must be readable."""
    rank = min(_RANK, max(len(values) // 10, 1))
    return float(np.partition(values, -rank)[-rank])
