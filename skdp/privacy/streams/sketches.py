"""Random sketches of a private matrix: they are drawn, charged, filled with data and merged.

A sketch whose bound has a `law` is not a Gaussian release (`skdp.privacy.accounting.losses`). Its
group takes the whole budget of a session, so that nothing composes with it inside one fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp._limits import NEGLIGIBLE, WIDER, IntArray
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, SketchMixture, as_delta, as_number, largest_mu
from skdp.privacy.accounting.plain_data import loss_from_state, loss_state
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent, joint_epsilon
from skdp.privacy.gate.bounds import MAX_EPSILON, SAMPLER_DISTANCE, Bound, gaussian_step
from skdp.privacy.gate.session import Accumulator, Grant, PrivacySession
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource, SeededSource, Words

# Random sketches with small integer entries, drawn from the gate's random words.
#
# Gaussian entries. F = round(K / divisor), K a discrete Gaussian of standard deviation 300 with the
# law of the noise table. The accounting of `skdp.privacy.accounting.losses` asks that F be
# smaller in convex order than N(0, s^2) for the s that `gaussian_scale` returns,
# s^2 = (300/divisor)^2 + 1/5.
# Both laws are symmetric, so that is E(|F| - a)+ <= E(|N| - a)+ for every a >= 0. The left side is
# linear between integers and F has finitely many values, so it is checked cell by cell, in sixty
# digits, by tests/privacy/accounting/test_sketch_laws.py (1/6 is nearly the limit: rounding twice
# adds 1/12 twice). Convex order passes to products with public matrices, since a norm is convex in
# each entry.
# The table's distance from the discrete Gaussian is charged to delta as noise draws are.


FINE, COARSE = 15, 75  # divisors: standard deviations 20 and 4; odd, so that there are no ties


def gaussian_scale(divisor: int) -> float:
    """Return the standard deviation of normal entries that dominate the integer ones."""
    return math.sqrt((noise.sigma_int(1) / divisor) ** 2 + 1 / 5)


class SketchSource:
    """A source of random sketches, which count as noise: draws are charged, seeds recorded."""

    def __init__(self, session: PrivacySession, source: NoiseSource) -> None:
        self._session = session
        self._source = source
        self._charged = False

    @classmethod
    def of(cls, session: PrivacySession, seed: int | None = None) -> SketchSource:
        """Return a session's source of random sketches: secret, or public with a `seed`."""
        if seed is not None:
            return cls(session, SeededSource(seed, "skdp.sketch"))
        if isinstance(session.source, SeededSource):
            return cls(session, session.source.derive("sketch"))
        words = session.source.words("sketch")(4)
        return cls(session, SeededSource(words.tobytes(), "sketch"))

    def shared_with(self, session: PrivacySession) -> SketchSource:
        """Return a source of the same sketches for another session, whose noise is its own."""
        return SketchSource(session, self._source)

    def secret(self) -> str:
        """Return the key of the sketches, for the checkpoint of a stream: as secret as the data."""
        if not isinstance(self._source, SeededSource):
            raise PrivacyError("these sketches have no key")
        return self._source.secret()

    @classmethod
    def from_secret(cls, session: PrivacySession, key: str, *, seeded: bool) -> SketchSource:
        """Return the source of a key, for the same sketches: they were charged when first drawn."""
        again = cls(session, SeededSource.from_secret(key, seeded=seeded))
        again._charged = True
        return again

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled: the sketch may be secret."""
        raise PrivacyError("the source of a secret sketch cannot be copied or pickled.")

    def gaussian(
        self, name: str, shape: tuple[int, int], *, coarse: bool = False
    ) -> tuple[IntArray, float]:
        """Return an integer Gaussian matrix, and the deviation of the normal that dominates it."""
        divisor = COARSE if coarse else FINE
        if not self._charged:
            self._session.charge_draws(math.prod(shape))
        words = self._source.words(name, "gaussian", divisor)
        drawn = noise.integer_gaussian(words, shape, levels=1)
        return np.asarray(np.rint(drawn / divisor), dtype=np.int64), gaussian_scale(divisor)

    def sparse(self, name: str, n: int, size: int, each: int) -> tuple[IntArray, IntArray]:
        """Return `each` distinct positions below `size` and signs for each of n rows.

        Without replacement (Floyd): a position that is taken is replaced by the last one allowed.
        """
        words = self._source.words(name, "sparse")
        positions = np.empty((n, each), np.int64)
        for i in range(each):
            last = size - each + i
            drawn = (words(n) % np.uint64(last + 1)).astype(np.int64)
            taken = (positions[:, :i] == drawn[:, None]).any(axis=1)
            positions[:, i] = np.where(taken, last, drawn)
        return positions, _signs(words, (n, each))

    def hadamard(self, name: str, n: int, size: int) -> IntArray:
        """Return random signs times `size` distinct columns of a Hadamard matrix, n x size."""
        words = self._source.words(name, "srht")
        length = 1 << max(0, (max(n, size) - 1).bit_length())
        signs = _signs(words, (n, 1))
        columns = np.argsort(words(length), kind="stable")[:size]
        both = np.arange(n)[:, None] & columns[None, :]
        return np.asarray(signs * np.where(np.bitwise_count(both) & 1, -1, 1), dtype=np.int64)


def _signs(words: Words, shape: tuple[int, int]) -> IntArray:
    bits = words(math.prod(shape)).reshape(shape) & np.uint64(1)
    return np.asarray(np.where(bits, 1, -1), dtype=np.int64)


def largest_mixture(
    shares: Iterable[tuple[float, tuple[int, ...]]], epsilon: float, delta: float
) -> SketchMixture:
    """Return the largest group with these shares of mean mu^2 that is (epsilon, delta)-DP.

    Parameters
    ----------
    shares : iterable of (share, degrees)
        Shares of the sum of mean squares, each > 0.
    epsilon, delta : float
        In (0, inf) and (0, 1).

    Returns
    -------
    SketchMixture
    """
    epsilon, delta = as_number("epsilon", epsilon, high=1e150), as_delta(delta)
    shares = [(math.sqrt(share), tuple(degrees)) for share, degrees in shares]

    def scaled(mu: float) -> SketchMixture:
        return SketchMixture(tuple((mu * root, degrees) for root, degrees in shares))

    def curve(mu: float) -> float:
        return scaled(mu).delta(epsilon)

    tail = math.sqrt(-2.0 * math.log(delta))
    guess = epsilon / (math.hypot(tail, math.sqrt(2.0 * epsilon)) + tail)
    return scaled(largest_mu(curve, delta, max(guess, delta)))


# A part of the noise is further from a rounded normal variable than a whole draw.
_PART_COST = math.ceil(noise.PART_DELTA_PER_DRAW / noise.DELTA_PER_DRAW)


def grant_sketches(
    session: PrivacySession,
    bounds: Sequence[Bound],
    shares: Sequence[float],
    *,
    parties: int = 0,
    shared: bool = False,
    note: str = "",
    units: Sequence[int] | None = None,
) -> tuple[Grant, ...]:
    """Charge several sketches of one matrix, calibrated together; nothing is read yet.

    Parameters
    ----------
    session : PrivacySession
        Who pays.
    bounds : sequence of Bound
        One for each sketch; the noises are independent.
    shares : sequence of float
        Shares of the (mean) squared mu, which sum to 1 if a bound has a law.
    parties : int, default=0
        0: the noise is drawn here. Else each grant draws a part, and the sum of `parties` such
        parts is the noise that the bound needs: one of them alone protects nothing.
    shared : bool, default=False
        Other fits may use the same sketch: then a ledger, which adds up sketches as independent
        ones, refuses a bound with a law.
    note : str
        Added to the mechanism's name in the ledger.
    units : sequence of int or None
        Of streams: what divides the scales in the ledger.

    Returns
    -------
    tuple of Grant
    """
    with session.lock:
        losses = _losses(session, bounds, shares)
        if any(loss.kind == "sketch" for loss in losses):
            session.observer.unplanned(accounting.compose(losses), shared=shared)
        units = [1] * len(bounds) if units is None else units
        # If the budget is too small for the steps of one sketch, nothing is charged.
        each, exact = zip(bounds, losses, strict=True), session.budget.exact
        name, sigma, levels = "gaussian", noise.EFFECTIVE_SIGMA, noise.LEVELS
        if exact:
            name = "none (epsilon is infinite)"
        if parties:  # the noise is that of the sum
            name += f", one of {parties} parts"
            sigma, levels = math.sqrt(parties) * noise.PART_EFFECTIVE_SIGMA, noise.PART_LEVELS
        size, grants = sigma / noise.EFFECTIVE_SIGMA, []
        steps = [0.0 if exact else gaussian_step(b, float(of.value) * size) for b, of in each]
        lines = zip(bounds, shares, losses, units, steps, strict=True)
        for bound, asked, loss, unit, step in lines:
            share = session.affordable(bound, asked)
            if parties:
                session.charge_draws(int(parties * bound.size * _PART_COST))
            grant = Grant(session, bound, name + note, step, step * sigma, levels)
            scale = grant.noise_scale / unit
            line = LedgerEntry(bound.name, grant.mechanism, bound.l2 / unit, scale, loss)
            session.pay(line, share, draws=bound.size)
            grants.append(grant)
        return tuple(grants)


def _losses(
    session: PrivacySession, bounds: Sequence[Bound], shares: Sequence[float]
) -> list[Loss]:
    """Check the budget and calibrate: one loss for each bound."""
    budget, left = session.budget, session.remaining()
    if budget.pure:
        raise PrivacyError("updates and sketches have no pure differential privacy; use delta > 0")
    if budget.copies > 1:
        raise PrivacyError("sketches are drawn once: their budget is not split into copies")
    if not min(shares) > 0 or not math.fsum(shares) <= left + NEGLIGIBLE:
        raise BudgetExceededError(f"the sketches ask for {list(shares)}; {left:.3g} is left.")
    if budget.exact or all(bound.law is None for bound in bounds):
        return [Loss("gaussian", session.mu(min(share, left))) for share in shares]
    if budget.pure_epsilon or not math.fsum(shares) >= 1 - NEGLIGIBLE:
        raise PrivacyError("random sketches take the whole budget of a session")
    degrees = [() if bound.law is None else bound.law.degrees for bound in bounds]
    mixture = largest_mixture(zip(shares, degrees, strict=True), *budget.calibration)
    return [Loss("sketch", SketchMixture(mixture.terms, i)) for i in range(len(bounds))]


# Sketches that start with their noise, receive data in parts, and are released once.


class NoisyGroup:
    """Accumulators of one session that receive data together: all of them or none.

    It has the `add` of a `StreamGroup`, and one opening.

    Attributes
    ----------
    session : PrivacySession
        Who paid.
    accumulators : dict of Accumulator
        By name.
    notes : dict
        Public facts stored with them; an addition may update them.
    """

    def __init__(
        self, session: PrivacySession, grants: Iterable[Grant], notes: Mapping[str, Any]
    ) -> None:
        self.session = session
        self.accumulators = {grant.bound.name: Accumulator(grant) for grant in grants}
        self.notes = dict(notes)
        self._whole = True

    def add(self, answers: Mapping[str, Callable[[float], NDArray[Any]]], **notes: Any) -> None:
        """Add data to the named accumulators.

        All read the data before any adds them: if a call that failed is repeated, no sketch may
        have the data of the first attempt.
        """
        with self.session.lock:
            if not self._whole:
                raise PrivacyError(
                    "an earlier call was interrupted, and its data may be included already. "
                    "Release what is there, or start anew."
                )
            parts = {name: self.accumulators[name].read(answer) for name, answer in answers.items()}
            self._whole = False
            for name, part in parts.items():
                self.accumulators[name].take(part)
            self.notes.update(notes)
            self._whole = True

    def steps(self) -> list[tuple[float, float]]:
        """Return the public (step, noise scale) of each."""
        grants = [accumulator.grant for accumulator in self.accumulators.values()]
        return [(grant.step, grant.noise_scale) for grant in grants]

    def close(self) -> list[NDArray[Any]]:
        """Publish all of them as they are, in steps. They can be opened only once."""
        return [accumulator.close() for accumulator in self.accumulators.values()]


# One receipt for noisy states that several servers opened, and receipts as plain data.
#
# A change E that lies on several servers is made of parts E_s. Where the squares of their norms sum
# to one squared bound (the contract of a merge), the loss given the sketches is a weighted mean of
# the servers' losses, with weights |E_s|^2 that sum to 1. Both delta, by its convex majorant (see
# `skdp.privacy.accounting.losses`), and Renyi divergences then are at most those of the largest
# server. So the receipt is the largest one; the servers' own epsilons never add up.
#
# If servers hold parts of a row and each clips its part by itself, that contract does not hold.
# Then the squares of the losses of all servers sum; in one secure sum, which has the noise only
# once, the losses sum.


Receipt = Mapping[str, Any]


_UNKNOWN = (
    "the servers paid for random sketches of different sizes (or some for a sketch and some for "
    "exact norms), so no receipt of their sum is known. Use one 'sensitivity_mode', and one "
    "'sketch_size', on all servers."
)
_PARTS = (
    "servers with different budgets hold parts of the same rows, which each clips on its own: no "
    "receipt of their sum is known. Use one 'epsilon' and 'delta' on all servers."
)


def receipt_state(spent: PrivacySpent, ledger: Iterable[LedgerEntry]) -> dict[str, Any]:
    """Return a receipt with its ledger as plain data, to be sent to the server that merges."""
    return {
        "epsilon": spent.epsilon,
        "delta": spent.delta,
        "adjacency": spent.adjacency,
        "unit": spent.unit,
        "seeded": spent.seeded,
        "ledger": [[*line[:4], *loss_state(line.loss)] for line in ledger],
    }


def paid_lines(receipt: Receipt) -> list[LedgerEntry]:
    """Return the ledger lines of a receipt in plain data."""
    return [
        LedgerEntry(name, mechanism, sensitivity, scale, loss_from_state(kind, value))
        for name, mechanism, sensitivity, scale, kind, value in receipt["ledger"]
    ]


def _losses_of(receipt: Receipt) -> tuple[Loss, ...]:
    return accounting.compose(line.loss for line in paid_lines(receipt))


def merged_receipt(
    blocks: Sequence[Sequence[Sequence[Receipt]]], *, clipped_rows: bool
) -> tuple[PrivacySpent, tuple[LedgerEntry, ...]]:
    """Return what all opened states together spent, and their ledger lines.

    Parameters
    ----------
    blocks : sequence of sequence of sequence of dict
        For each range of rows, the states that were opened there; each is the receipts of its
        servers: one, or those of all servers of a secure sum.
    clipped_rows : bool
        Each server clips rows by itself, so that the caller's contract does not bound parts of
        a row on several servers together.

    Returns
    -------
    spent : PrivacySpent
    ledger : tuple of LedgerEntry

    Raises
    ------
    PrivacyError
        If no bound is known; nothing was opened for it.
    """
    receipts = [receipt for block in blocks for state in block for receipt in state]
    first = receipts[0]
    losses = _largest([_block_losses(block, clipped_rows) for block in blocks])
    delta = max(float(receipt["delta"]) for receipt in receipts)
    claimed = max(float(receipt["epsilon"]) for receipt in receipts)
    distance = sum(map(len, blocks)) * SAMPLER_DISTANCE  # each opened state has a sampler's error
    price = partial(accounting.epsilon_from_losses, losses)
    epsilon = joint_epsilon(price, delta, distance, min(claimed, MAX_EPSILON))
    if epsilon <= claimed * WIDER:  # because the last bits depend on the order of sums
        epsilon = claimed
    facts = {name: str(first[name]) for name in ("adjacency", "unit")}
    spent = PrivacySpent(
        epsilon, delta, losses, **facts, seeded=any(r["seeded"] for r in receipts),
        sampler_tv_distance=distance, scope="the streams of all servers together",
    )  # fmt: skip
    return spent, tuple(line for receipt in receipts for line in paid_lines(receipt))


def _block_losses(block: Sequence[Sequence[Receipt]], clipped_rows: bool) -> tuple[Loss, ...]:
    """Return the losses of a unit whose data lie in one range of rows."""
    each = [_losses_of(receipt) for state in block for receipt in state]
    factor = math.hypot(*map(len, block)) if clipped_rows else 1.0
    if factor > 1.0 and any(losses != each[0] for losses in each):
        raise PrivacyError(_PARTS)
    return tuple(loss.times(factor) for loss in _largest(each))


def _largest(parts: Sequence[tuple[Loss, ...]]) -> tuple[Loss, ...]:
    """Return losses that dominate each of several sets of losses."""
    if all(part == parts[0] for part in parts):
        return parts[0]
    parts = [part for part in parts if part]
    if any(loss.kind == "gaussian" and math.isinf(loss.value) for part in parts for loss in part):
        return (Loss("gaussian", math.inf),)
    kinds = {tuple(loss.kind for loss in part) for part in parts}
    if kinds == {("gaussian",)}:
        return max(parts, key=lambda part: float(part[0].value))
    if kinds != {("sketch",)}:
        raise PrivacyError(_UNKNOWN)
    terms = [part[0].value.terms for part in parts]
    if len({tuple(degrees for _, degrees in term) for term in terms}) != 1:
        raise PrivacyError(_UNKNOWN)
    largest = tuple((max(mu for mu, _ in same), same[0][1]) for same in zip(*terms, strict=True))
    return (Loss("sketch", SketchMixture(largest)),)
