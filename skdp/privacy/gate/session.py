"""The gate: the one place where private data become public. Pay, then read, then add noise.

A query hands over a `Bounded`: a public `Bound` and an unread answer. `PrivacySession` has three
verbs (`release`, `accumulate` and `choose`); each is a `grant`, which checks the budget, writes the
ledger line and fixes the public noise scale, followed by a read through `PrivacySession._read`, the
only line of the package that runs a query's closure. What is paid once for many releases, or is
calibrated together, pays here too (`PrivacySession.pay`), and lives in `skdp.privacy.streams`.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.ask import Ask, Path
from skdp.privacy.gate.bounds import Bound, Bounded, gaussian_step, laplace_step
from skdp.privacy.gate.budget import MAX_DRAWS, SAMPLER_DISTANCE, PrivacyBudget
from skdp.privacy.gate.flips import FlipGrant
from skdp.privacy.gate.grants import Accumulator, Grant
from skdp.privacy.gate.stages import StagedBudget
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource

SHARE_SLIP = 1e-9  # shares are sums of floats
_CHOICE_BITS = 32  # grid of the scores of one choice: leaves room for two thousand million rows


class Observer:
    """Hears what a session pays; this one lets everything pass."""

    def unplanned(self, losses: tuple[Loss, ...], *, shared: bool) -> None:
        """Hear that losses of another kind than the budget's are about to be granted, or refuse.

        `shared`: other sessions have the same random sketch.
        """

    def paid(self, name: str) -> None:
        """Hear the name of what was paid for."""


@dataclass
class Spending:
    """How far a session has come: shares that were paid, draws of noise, public starts."""

    shares: dict[str, float] = field(default_factory=lambda: {"gaussian": 0.0, "pure": 0.0})
    draws: int = 0
    starts: int = 0


class PrivacySession:
    """The gate of one fit: what may be spent, what was spent, and the only reader of data.

    Parameters
    ----------
    budget : PrivacyBudget or StagedBudget
        What this fit may spend. Of a staged one the attribute `budget` is the stage that goes on.
    source : NoiseSource
        Where random words come from.
    adjacency, unit : str
        What the guarantee protects; recorded in the receipt.
    observer : Observer or None
        Who hears of payments.
    """

    holds_rows = True  # False where others read them, each a part
    most_rows: int | None = None  # of sketches, for who needs their bounds alone

    def __init__(
        self,
        budget: PrivacyBudget | StagedBudget,
        *,
        source: NoiseSource,
        adjacency: str,
        unit: str,
        observer: Observer | None = None,
    ) -> None:
        self.stages = budget if isinstance(budget, StagedBudget) else None
        self.budget = budget.opening if isinstance(budget, StagedBudget) else budget
        self.source = source
        self.adjacency = adjacency
        self.unit = unit
        self.observer = Observer() if observer is None else observer
        self.lock = threading.RLock()
        self._process = os.getpid()
        self.ledger: tuple[LedgerEntry, ...] = ()
        self.spending = Spending()

    # -- the only line of the package that runs private code -------------------------------
    def _read(self, answer: Callable[[float], NDArray[Any]], grant: Grant) -> NDArray[Any]:
        if (grant.step == 0.0) != self.budget.exact:
            raise PrivacyError(f"the grant of {grant.bound.name!r} has no noise scale")
        with np.errstate(all="ignore"):  # a floating-point warning would tell of the data
            exact = np.asarray(answer(grant.step))
        if not grant.fits(exact):
            raise PrivacyError(f"the answer of {grant.bound.name!r} does not match its bound")
        return exact

    # -- paying, before any data is touched ------------------------------------------------
    def left(self, kind: str = "gaussian") -> float:
        """Return the share of a budget that is left."""
        return 1.0 - self.spending.shares[kind]

    def affordable(
        self, bound: Bound, share: float, kind: str = "gaussian", draws: int = 1
    ) -> float:
        """Return the share, cut to what is left if it exceeds that by rounding alone; or refuse."""
        left = self.left(kind)
        if not 0 < share <= left + SHARE_SLIP:
            raise BudgetExceededError(
                f"{bound.name!r} asks for {share:.3g} of the {kind} budget; {left:.3g} is left."
            )
        self._check_draws(draws * bound.size, repr(bound.name))
        return min(share, left)

    def _check_draws(self, number: int, what: str) -> None:
        if self.spending.draws + number > MAX_DRAWS:
            raise BudgetExceededError(f"{what} asks for more noise than a fit may draw.")

    def charge_draws(self, number: int) -> None:
        """Count further draws from the noise table: their error is part of delta."""
        with self.lock:
            self._check_draws(number, "this fit")
            self.spending.draws += number

    def pay(self, line: LedgerEntry, share: float, kind: str = "gaussian", draws: int = 0) -> None:
        """Pay a share that was found affordable, and so many draws; write the line."""
        if os.getpid() != self._process:
            raise PrivacyError(
                f"{line.name!r} asks for a budget of another process: a fork has a copy of it, and "
                "both would spend it. Open a session in this process."
            )
        if not 0 < share <= self.left(kind):
            raise PrivacyError(f"{line.name!r} pays a share that is not left")
        self.spending.shares[kind] += share
        self.spending.draws += draws
        self.ledger += (line,)
        self.observer.paid(line.name)

    def _scale(self, bound: Bound, share: float) -> tuple[str, float, float, Loss]:
        """Return (mechanism, step, noise scale, loss) of a release with this share."""
        budget = self.budget
        if budget.exact:
            return "none (epsilon is infinite)", 0.0, 0.0, Loss("gaussian", math.inf)
        if budget.pure:
            epsilon = budget.pure_epsilon * share
            step = laplace_step(bound, epsilon)
            spread = math.sqrt(2.0) * noise.LAPLACE_SCALE
            return "laplace", step, step * spread, Loss("pure", epsilon)
        mu, copies = self.mu(share), math.sqrt(budget.copies)
        step = gaussian_step(bound, mu / copies)
        mechanism = "gaussian" if budget.copies == 1 else f"gaussian, mean of {budget.copies}"
        return mechanism, step, step * noise.EFFECTIVE_SIGMA / copies, Loss("gaussian", mu)

    def grant(
        self, bound: Bound, share: float, *, note: str = "", openings: int = 1, unit: int = 1
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
            Of a stream: arrays of noise, at most; and what divides the scales in the ledger.

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
            mechanism, step, scale, loss = self._scale(bound, share)
            grant = Grant(self, bound, mechanism + note, step, scale)
            line = LedgerEntry(bound.name, grant.mechanism, sensitivity / unit, scale / unit, loss)
            self.pay(line, share, kind, openings * bound.size)
        return grant

    def _grant_flips(self, bound: Bound, share: float) -> FlipGrant:
        """Pay for flips of the cells of a binary array: a pure release."""
        budget = self.budget
        if not (budget.pure or budget.exact):
            raise PrivacyError(f"{bound.name!r} is flipped, which has no delta: use delta=0.")
        kind = budget.kind
        with self.lock:
            share = self.affordable(bound, share, kind, 0)
            epsilon = math.inf if budget.exact else budget.pure_epsilon * share
            grant = FlipGrant(self, bound, epsilon)
            line = (bound.name, grant.mechanism, float(bound.cells), grant.noise_scale)
            self.pay(LedgerEntry(*line, Loss(kind, epsilon)), share, kind)
        return grant

    def forfeit(self, share: float) -> None:
        """Pay a share and release nothing for it.

        A solver that stops early because of what was released must pay for the releases that it
        leaves out: how much is spent may not depend on the data, not even through public answers.
        """
        kind = self.budget.kind
        with self.lock:
            share = self.affordable(Bound("left_out", (0,), 0.0), share, kind)
            size = self.budget.pure_epsilon * share if self.budget.pure else self.mu(share)
            line = LedgerEntry("left_out", "paid, not read", 0.0, 0.0, Loss(kind, size))
            self.pay(line, share, kind)

    def turn(self, kind: str) -> None:
        """End the first stage of a staged budget: from here on noise is "pure" or "gaussian".

        What the first stage has left is lost. Which way is taken may depend on what was released.
        """
        with self.lock:
            if self.stages is None or self.budget is not self.stages.opening:
                raise PrivacyError("this session has no first stage, or it is over")
            if kind not in ("pure", "gaussian"):
                raise PrivacyError(f"what follows a first stage is pure or gaussian, not {kind!r}")
            self.budget = self.stages.pure if kind == "pure" else self.stages.gaussian
            # The pure part beside Gaussians is the first stage, which is spent.
            self.spending.shares = {"gaussian": 0.0, "pure": 1.0 - (kind == "pure")}

    @property
    def whole(self) -> PrivacyBudget | StagedBudget:
        """What this fit may spend, in all stages."""
        return self.budget if self.stages is None else self.stages

    def mu(self, share: float) -> float:
        """Return the Gaussian-DP parameter of a share of the budget."""
        return math.inf if self.budget.exact else self.budget.mu * math.sqrt(share)

    # -- the verbs -------------------------------------------------------------------------
    def release(self, bounded: Bounded, share: float) -> Answer:
        """Pay, read, add noise: one public answer."""
        grant = self.grant(bounded.bound, share)
        answer = grant.open(bounded.answer)
        if bounded.decode is None or grant.step == 0.0:
            return answer
        return Answer(bounded.decode(answer.value, grant.step), answer.noise_scale)

    def accumulate(self, bound: Bound, share: float) -> Accumulator:
        """Pay and draw the noise now; data may be added later, in parts; opened once."""
        return Accumulator(self.grant(bound, share, note=", noise first"))

    def choose(self, bounded: Bounded, share: float) -> int:
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
            rate = eta / (2.0**_CHOICE_BITS + 2)  # rounding moves two scores by one step
            step = 0.0 if budget.exact else bound.linf * 2.0**-_CHOICE_BITS
            scale = step / rate
            loss = Loss("gaussian", math.inf) if budget.exact else Loss("range", eta)
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
        return 0.0 if self.budget.exact else 1 / self._priced.mu

    @property
    def law(self) -> str:
        """Law of the noise: "gaussian", "laplace" (delta is 0) or "exact" (epsilon is infinite)."""
        return "exact" if self.budget.exact else "laplace" if self.budget.pure else "gaussian"

    def random_start(
        self, n: int, k: int, *, late: int = 0, ones_first: bool = False
    ) -> NDArray[np.float64]:
        """Return an n x k start of random signs; its first column may be ones.

        With more columns behind them that join later; those in front are the same without them.
        """
        start = self.random_signs((n, k))
        if ones_first:
            start[:, 0] = 1.0
        return np.hstack([start, self.random_signs((n, late))]) if late else start

    def random_signs(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a public random start of entries +1 and -1, independent of the data."""
        words = self._start_words(math.prod(shape))
        return np.where(words & np.uint64(1), 1.0, -1.0).reshape(shape)

    def random_number(self) -> int:
        """Return a public number of 63 bits, independent of the data."""
        return int(self._start_words(1)[0]) >> 1

    def _start_words(self, number: int) -> NDArray[np.uint64]:
        self.spending.starts += 1
        return self.source.derive("start").words(self.spending.starts)(number)

    def answer(self, path: Path, bounded: Bounded, share: float) -> Any:
        """Answer what an `Ask` asks for: a release, or a choice."""
        return (self.release if bounded.bound.linf is None else self.choose)(bounded, share)

    def ask(self, query: object) -> Ask:
        """Return the public face of a query: what solvers are handed."""
        return Ask(self, query)

    # -- the receipt -----------------------------------------------------------------------
    def _snapped(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Return losses with the budget's own mu where all of it was spent.

        The last bits of a sum of squares depend on the cuts, which may follow released values.
        """
        mu = self.budget.mu
        whole = Loss("gaussian", mu)
        near = [kind == "gaussian" and math.isclose(value, mu) for kind, value in losses]
        return tuple(whole if snap else loss for loss, snap in zip(losses, near, strict=True))

    @property
    def _priced(self) -> PrivacyBudget:
        """The budget with the whole delta, and the sampler's part of it."""
        return self.budget if self.stages is None else self.stages.gaussian

    def _composed_epsilon(self, losses: tuple[Loss, ...]) -> float:
        budget, copies = self._priced, self._priced.copies
        each = tuple(loss.times(1 / math.sqrt(copies)) for loss in losses) if copies > 1 else losses
        left = (budget.delta - budget.sampler_delta) / copies
        epsilon = copies * accounting.epsilon_from_losses(each, left)
        if epsilon > budget.epsilon * (1 + 1e-9):
            raise PrivacyError("more was granted than this session's budget")
        near = epsilon > budget.epsilon * (1 - 1e-9)  # the last bits depend on the order of sums
        return budget.epsilon if near else epsilon

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: each copy could spend the budget."""
        raise PrivacyError("a privacy session cannot be copied or pickled.")

    def spent(self) -> PrivacySpent:
        """Return the receipt of everything granted so far: of all stages, if there are any."""
        budget = self._priced
        losses = self._snapped(accounting.compose(entry.loss for entry in self.ledger))
        if budget.exact:
            epsilon = math.inf if losses else 0.0
        else:
            epsilon = self._composed_epsilon(losses)
        if self.stages is not None and losses:
            losses, epsilon = self.stages.losses, self.stages.epsilon
        return PrivacySpent(
            epsilon=epsilon,
            delta=budget.delta,
            losses=losses,
            adjacency=self.adjacency,
            unit=self.unit,
            seeded=self.source.seeded,
            distance=budget.copies * SAMPLER_DISTANCE * (budget.sampler_delta > 0.0),
        )
