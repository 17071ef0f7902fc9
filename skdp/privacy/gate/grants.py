"""What was paid for: the right to open a statistic once, at once or after adding data in parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource

IntArray = NDArray[np.int64]
_TILE = 512


def wrapping_sum(exact: IntArray, drawn: IntArray) -> IntArray:
    """Add modulo 2**64: an overflow is post-processing, never an error that tells of the data."""
    total = exact.reshape(-1).view(np.uint64) + drawn.reshape(-1).view(np.uint64)
    return total.view(np.int64).reshape(exact.shape)


def symmetrise(value: NDArray[Any]) -> None:
    """Replace a square matrix by its symmetric part, in place: a second one may be large."""
    for start in range(0, len(value), _TILE):
        rows = slice(start, start + _TILE)
        part = (value[rows, start:] + value[start:, rows].T) / 2
        value[rows, start:] = part
        value[start:, rows] = part.T


class Reader(Protocol):
    """What a grant needs of the session that paid for it: words, and the one reader of data."""

    budget: PrivacyBudget
    source: NoiseSource
    ledger: tuple[LedgerEntry, ...]

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a grant is used."""
        ...

    def _read(self, answer: Callable[[float], NDArray[Any]], grant: Grant) -> NDArray[Any]: ...


class Grant:
    """Permission, already paid for, to open one statistic a fixed number of times."""

    def __init__(
        self,
        session: Reader,
        bound: Bound,
        mechanism: str,
        step: float,
        noise_scale: float,
        levels: int = noise.LEVELS,
    ) -> None:
        self._session = session
        self._levels = levels
        self._copies = session.budget.copies
        self._pure = session.budget.pure  # now: a session may have another stage when it is opened
        self._left = 1
        self._process = os.getpid()
        self.bound = bound
        self.mechanism = mechanism
        self.step = step
        self.noise_scale = noise_scale
        self.serial = len(session.ledger)

    def check_process(self) -> None:
        """Refuse to work in a fork: there each copy could be opened, or hold the same noise."""
        if os.getpid() != self._process:
            raise PrivacyError(
                f"{self.bound.name!r} was paid for in another process: a forked copy could be "
                "opened as well, and what it holds has the same noise. Ask for a new grant in this "
                "process."
            )

    def use(self) -> None:
        """Take one opening; a second one would be a second release."""
        self.check_process()
        with self._session.lock:
            if self._left <= 0:
                raise PrivacyError(
                    f"{self.bound.name!r} was already opened; a second opening would be a second "
                    "release. Ask for a new grant."
                )
            self._left -= 1

    def nothing(self) -> NDArray[Any]:
        """Return the answer of no data."""
        return np.zeros(self.bound.shape, np.int64 if self.step else np.float64)

    def fits(self, answer: NDArray[Any]) -> bool:
        """Whether an answer has the form that the bound promises."""
        nothing = self.nothing()
        return answer.shape == nothing.shape and answer.dtype == nothing.dtype

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: each copy could be opened."""
        raise PrivacyError("a grant cannot be copied or pickled; ask for a new one.")

    def draw(self, *index: int) -> IntArray:
        """Draw the integer noise of one opening (zeros if epsilon is infinite).

        `index` tells apart the openings of a stream, where noise is seeded.
        """
        bound = self.bound
        if self.step == 0.0:
            return np.zeros(bound.shape, np.int64)
        words = self._session.source.words(self.serial, bound.name, self.noise_scale, *index)
        if self._pure:
            return noise.integer_laplace(words, bound.shape)
        drawn = noise.integer_gaussian(words, bound.shape, self._levels)
        if self._copies == 1:
            return drawn
        for _ in range(self._copies - 1):
            drawn += noise.integer_gaussian(words, bound.shape, self._levels)
        # Rounded so that a shift stays a shift: the mean of the noisy integers, rounded.
        return np.asarray((drawn + self._copies // 2) // self._copies, np.int64)

    def finish(self, total: NDArray[Any]) -> Answer:
        """Turn a noisy integer total into the public answer (everything from here is free)."""
        return self.decoded(total)

    def decoded(self, total: NDArray[Any], factor: float = 1.0) -> Answer:
        """Put a public total of steps, with so many times the noise, into the unit of the data."""
        value = total.astype(np.float64)
        value *= self.step or 1.0
        if self.bound.symmetric:
            symmetrise(value)
        return Answer(value, self.noise_scale * factor)

    def noised(self, answer: Callable[[float], NDArray[Any]]) -> NDArray[Any]:
        """Read once and add noise: integers in steps (floats where epsilon is infinite)."""
        self.use()
        exact = self._session._read(answer, self)
        return exact if self.step == 0.0 else self.joined(exact, self.draw())

    def joined(self, exact: NDArray[Any], drawn: NDArray[Any]) -> NDArray[Any]:
        """Return what becomes public of an exact answer and its noise."""
        return wrapping_sum(exact, drawn)

    def open(self, answer: Callable[[float], NDArray[Any]]) -> Answer:
        """Read once, add noise, return the public answer."""
        return self.finish(self.noised(answer))


class Accumulator:
    """Noise first, data later: the state is noisy from its birth and is opened once."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant  # what was paid for: its bound, step and noise scale are public
        self._opened = False
        self._state: NDArray[Any] = grant.draw()

    def read(self, answer: Callable[[float], NDArray[Any]]) -> NDArray[Any]:
        """Read one part of the data through the gate: nothing changes yet."""
        self.grant.check_process()
        if self._opened:
            raise PrivacyError("this accumulator was opened; what is added later is never released")
        return self.grant._session._read(answer, self.grant)

    def take(self, part: NDArray[Any]) -> None:
        """Add a part that was read to the noisy state."""
        if self.grant.step == 0.0:
            self._state = self._state + part
        else:
            self._state = wrapping_sum(self._state, part)

    def add(self, answer: Callable[[float], NDArray[Any]]) -> None:
        """Add one part of the data to the noisy state."""
        self.take(self.read(answer))

    def close(self) -> NDArray[Any]:
        """Publish the state as it is: integers in steps. This is the opening, `open` is another."""
        self.open()  # an opening like any other: audits record it
        return self._state

    def open(self) -> Answer:
        """Publish the state. Later calls raise: two openings would differ by exact data."""
        self.grant.use()
        self._opened = True
        return self.grant.finish(self._state)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled: two copies of one noisy state would be two releases."""
        raise PrivacyError("an open accumulator cannot be copied or pickled; open it first.")
