"""Hooks on the gate: replace what is read, fix the noise, act before a payment.

All hooks replace methods of `PrivacySession`, `Grant` and `SystemSource` while a ``with`` block
runs. They act on the whole process: use them in tests, one at a time, never in production.
"""

import functools
import itertools
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from skdp.privacy.accounting import losses as accounting
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import SeededSource, SystemSource


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]):
    """Replace a method of a class (a function of a module) by ``make(original)`` for a block."""
    inherited = name not in vars(owner)
    raw = None if inherited else vars(owner)[name]
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, raw)


def change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return after - before of two integer answers, modulo 2**64 as the gate adds them."""
    before, after = np.asarray(before), np.asarray(after)
    if before.dtype != np.int64 or after.dtype != np.int64:
        return np.asarray(after - before, np.float64)
    steps = after.reshape(-1).view(np.uint64) - before.reshape(-1).view(np.uint64)
    return steps.view(np.int64).reshape(before.shape).astype(np.float64)


@contextmanager
def null_release(*, run: bool = False):
    """Let every read return zeros: what comes out of a fit is then a function of public values.

    Parameters
    ----------
    run : bool, default=False
        Also run the private code and throw its answer away, so that its exceptions and warnings
        (which anybody can see) can be compared too.
    """

    def make(original):
        def read(self, answer, grant):
            if run:
                original(self, answer, grant)
            return grant.nothing()

        return read

    with replaced(PrivacySession, "_read", make):
        yield


@contextmanager
def fixed_noise(seed: int, *, scale_free: bool = False):
    """Draw the system's random words from a keyed stream: no warning, no flag, same noise.

    Parameters
    ----------
    seed : int
        Key of the stream.
    scale_free : bool, default=False
        Leave the noise scale out of the key, so that fits of different scale get the same integers.
    """
    source = SeededSource(seed, "skdp.testing")

    def make_words(_):
        def words(_, *key):
            kept = tuple(part for part in key if not (scale_free and isinstance(part, float)))
            return source.words(*kept)

        return words

    with replaced(SystemSource, "words", make_words):
        yield


@contextmanager
def seeded_entropy(seed: int):
    """Replace the operating system's entropy by one seeded sequence: fits differ, runs do not.

    For statistical tests of code that draws private noise.

    Parameters
    ----------
    seed : int
        Seed of the sequence.
    """
    source, count = SeededSource(seed, "skdp.testing.sequence"), itertools.count()

    def make_words(_):
        return lambda _, *key: source.words(next(count))

    with replaced(SystemSource, "words", make_words):
        yield


@contextmanager
def cached_accounting():
    """Remember what a budget costs while the block runs: half the time of a small fit."""
    with ExitStack() as stack:
        for name in ("mu_beside_pure", "epsilon_from_losses"):
            stack.enter_context(replaced(accounting, name, functools.cache))
        yield


@contextmanager
def before_payment(action: Callable[[int], None]):
    """Call ``action(i)`` just before the i-th payment of the block (it may raise)."""
    count = [0]

    def make(original):
        def pay(self, *args, **kwargs):
            action(count[0])
            count[0] += 1
            return original(self, *args, **kwargs)

        return pay

    with replaced(PrivacySession, "pay", make):
        yield
