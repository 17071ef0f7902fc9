"""The gate: the one place where private data become public. Pay, then read, then add noise.

A query returns a `Bounded`: a public `Bound` and a function that computes the answer.
`PrivacySession` has three methods that release something (`release`, `accumulate` and `choose`).
Each first makes a `grant`, which checks the budget, writes the ledger line and fixes the public
noise scale. Then it reads through `PrivacySession._read`, the only line of the package that runs
the function of a query. Streams and groups of sketches (`skdp.privacy.streams`) pay here too.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp._limits import CACHED, NEGLIGIBLE, IntArray
from skdp.answer import Answer
from skdp.exceptions import BudgetExceededError, PrivacyError, unheard
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate import bounds
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource

# Private code runs so that only its answer becomes known.
#
# Warnings and exceptions of private code may hold private values (a shape, a number, a line that
# only some rows reach). So whether it warns, or how it fails, would be a release without a charge.


_state: dict[str, Any] = {"lock": threading.Lock(), "running": set(), "before": None}


class no_warnings:
    """Show no warning while private code runs, in this thread or in others.

    Warning filters belong to the process. If blocks overlap, the first replaces the filters and the
    last restores them. If each restored what it found, one could hide all warnings for good.
    """

    def __enter__(self) -> None:
        try:
            with _state["lock"]:
                if not _state["running"]:
                    before = warnings.catch_warnings(action="ignore")
                    before.__enter__()
                    _state["before"] = before
                _state["running"].add(self)
        except BaseException:  # an interrupt inside the lines above
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with _state["lock"]:
            _state["running"].discard(self)
            _bring_back()


def _bring_back() -> None:
    before = _state["before"]
    if before is not None and not _state["running"]:
        _state["before"] = None
        before.__exit__(None, None, None)


def _start_anew() -> None:
    """Restore the filters in a forked process: threads that replaced them do not exist there."""
    _state.update(lock=threading.Lock(), running=set())
    _bring_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


_FAILED = (
    "the answer of {!r} could not be computed. The error is not shown, as it may hold private "
    "values. Nothing was released by this step, and its budget stays charged. Check that there is "
    "enough memory. If so, fit synthetic data with epsilon=inf, which shows the error."
)


def answered(answer: Callable[[float], NDArray[Any]], step: float, name: str) -> NDArray[Any]:
    """Run private code; if it fails, raise a `PrivacyError` of fixed text in place of its error.

    Queries make sure that no row of a unit can make them fail; this function handles all other
    errors. (An answer of zeros instead would reveal as much, and would hide mistakes in queries.)
    A `PrivacyError` passes with its text, which is ours and holds no private value. Of any other
    exception neither text, type nor context passes; even the text of a MemoryError would give the
    number of rows. KeyboardInterrupt and SystemExit do not come from the data, and pass. At step 0
    (epsilon is infinite) nothing is protected, and all errors pass.
    """
    quiet = no_warnings()
    try:
        with quiet, np.errstate(all="ignore"):
            return np.asarray(unheard(answer, step))
    except Exception as error:
        if step == 0.0:
            raise
        reason = str(error) if isinstance(error, PrivacyError) else _FAILED.format(name)
    finally:
        quiet.__exit__()  # once more, in case an interrupt came while the block was left
    raise PrivacyError(reason)  # outside the except block, or __context__ would hold the error


# Grants: the paid right to release a statistic once, at once or after adding data in parts.


def wrapping_sum(exact: IntArray, drawn: IntArray) -> IntArray:
    """Add modulo 2**64: wrapping is post-processing, while an overflow error would reveal data."""
    return np.asarray(np.add(exact.view(np.uint64), drawn.view(np.uint64)).view(np.int64))


def symmetrise(value: NDArray[Any]) -> None:
    """Replace a square matrix by its symmetric part, in place to save memory."""
    n_rows = max(1, CACHED // max(1, len(value)))
    for start in range(0, len(value), n_rows):
        rows = slice(start, start + n_rows)
        part = (value[rows, start:] + value[start:, rows].T) / 2
        value[rows, start:] = part
        value[start:, rows] = part.T


class Grant:
    """A paid permission to release one statistic."""

    def __init__(
        self,
        session: PrivacySession,
        bound: bounds.Bound,
        mechanism: str,
        step: float,
        noise_scale: float,
        levels: int = noise.LEVELS,
    ) -> None:
        self._session = session
        self._levels = levels
        self._copies = session.budget.copies
        self._pure = session.budget.pure  # stored now, as the session may change it (`take_delta`)
        self._used = False
        self.bound = bound
        self.mechanism = mechanism
        self.step = step
        self.noise_scale = noise_scale
        self.serial = len(session.ledger)

    def use(self) -> None:
        """Use up what was paid for, or raise if it was used."""
        with self._session.lock:
            if self._used:
                raise PrivacyError(
                    f"{self.bound.name!r} was already released, and a grant pays for one release. "
                    "Ask for a new grant."
                )
            self._used = True

    def nothing(self) -> NDArray[Any]:
        """Return the answer for no data: zeros."""
        return np.zeros(self.bound.shape, np.int64 if self.step else np.float64)

    def fits(self, answer: NDArray[Any]) -> bool:
        """Whether an answer has the form that the bound promises."""
        kind = np.int64 if self.step else np.float64
        return answer.shape == self.bound.shape and answer.dtype == kind

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: each copy could be opened."""
        raise PrivacyError("a grant cannot be copied or pickled; ask for a new one.")

    def draw(self, *index: int) -> IntArray:
        """Draw the integer noise of one opening (zeros if epsilon is infinite).

        `index` identifies one of several releases of a stream, for seeded noise.
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
        # Each copy has a draw of its own: one for several, scaled, would have the law of their sum,
        # but not their tails, and the sampler's error would count e^(epsilon of all of them) times.
        for _ in range(self._copies - 1):
            drawn += noise.integer_gaussian(words, bound.shape, self._levels)
        # Rounded so that a shift stays a shift: the mean of the noisy integers, rounded.
        return np.asarray((drawn + self._copies // 2) // self._copies, np.int64)

    def finish(self, total: NDArray[Any]) -> Answer:
        """Turn a noisy integer total into the public answer (from here on post-processing)."""
        return self.decoded(total)

    def decoded(self, total: NDArray[Any], factor: float = 1.0) -> Answer:
        """Put a public total of steps, with so many times the noise, into the unit of the data."""
        value = total * (self.step or 1.0)
        if self.bound.symmetric:
            symmetrise(value)
        return Answer(value, self.noise_scale * factor)

    def noised(self, answer: Callable[[float], NDArray[Any]]) -> NDArray[Any]:
        """Read once and add noise: integers in steps (floats where epsilon is infinite)."""
        self.use()
        exact = self._session._read(answer, self)
        return exact if self.step == 0.0 else self.joined(exact, self.draw())

    def joined(self, exact: NDArray[Any], drawn: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of an exact answer and its noise, which is public."""
        return wrapping_sum(exact, drawn)

    def open(self, answer: Callable[[float], NDArray[Any]]) -> Answer:
        """Read once, add noise, return the public answer."""
        return self.finish(self.noised(answer))


class Accumulator:
    """A sum to which data are added in parts; it starts with the noise, and is released once."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant  # what was paid for: its bound, step and noise scale are public
        self._opened = False
        self._state: NDArray[Any] = grant.draw()

    def read(self, answer: Callable[[float], NDArray[Any]]) -> NDArray[Any]:
        """Read one part of the data through the gate: nothing changes yet."""
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
        """Release the state as integers in steps; it cannot be released again by `open`."""
        self.open()  # a release like any other: audits record it
        return self._state

    def open(self) -> Answer:
        """Release the state. Later calls raise: two releases would differ by exact data."""
        self.grant.use()
        self._opened = True
        return self.grant.finish(self._state)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled: two copies of one noisy state would be two releases."""
        raise PrivacyError("an open accumulator cannot be copied or pickled; open it first.")


# Grants of randomized response: each cell of a binary array is flipped with a known probability.


class FlipGrant(Grant):
    """A grant whose noise is not added: each cell of a binary array is flipped by itself.

    The answer is the sparse array of the cells that are ones then. With p the probability of a
    flip (y - p)/(1 - 2p) is unbiased for a cell; its deviation is the noise scale of the answer.
    """

    def __init__(self, session: PrivacySession, bound: bounds.Bound, epsilon: float) -> None:
        self._rate = 0 if epsilon == math.inf else noise.flip_rate(epsilon / bound.cells)
        probability = noise.chance_of_flip(self._rate)
        if probability * bound.size > noise.MAX_FLIPS:
            raise ValueError(
                f"{bound.name!r} would flip {probability * bound.size:.2g} of {bound.size} cells, "
                f"more than {noise.MAX_FLIPS:.0e}. Use a larger 'epsilon' or another 'algorithm'."
            )
        mechanism = "randomised response" if self._rate else "none (epsilon is infinite)"
        scale = noise.unbiased_deviation(probability)
        super().__init__(session, bound, mechanism, scale, scale)

    def nothing(self) -> NDArray[Any]:
        """Return the answer for no data: no ones."""
        return np.zeros(0, np.int64)

    def fits(self, answer: NDArray[Any]) -> bool:
        """Whether an answer is a sorted list of places in the array."""
        if answer.ndim != 1 or answer.dtype != np.int64:
            return False
        inside = bool(((answer >= 0) & (answer < self.bound.size)).all())
        return inside and bool((np.diff(answer) > 0).all())

    def draw(self, *index: int) -> NDArray[np.int64]:
        """Draw the places of the flipped cells."""
        words = self._session.source.words(self.serial, self.bound.name, self.noise_scale, *index)
        return noise.draw_flips(words, self.bound.size, self._rate)

    def finish(self, total: NDArray[Any]) -> Answer:
        """Return the places of ones as a sparse array."""
        rows, columns = np.divmod(total, self.bound.shape[1])
        cells = (np.ones(len(total), np.float64), (rows, columns))
        return Answer(sp.csr_array(cells, shape=self.bound.shape), self.noise_scale)

    def joined(self, exact: NDArray[Any], drawn: NDArray[Any]) -> NDArray[Any]:
        """Flip cells: those that are in one of two sorted lists of places."""
        return noise.flipped(exact, drawn)


CHOICE_BITS = 32  # grid of the scores of one choice: leaves room for two thousand million rows


class Observer:
    """A listener that may refuse the charges of a session; this base class accepts all."""

    def unplanned(self, losses: tuple[Loss, ...], *, shared: bool) -> None:
        """Accept or refuse losses of another kind than the budget's, before they are granted.

        `shared`: other sessions have the same random sketch.
        """

    def paid(self, name: str) -> None:
        """Receive the name of a release that was paid for."""


class PrivacySession:
    """The gate of one fit: what may be spent, what was spent, and the only reader of data.

    Parameters
    ----------
    budget : PrivacyBudget
        What this fit may spend.
    source : NoiseSource
        Where random words come from.
    adjacency, unit : str
        What the guarantee protects; recorded in the receipt.
    observer : Observer or None, default=None
        Receives each charge, and may refuse it.
    """

    def __init__(
        self,
        budget: bounds.PrivacyBudget,
        *,
        source: NoiseSource,
        adjacency: str,
        unit: str,
        observer: Observer | None = None,
    ) -> None:
        self.budget = budget
        self.source = source
        self.adjacency = adjacency
        self.unit = unit
        self.observer = Observer() if observer is None else observer
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.ledger: tuple[LedgerEntry, ...] = ()
        self.shares = {"gaussian": 0.0, "pure": 0.0}  # that were paid
        self.draws, self.starts = 0, 0  # of noise, and of public starts
        self.open: tuple[Loss, ...] = ()  # what it spends if first releases may give it a delta

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock that is held while a grant is paid for or used; a forked process is refused.

        In a fork the thread that holds the lock does not exist. And a copy of a grant would repeat
        the noise of the original: the difference of the two releases would be exact.
        """
        self._check_process()
        return self._lock

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyError(
                "a fit or a stream works in the process that began it: here both processes would "
                "spend one budget. Fit anew here; a stream has checkpoint() and restore()."
            )

    # -- the only line of the package that runs private code -------------------------------
    def _read(self, answer: Callable[[float], NDArray[Any]], grant: Grant) -> NDArray[Any]:
        self._check_process()
        if (grant.step == 0.0) != self.budget.exact:
            raise PrivacyError(f"the grant of {grant.bound.name!r} has no noise scale")
        exact = answered(answer, grant.step, grant.bound.name)
        self._check_process()  # again: the read may have forked, and both would add noise
        if not grant.fits(exact):
            raise PrivacyError(f"the answer of {grant.bound.name!r} does not match its bound")
        return exact

    # -- paying, before any data is touched ------------------------------------------------
    def remaining(self, kind: str = "gaussian") -> float:
        """Return the share of a budget that is left."""
        return 1.0 - self.shares[kind]

    def affordable(
        self, bound: bounds.Bound, share: float, kind: str = "gaussian", draws: int = 1
    ) -> float:
        """Return the share, lowered to what is left if rounding made it larger; else raise."""
        left = self.remaining(kind)
        if not 0 < share <= left + NEGLIGIBLE:
            raise BudgetExceededError(
                f"{bound.name!r} needs {share:.3g} of the {kind} budget, and {left:.3g} is left."
            )
        self._check_draws(draws * bound.size, bound.name)
        return min(share, left)

    def _check_draws(self, number: int, what: str) -> None:
        if self.draws + number > bounds.MAX_DRAWS:
            raise BudgetExceededError(f"{what!r} asks for more noise than a fit may draw.")

    def charge_draws(self, number: int) -> None:
        """Count further draws from the noise table: their error is part of delta."""
        with self.lock:
            self._check_draws(number, "this fit")
            self.draws += number

    def pay(self, line: LedgerEntry, share: float, kind: str = "gaussian", draws: int = 0) -> None:
        """Charge an affordable share and a number of draws, and write the ledger line."""
        if not 0 < share <= self.remaining(kind):
            raise PrivacyError(f"{line.name!r} pays a share that is not left")
        self.shares[kind] += share
        self.draws += draws
        self.ledger += (line,)
        self.observer.paid(line.name)

    def _loss(self, share: float) -> Loss:
        """Return what a share of the budget allows a release to lose."""
        budget = self.budget
        size = budget.pure_epsilon * share if budget.pure else self.mu(share)
        return Loss(budget.kind, size)

    def _scale(self, bound: bounds.Bound, size: float) -> tuple[str, float, float]:
        """Return (mechanism, step, noise scale) of a release with a loss of this size."""
        budget = self.budget
        if budget.exact:
            return "none (epsilon is infinite)", 0.0, 0.0
        if budget.pure:
            step = bounds.laplace_step(bound, size)
            return "laplace", step, step * (math.sqrt(2.0) * noise.LAPLACE_SCALE)
        copies = math.sqrt(budget.copies)
        step = bounds.gaussian_step(bound, size / copies)
        mechanism = "gaussian" if budget.copies == 1 else f"gaussian, mean of {budget.copies}"
        return mechanism, step, step * noise.EFFECTIVE_SIGMA / copies

    def grant(
        self, bound: bounds.Bound, share: float, *, note: str = "", openings: int = 1, unit: int = 1
    ) -> Grant:
        """Pay for one release; nothing is read yet.

        Parameters
        ----------
        bound : Bound
            The public bound of the statistic.
        share : float
            Share of the budget (of mu squared, or of epsilon when delta is 0).
        note : str
            Added to the mechanism's name in the ledger.
        openings, unit : int
            For a stream: the largest number of noise arrays, and the divisor of scales in the
            ledger.

        Returns
        -------
        Grant
        """
        if bound.cells:
            return self._grant_flips(bound, share)
        kind = self.budget.kind
        sensitivity = bound.l1 if self.budget.pure and bound.l1 is not None else bound.l2
        with self.lock:
            share = self.affordable(bound, share, kind, openings)
            loss = self._loss(share)
            mechanism, step, scale = self._scale(bound, loss.value)
            grant = Grant(self, bound, mechanism + note, step, scale)
            line = LedgerEntry(bound.name, grant.mechanism, sensitivity / unit, scale / unit, loss)
            self.pay(line, share, kind, openings * bound.size)
        return grant

    def _grant_flips(self, bound: bounds.Bound, share: float) -> FlipGrant:
        """Pay for flips of the cells of a binary array: a pure release."""
        budget = self.budget
        if not (budget.pure or budget.exact):
            raise PrivacyError(f"{bound.name!r} is flipped, which has no delta: use delta=0.")
        kind = budget.kind
        with self.lock:
            share = self.affordable(bound, share, kind, 0)
            loss = self._loss(share)
            grant = FlipGrant(self, bound, loss.value)
            line = (bound.name, grant.mechanism, float(bound.cells), grant.noise_scale)
            self.pay(LedgerEntry(*line, loss), share, kind)
        return grant

    def charge_skipped(self, share: float) -> None:
        """Pay a share and release nothing for it.

        A solver that stops early because of what was released must still pay for the releases that
        it skips: the cost may not depend on the data, not even through public answers.
        """
        name, kind = "unused_budget", self.budget.kind
        with self.lock:
            share = self.affordable(bounds.Bound(name, (0,), 0.0), share, kind)
            line = (name, "charged, nothing released", 0.0, 0.0)
            self.pay(LedgerEntry(*line, self._loss(share)), share, kind)

    def charge_unused(self) -> None:
        """Pay all that is left, so that the receipt always states the whole budget."""
        left = self.remaining(self.budget.kind)
        if left > NEGLIGIBLE and not self.budget.exact:
            self.charge_skipped(left)

    def leave_open(self, delta: float) -> None:
        """Allow a pure session to decide, after its first releases, whether to use a delta.

        The whole fit is (epsilon, delta)-DP for every way to decide this. Let the first releases
        have a privacy loss l <= epsilon_1. If pure releases follow, their loss is at most epsilon_2
        <= epsilon - l, so they add nothing to the divergence at e^epsilon. If Gaussian releases
        follow, they add at most what they would add if they always followed. The kind of the second
        part is not known beforehand, so in a composition with other fits the receipt counts as that
        of any (epsilon, delta)-DP mechanism.
        """
        if not self.budget.pure or self.ledger:
            raise PrivacyError("only a pure session that has spent nothing may be left open.")
        self.open = Loss("pure", self.budget.epsilon), Loss("delta", delta)
        self.observer.unplanned(self.open, shared=False)

    def take_delta(self, most: float = 0.0) -> None:
        """Use the delta: the next releases are Gaussian, with what pure ones left of epsilon.

        Where pure releases of several numbers may come before, `most` is the largest share of them
        all. Each way has the Gaussian noise that follows that share. So a shorter way is a longer
        one whose last pure releases are withheld, and any choice between them adds at most what the
        longest adds.
        """
        used = max(self.shares["pure"], most) * self.budget.pure_epsilon
        epsilon, (_, delta) = self.budget.epsilon, self.open[-1]
        self.budget = bounds.PrivacyBudget(epsilon, delta, used, split=True)
        self.shares["pure"] = 1.0

    def mu(self, share: float) -> float:
        """Return the Gaussian-DP parameter of a share of the budget."""
        return math.inf if self.budget.exact else self.budget.mu * math.sqrt(share)

    # -- the verbs -------------------------------------------------------------------------
    def release(self, bounded: bounds.Bounded, share: float) -> Answer:
        """Pay, read, add noise: one public answer."""
        grant = self.grant(bounded.bound, share)
        return bounded.decoded(grant.open(bounded.answer), grant.step)

    def accumulate(self, bound: bounds.Bound, share: float) -> Accumulator:
        """Pay and draw the noise now; data may be added later, in parts; opened once."""
        return Accumulator(self.grant(bound, share, note=", noise first"))

    def choose(self, bounded: bounds.Bounded, share: float) -> int:
        """Choose an index by the exponential mechanism (large scores are likely).

        `share` is a share of the budget's pure epsilon; the loss recorded is its range.
        """
        bound, budget = bounded.bound, self.budget
        if bound.linf is None:
            raise PrivacyError(f"{bound.name!r} has no bound on the range of one change")
        if not budget.pure_epsilon > 0:
            raise PrivacyError("this session has set no epsilon aside for an exponential mechanism")
        with self.lock:
            share = self.affordable(bound, share, "pure")
            eta = budget.pure_epsilon * share
            rate = eta / (2.0**CHOICE_BITS + 2)  # rounding moves two scores by one step
            step = 0.0 if budget.exact else bound.linf * 2.0**-CHOICE_BITS
            scale = step / rate
            loss = self._loss(share) if budget.exact else Loss("range", eta)
            grant = Grant(self, bound, "exponential", step, scale)
            line = LedgerEntry(bound.name, grant.mechanism, bound.linf, scale, loss)
            self.pay(line, share, "pure", bound.size)
        grant.use()
        scores = self._read(bounded.answer, grant)
        if budget.exact:
            return int(np.argmax(scores))
        words = self.source.words(grant.serial, bound.name, grant.noise_scale)
        return noise.gumbel_choice(words, scores, rate)

    @property
    def noise_multiplier(self) -> float:
        """Noise scale of a release of sensitivity 1 that takes the whole Gaussian budget."""
        return 0.0 if self.budget.exact else 1 / self.budget.mu

    def noise_scale(self, l1: float, l2: float, share: float) -> float:
        """Return the noise scale of a release of these sensitivities, before what rounding adds."""
        if self.budget.pure:
            return math.sqrt(2.0) * l1 / (self.budget.pure_epsilon * share)
        return l2 * self.noise_multiplier / math.sqrt(share)

    @property
    def law(self) -> str:
        """Noise distribution: "gaussian", "laplace" (delta is 0) or "exact" (infinite epsilon)."""
        return "exact" if self.budget.exact else "laplace" if self.budget.pure else "gaussian"

    def random_start(self, n: int, k: int, *, ones_first: bool = False) -> NDArray[np.float64]:
        """Return an n x k start of random signs; its first column may be ones."""
        start = self.random_signs((n, k))
        if ones_first:
            start[:, 0] = 1.0
        return start

    def random_signs(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a public random start of entries +1 and -1, independent of the data."""
        words = self._start_words(math.prod(shape))
        return np.where(words & np.uint64(1), 1.0, -1.0).reshape(shape)

    def random_number(self) -> int:
        """Return a public number of 63 bits, independent of the data."""
        return int(self._start_words(1)[0]) >> 1

    def _start_words(self, number: int) -> NDArray[np.uint64]:
        self.starts += 1
        return self.source.derive("start").words(self.starts)(number)

    def answer(self, path: bounds.Path, bounded: bounds.Bounded, share: float) -> Any:
        """Answer what an `Ask` asks for: a release, or a choice."""
        return (self.release if bounded.bound.linf is None else self.choose)(bounded, share)

    def ask(self, query: object) -> bounds.Ask:
        """Return the `Ask` of a query, which solvers get in place of the query."""
        if not self.ledger:
            bounds.check_later_releases(query, self.budget, self.open)
        return bounds.Ask(self, query)

    # -- the receipt -----------------------------------------------------------------------
    def _snapped(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Return losses with exactly the budget's mu if all of it was spent.

        The last bits of the sum of squares would depend on how the budget was split, and hence on
        released values.
        """
        mu = self.budget.mu
        whole = Loss("gaussian", mu)
        near = [kind == "gaussian" and math.isclose(value, mu) for kind, value in losses]
        return tuple(whole if snap else loss for loss, snap in zip(losses, near, strict=True))

    def _composed_epsilon(self, losses: tuple[Loss, ...]) -> float:
        budget, copies = self.budget, self.budget.copies
        each = tuple(loss.times(1 / math.sqrt(copies)) for loss in losses) if copies > 1 else losses
        left = (budget.delta - budget.sampler_delta) / copies
        epsilon = copies * accounting.epsilon_from_losses(each, left)
        whole = losses == (Loss("gaussian", budget.mu),)  # at a tiny epsilon its last bits are many
        if epsilon > budget.epsilon * (1 + 1e-9) and not whole:
            raise PrivacyError("more was granted than this session's budget")
        near = epsilon > budget.epsilon * (1 - 1e-9)  # the last bits depend on the order of sums
        return budget.epsilon if near else epsilon

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: each copy could spend the budget."""
        raise PrivacyError("a privacy session cannot be copied or pickled.")

    def spent(self) -> PrivacySpent:
        """Return the receipt of everything granted so far."""
        budget = self.budget
        losses = self._snapped(accounting.compose(entry.loss for entry in self.ledger))
        epsilon = math.inf if losses else 0.0
        delta, drawn = budget.delta, budget.sampler_delta > 0.0 and not self.open
        if self.open:  # its delta covers the sampler
            (_, epsilon), (_, delta) = losses = self.open
        elif not budget.exact:
            epsilon = self._composed_epsilon(losses)
        distance = budget.copies * bounds.SAMPLER_DISTANCE * drawn
        return PrivacySpent(
            epsilon, delta, losses, adjacency=self.adjacency, unit=self.unit,
            seeded=self.source.seeded, sampler_tv_distance=distance,
        )  # fmt: skip
