"""The gate: the one place where private data become public. Pay, then read, then add noise.

A query hands over a `Bounded`: a public `Bound` and an unread answer. `PrivacySession` has four
verbs (`release`, `accumulate`, `choose`, and `stream`); each is a `grant`, which checks the budget,
writes the ledger line and fixes the public noise scale, followed by a read through
`PrivacySession._read`, the only line of the package that runs a query's closure.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.accounting.sketch_laws import SketchMixture, largest_mixture
from skdp.privacy.gate.ask import Ask
from skdp.privacy.gate.bounds import (
    Answer,
    Bound,
    Bounded,
    PrivateQuery,
    gaussian_step,
    laplace_step,
)
from skdp.privacy.gate.budget import MAX_DRAWS, PrivacyBudget
from skdp.privacy.gate.grants import Accumulator, Grant
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import NoiseSource, SeededSource
from skdp.privacy.streams.continual import Stream, paid_stream
from skdp.privacy.streams.sketch_draws import SketchSource

__all__ = [
    "Accumulator",
    "Answer",
    "Ask",
    "Bound",
    "Bounded",
    "Grant",
    "PrivacySession",
    "PrivateQuery",
    "Stream",
]

_SHARE_SLIP = 1e-9  # shares are sums of floats
# A share of the noise is further from a rounded normal variable than a whole draw.
_SHARE_COST = math.ceil(noise.SHARE_DELTA_PER_DRAW / noise.DELTA_PER_DRAW)
_SHARED = (
    "a PrivacyLedger adds up random sketches as independent ones, and this sketch is shared (by "
    "'sketch_seed' or for_server). Use sensitivity_mode='worst_case', or no ledger."
)
_CHOICE_BITS = 32  # grid of the scores of one choice: leaves room for two thousand million rows


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
    """

    def __init__(
        self, budget: PrivacyBudget, *, source: NoiseSource, adjacency: str, unit: str
    ) -> None:
        self.budget = budget
        self.source = source
        self.adjacency = adjacency
        self.unit = unit
        self.lock = threading.RLock()
        self.ledger: tuple[LedgerEntry, ...] = ()
        self.watch: Callable[[str], None] | None = None  # is told the name of what was paid for
        self._spent = {"gaussian": 0.0, "pure": 0.0}
        self._draws = 0
        self._starts = 0
        # Set by a PrivacyLedger: asked before a loss that is not planned as a Gaussian one.
        self.recharge: Callable[[tuple[Loss, ...]], None] | None = None
        self.shares_sketch = False  # a random one, with other sessions

    # -- the only line of the package that runs private code -------------------------------
    def _read(self, answer: Callable[[float], NDArray[Any]], grant: Grant) -> NDArray[Any]:
        if (grant.step == 0.0) != self.budget.exact:
            raise PrivacyError(f"the grant of {grant.bound.name!r} has no noise scale")
        with np.errstate(all="ignore"):  # a floating-point warning would tell of the data
            exact = np.asarray(answer(grant.step))
        expected = np.dtype(np.int64 if grant.step else np.float64)
        if exact.shape != grant.bound.shape or exact.dtype != expected:
            raise PrivacyError(f"the answer of {grant.bound.name!r} does not match its bound")
        return exact

    # -- paying, before any data is touched ------------------------------------------------
    def _affordable(self, bound: Bound, kind: str, share: float, draws: int = 1) -> float:
        """Return the share, cut to what is left if it exceeds that by rounding alone."""
        left = 1.0 - self._spent[kind]
        if not 0 < share <= left + _SHARE_SLIP:
            raise BudgetExceededError(
                f"{bound.name!r} asks for {share:.3g} of the {kind} budget; {left:.3g} is left."
            )
        if self._draws + draws * bound.size > MAX_DRAWS:
            raise BudgetExceededError(f"{bound.name!r} asks for more noise than a fit may draw.")
        return min(share, left)

    def _pay(self, bound: Bound, kind: str, share: float, draws: int = 1) -> None:
        self._spent[kind] += share
        self._draws += draws * bound.size

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
        mu = self._mu(share)
        step = gaussian_step(bound, mu)
        return "gaussian", step, step * noise.EFFECTIVE_SIGMA, Loss("gaussian", mu)

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
        kind = "pure" if self.budget.pure else "gaussian"
        sensitivity = bound.l1 if self.budget.pure and bound.l1 is not None else bound.l2
        with self.lock:
            share = self._affordable(bound, kind, share, openings)
            mechanism, step, noise_scale, loss = self._scale(bound, share)
            self._pay(bound, kind, share, openings)
            grant = Grant(self, bound, mechanism + note, step, noise_scale)
            line = (sensitivity / unit, noise_scale / unit, loss)
            self._record(bound.name, mechanism + note, *line)
        return grant

    def grant_sketches(
        self,
        bounds: Sequence[Bound],
        shares: Sequence[float],
        *,
        parties: int = 0,
        shared: bool = False,
        note: str = "",
    ) -> tuple[Grant, ...]:
        """Pay for several sketches of one matrix, calibrated together; nothing is read yet.

        Where a bound has a `law`, the group is no Gaussian release: it takes the whole budget, so
        that nothing composes with it inside this fit, and its ledger lines carry the joint law.

        Parameters
        ----------
        bounds : sequence of Bound
            One for each sketch; the noises are independent.
        shares : sequence of float
            Shares of the (mean) squared mu, which sum to 1 if a bound has a law.
        parties : int, default=0
            0: the noise is drawn here. Else each grant draws a share, and the sum of `parties`
            such shares is the noise that the bound needs: one share alone protects nothing.
        shared : bool, default=False
            Other fits may use the same sketch: then a ledger, which adds up sketches as
            independent ones, refuses a bound with a law.
        note : str
            Added to the mechanism's name in the ledger.

        Returns
        -------
        tuple of Grant
        """
        with self.lock:
            losses = self._sketch_losses(bounds, shares)
            if any(loss.kind == "sketch" for loss in losses):
                self.shares_sketch = shared
                if self.recharge is not None:
                    self.check_own_sketch()
                    self.recharge(accounting.compose(losses))
            lines = zip(bounds, shares, losses, strict=True)
            return tuple(self._grant_sketch(*line, parties, note) for line in lines)

    def check_own_sketch(self) -> None:
        """Refuse to stand in a ledger with a random sketch that other sessions have too."""
        if self.shares_sketch:
            raise PrivacyError(_SHARED)

    def _sketch_losses(self, bounds: Sequence[Bound], shares: Sequence[float]) -> list[Loss]:
        """Check the budget and calibrate: one loss for each bound."""
        budget = self.budget
        if budget.pure:
            raise PrivacyError("sketches have no pure differential privacy; use delta > 0")
        left = 1.0 - self._spent["gaussian"]
        if not min(shares) > 0 or not math.fsum(shares) <= left + _SHARE_SLIP:
            raise BudgetExceededError(f"the sketches ask for {list(shares)}; {left:.3g} is left.")
        if budget.exact or all(bound.law is None for bound in bounds):
            return [Loss("gaussian", self._mu(min(share, left))) for share in shares]
        if self.ledger or not math.fsum(shares) >= 1 - _SHARE_SLIP:
            raise PrivacyError("random sketches take the whole budget of a session")
        degrees = [() if bound.law is None else bound.law.degrees for bound in bounds]
        mixture = largest_mixture(zip(shares, degrees, strict=True), *budget.calibration)
        return [Loss("sketch", SketchMixture(mixture.terms, i)) for i in range(len(bounds))]

    def _grant_sketch(
        self, bound: Bound, share: float, loss: Loss, parties: int, note: str
    ) -> Grant:
        share = self._affordable(bound, "gaussian", share)
        sigma, levels = noise.EFFECTIVE_SIGMA, noise.LEVELS
        mechanism = "none (epsilon is infinite)" if self.budget.exact else "gaussian"
        if parties:
            sigma, levels = math.sqrt(parties) * noise.SHARE_EFFECTIVE_SIGMA, noise.SHARE_LEVELS
            mechanism += f", one of {parties} shares"
            self.charge_draws(int(parties * bound.size * _SHARE_COST))
        step = noise_scale = 0.0
        if not self.budget.exact:
            step = gaussian_step(bound, float(loss.value) * sigma / noise.EFFECTIVE_SIGMA)
            noise_scale = step * sigma
        self._pay(bound, "gaussian", share)
        grant = Grant(self, bound, mechanism + note, step, noise_scale, levels)
        self._record(bound.name, grant.mechanism, bound.l2, noise_scale, loss)
        return grant

    def accumulate_sketches(
        self,
        bounds: Sequence[Bound],
        shares: Sequence[float],
        *,
        parties: int = 0,
        shared: bool = False,
    ) -> list[Accumulator]:
        """Pay for sketches and draw their noise now; see `grant_sketches` and `accumulate`."""
        note = ", noise first"
        grants = self.grant_sketches(bounds, shares, parties=parties, shared=shared, note=note)
        return [Accumulator(grant) for grant in grants]

    def charge_draws(self, number: int) -> None:
        """Count further draws from the noise table: their error is part of delta."""
        with self.lock:
            if self._draws + number > MAX_DRAWS:
                raise BudgetExceededError("this fit asks for more noise than a fit may draw.")
            self._draws += number

    def sketches(self, seed: int | None = None) -> SketchSource:
        """Return a source of random sketches: secret ones, or with a `seed` public ones."""
        if seed is not None:
            return SketchSource(self, SeededSource(seed, "skdp.sketch"))
        if isinstance(self.source, SeededSource):
            return SketchSource(self, self.source.derive("sketch"))
        return SketchSource(self, SeededSource(self.source.words("sketch")(4).tobytes(), "sketch"))

    def forfeit(self, share: float) -> None:
        """Pay a share and release nothing for it.

        A solver that stops early because of what was released must pay for the releases that it
        leaves out: how much is spent may not depend on the data, not even through public answers.
        """
        kind = "pure" if self.budget.pure else "gaussian"
        nothing = Bound("left_out", (0,), 0.0)
        with self.lock:
            share = self._affordable(nothing, kind, share)
            size = self.budget.pure_epsilon * share if self.budget.pure else self._mu(share)
            self._pay(nothing, kind, share)
            self._record(nothing.name, "paid, not read", 0.0, 0.0, Loss(kind, size))

    def _mu(self, share: float) -> float:
        return math.inf if self.budget.exact else self.budget.mu * math.sqrt(share)

    def _record(self, *line: Any) -> None:
        self.ledger += (LedgerEntry(*line),)
        if self.watch is not None:
            self.watch(line[0])

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

    def stream(self, bound: Bound, share: float, horizon: int, **options: Any) -> Stream:
        """Pay once for `horizon` releases of running sums, as `paid_stream` does."""
        return paid_stream(self, bound, share, horizon, **options)

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
            share = self._affordable(bound, "pure", share)
            eta = budget.pure_epsilon * share
            rate = eta / (2.0**_CHOICE_BITS + 2)  # rounding moves two scores by one step
            step = 0.0 if budget.exact else bound.linf * 2.0**-_CHOICE_BITS
            scale = step / rate
            loss = Loss("gaussian", math.inf) if budget.exact else Loss("range", eta)
            self._pay(bound, "pure", share)
            grant = Grant(self, bound, "exponential", step, scale)
            self._record(bound.name, "exponential", bound.linf, scale, loss)
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

    @property
    def law(self) -> str:
        """Law of the noise: "gaussian", "laplace" (delta is 0) or "exact" (epsilon is infinite)."""
        return "exact" if self.budget.exact else "laplace" if self.budget.pure else "gaussian"

    def random_start(self, n: int, k: int, *, ones_first: bool = False) -> NDArray[np.float64]:
        """Return an n x k start of random signs; its first column may be ones."""
        start = self.random_signs((n, k))
        if ones_first:
            start[:, 0] = 1.0
        return start

    def random_signs(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return a public random start of entries +1 and -1, independent of the data."""
        self._starts += 1
        words = self.source.derive("start").words(self._starts)(math.prod(shape))
        return np.where(words & np.uint64(1), 1.0, -1.0).reshape(shape)

    def ask(self, query: object) -> Ask:
        """Return the public face of a query: what solvers are handed."""
        return Ask(self, query)

    # -- the receipt -----------------------------------------------------------------------
    def _composed_epsilon(self, losses: tuple[Loss, ...]) -> float:
        budget = self.budget
        epsilon = accounting.epsilon_from_losses(losses, budget.delta - budget.sampler_delta)
        if epsilon > budget.epsilon * (1 + 1e-9):
            raise PrivacyError("more was granted than this session's budget")
        near = epsilon > budget.epsilon * (1 - 1e-9)  # the last bits depend on the order of sums
        return budget.epsilon if near else epsilon

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied: each copy could spend the budget."""
        raise PrivacyError("a privacy session cannot be copied or pickled.")

    def spent(self) -> PrivacySpent:
        """Return the receipt of everything granted so far."""
        budget = self.budget
        losses = accounting.compose(entry.loss for entry in self.ledger)
        if budget.exact:
            epsilon = math.inf if losses else 0.0
        else:
            epsilon = self._composed_epsilon(losses)
        return PrivacySpent(
            epsilon=epsilon,
            delta=budget.delta,
            losses=losses,
            adjacency=self.adjacency,
            unit=self.unit,
            seeded=self.source.seeded,
        )
