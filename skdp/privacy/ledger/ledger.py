"""One budget over many fits: a ledger that every fit inside it must pay, before data are touched.

How a fit finds its ledgers: `skdp.privacy.ledger.routes`.
"""

from __future__ import annotations

import html
import math
import os
import secrets
import threading
from dataclasses import replace
from typing import NoReturn

from skdp._tables import aligned
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.budget import MAX_DRAWS, PrivacyBudget
from skdp.privacy.ledger.filters import late_kind, spent_delta, spent_epsilon, spent_losses
from skdp.privacy.ledger.fits import NORM_UNITS, LedgerFit, as_text, multiplied, planned
from skdp.privacy.ledger.routes import ACTIVE, OPEN, charge, close, home, is_open, settle
from skdp.privacy.noise import integers as noise

__all__ = ["ACTIVE", "OPEN", "LedgerFit", "PrivacyLedger", "charge", "home", "is_open", "settle"]

ADJACENCIES = ("add_remove", "replace")
# A replacement is a removal and an addition in these units, so it costs at most twice as much.
_REPLACEABLE = ("row", "group", "interaction", "entry", "edge")
UNITS = (*_REPLACEABLE, "label", *NORM_UNITS)
_DRAWN = ("gaussian", "sketch")  # kinds whose noise comes from the table


class PrivacyLedger:
    """One budget for all fits inside a ``with`` block, charged before any data are touched.

    Everything released inside satisfies (`epsilon`, `delta`)-differential privacy as a whole, in
    one privacy unit and one adjacency, also if each fit is chosen by the answers of those before.
    Gaussian fits compose exactly, as the root of the sum of their squared mu; later fits of other
    kinds as Gaussians that dominate them; a fit's own delta only sets its noise. All fits count
    as fits to the same people: folds and disjoint parts get no discount. Not covered: scores on
    private rows (so a choice made by an exact score), projected private rows, and
    estimators without privacy.

    Parameters
    ----------
    epsilon, delta : float
        Total budget, in (0, inf) and [0, 1). With delta=0 only fits with delta=0 can be paid.
    adjacency : {"add_remove", "replace"} or None, default=None
        None: the first fit decides. A "replace" ledger takes "add_remove" fits at twice their loss
        (a replacement is a removal and an addition); the reverse is refused.
    unit : str or None, default=None
        Privacy unit of all fits; None: the first fit decides. That groups stay the same groups is
        up to the caller.
    allow_seeded : bool, default=False
        Take fits with a `random_state`, which are not private; `spent` is then flagged.

    Notes
    -----
    A fit reserves its budget when it starts and settles to what it was granted when it ends. One
    that fails before its first release spends nothing. One that fails later keeps what it was
    granted: that it failed, and how, is a function of the answers.

    A refused fit raises and touches no data. Whoever swallows the error (a grid search makes it a
    nan score) meets it again at the end of the block. To stop in time, ask `remaining`.

    Which rows a fit gets may not depend on other private rows: under "add_remove" use
    `skdp.model_selection.IndependentKFold`. Searches of scikit-learn whose folds or scores cannot
    be counted are refused.

    Threads are charged. In other processes, an estimator that was cloned or pickled inside the
    block raises PrivacyError, and so does every fit in a forked child. The limit: an estimator that
    a fresh process builds from nothing knows no ledger.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA, PrivacyLedger
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> with PrivacyLedger(epsilon=3.0, delta=1e-5) as ledger:
    ...     for n_components in (1, 2):
    ...         pca = DPPCA(n_components, epsilon=1.0, clip_norm=3.0).fit(X)
    >>> len(ledger.entries), round(ledger.spent.mu / pca.privacy_spent_.mu, 6)
    (2, 1.414214)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        adjacency: str | None = None,
        unit: str | None = None,
        allow_seeded: bool = False,
    ) -> None:
        budget = PrivacyBudget(epsilon, delta)
        if budget.exact:
            raise ValueError("'epsilon' of a PrivacyLedger must be finite. Got inf instead.")
        for name, value, options in (("adjacency", adjacency, ADJACENCIES), ("unit", unit, UNITS)):
            if value is not None and value not in options:
                raise ValueError(f"{name!r} must be None or one of {options}. Got {value!r}.")
        if not isinstance(allow_seeded, bool):
            raise ValueError(f"'allow_seeded' must be True or False. Got {allow_seeded!r} instead.")
        self.epsilon, self.delta = budget.epsilon, budget.delta
        self.allow_seeded = allow_seeded
        self._adjacency, self._unit = adjacency, unit
        self._entries: dict[int, LedgerFit] = {}
        self._serial = 0
        self._refused: list[tuple[type[PrivacyError], str]] = []  # no tracebacks: they hold X
        self._lock = threading.RLock()
        self._token = f"{os.getpid()}-{secrets.token_hex(8)}"

    def __enter__(self) -> PrivacyLedger:
        if home(self._token) != os.getpid():
            raise PrivacyError("a PrivacyLedger works in the process that made it only.")
        with self._lock:
            if self._token in OPEN:
                raise PrivacyError("this PrivacyLedger is open already.")
            OPEN[self._token] = self
        self._refused.clear()
        ACTIVE.set((*ACTIVE.get(), self._token))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        close(self._token)
        ACTIVE.set(tuple(token for token in ACTIVE.get() if token != self._token))
        if kind is not None or not self._refused:
            return
        for_budget = [refusal for refusal in self._refused if refusal[0] is BudgetExceededError]
        error, first = (for_budget or self._refused)[0]
        raise error(
            f"{len(self._refused)} fit(s) inside this PrivacyLedger were refused and the error was "
            f"swallowed (a grid search turns it into a nan score). First: {first}"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a PrivacyLedger cannot be copied or pickled: it would be spent twice.")

    def _limits(self, fits: int) -> tuple[float, float]:
        """Largest epsilon to claim after Gaussian fits, and the delta left by the sampler."""
        if fits == 0 or self.delta == 0:
            return self.epsilon, self.delta
        draws = fits * MAX_DRAWS  # total variations add up; their price is set by the total epsilon
        room = self.delta / (2 * draws * noise.DELTA_PER_DRAW) - 1
        limit = min(self.epsilon, math.log(room)) if room > 1 else 0.0
        return limit, math.nextafter(self.delta - noise.sampler_delta(limit, draws), -1.0)

    def _total(
        self, more: tuple[Loss, ...] = (), sessions: int = 1
    ) -> tuple[tuple[Loss, ...], list[tuple[Loss, ...]], int]:
        """Losses of the first fit, of each later one, and how many draw Gaussian noise."""
        fits = [*((fit.losses, fit.sessions) for fit in self._entries.values()), (more, sessions)]
        drawn = sum(n for losses, n in fits if any(kind in _DRAWN for kind, _ in losses))
        (first, _), *rest = fits
        later = [losses for losses, _ in rest if losses]
        oldest = next(iter(self._entries.values()), None)
        return (oldest.fixed() if oldest and later else first), later, drawn

    def _affords(self, more: tuple[Loss, ...] = (), sessions: int = 1) -> bool:
        first, later, fits = self._total(more, sessions)
        limit, left = self._limits(fits)
        if self.delta == 0:  # the epsilons of pure fits add up in floats
            losses = [*first, *(loss for fit in later for loss in fit)]
            return accounting.epsilon_from_losses(losses, 0.0) <= limit * (1 + 2.0**-48)
        return spent_delta(first, later, limit, (self.epsilon, self.delta)) <= left

    def remaining(self) -> float:
        """Return the largest epsilon that one more fit can have.

        Returns
        -------
        float
            Affordable (tried, not estimated) for a fit of Gaussian releases with the ledger's
            delta and adjacency; 0.0 if there is none. With ``delta=0``, for a pure fit.
        """
        with self._lock:
            low, middle, high = 0.0, self.epsilon, self.epsilon
            while high - low > 1e-12 * self.epsilon:
                enough = self._affords(planned(PrivacyBudget(middle, self.delta)))
                low, high = (middle, high) if enough else (low, middle)
                middle = (low + high) / 2
            return low

    # -- charging, called through `charge` and `settle` -------------------------------------------
    def _reserve(self, fit: LedgerFit) -> int:
        """Charge the whole budget of a fit that is about to start, or refuse."""
        with self._lock:
            try:
                self._check_kind(fit)
                factor = self._factor(fit)
                losses = multiplied(fit.losses, factor)
                if not self._affords(losses, fit.sessions):
                    raise BudgetExceededError(
                        f"{fit.estimator} asks for {as_text(losses)}; this PrivacyLedger has room "
                        f"for epsilon={self.remaining():.4g} at delta={self.delta:.3g}. The data "
                        "were not touched. Use a smaller 'epsilon', fewer fits, or a larger ledger."
                    )
            except PrivacyError as error:
                self._refused.append((type(error), str(error)))
                raise
            self._serial += 1
            self._entries[self._serial] = replace(
                fit, losses=losses, factor=factor, promised=losses
            )
            return self._serial

    def _check_kind(self, fit: LedgerFit) -> None:
        if any(math.isinf(loss.value) for loss in fit.losses):
            raise PrivacyError(
                f"{fit.estimator} has epsilon=inf: it adds no noise, which no PrivacyLedger can "
                "pay. Use a finite 'epsilon', or fit it outside."
            )
        if fit.seeded and not self.allow_seeded:
            raise PrivacyError(
                f"{fit.estimator} was given a random_state: whoever knows it can remove the "
                "noise. Use random_state=None, or PrivacyLedger(..., allow_seeded=True) for tests."
            )

    def _meaning(self) -> tuple[str | None, str | None]:
        """Unit and adjacency: as given, else those of the oldest fit that was charged."""
        first = next(iter(self._entries.values()), None)
        if first is None:
            return self._unit, self._adjacency
        return first.unit, self._adjacency or ("replace" if first.factor > 1 else first.adjacency)

    def _factor(self, fit: LedgerFit) -> float:
        """How many neighbours of the fit one neighbour of the ledger is; an error if unknown."""
        unit, adjacency = self._meaning()
        if unit is not None and unit not in (fit.unit, fit.unit.partition(" ")[0]):
            raise PrivacyError(
                f"{fit.estimator} protects one {fit.unit}, and this PrivacyLedger one {unit}: the "
                "two do not add up. Use one privacy unit, or one ledger for each."
            )
        if fit.adjacency == (adjacency or fit.adjacency):
            return 1.0
        one_way = fit.adjacency in ("add_remove", "zero_out")
        if one_way and adjacency == "replace" and fit.unit in _REPLACEABLE:
            return 2.0
        raise PrivacyError(
            f"{fit.estimator} has adjacency={fit.adjacency!r}, and this PrivacyLedger "
            f"{adjacency!r}. Use one adjacency, or PrivacyLedger(..., adjacency='replace'), which "
            "takes add_remove fits at twice their loss."
        )

    def _recharge(self, key: int, losses: tuple[Loss, ...]) -> None:
        """Replace a reservation by a loss of another kind, before it is granted, or refuse."""
        with self._lock:
            fit = self._entries[key]
            self._check_recharge(key, fit, losses)
            costs = fit.costs(losses)
            self._entries[key] = replace(fit, losses=costs, promised=costs)
            if not self._affords():
                self._entries[key] = fit
                error = BudgetExceededError(
                    f"{fit.estimator} asks for {as_text(losses)}, which costs more than a Gaussian "
                    "release beside other fits. The data were not touched. Use a smaller "
                    "'epsilon' or a larger ledger."
                )
                self._refused.append((BudgetExceededError, str(error)))
                raise error

    def _check_recharge(self, key: int, fit: LedgerFit, losses: tuple[Loss, ...]) -> None:
        """Refuse to choose another way of adding up once there are answers."""
        oldest = next(iter(self._entries))
        sketched = any(loss.kind == "sketch" for loss in self._entries[oldest].promised)
        unanswered = all(other.state == "open" for other in self._entries.values())
        if not sketched and not (key == oldest and unanswered):
            error = PrivacyError(f"{fit.estimator}: {late_kind(losses)}")
            self._refused.append((PrivacyError, str(error)))
            raise error

    def _scale(self, key: int, parts: float) -> None:
        """Charge a fit `parts` times its loss (Gaussian or of sketches) from now on, or refuse."""
        with self._lock:
            fit = self._entries[key]
            losses = tuple(loss.times(parts / fit.parts) for loss in fit.losses)
            self._entries[key] = replace(fit, losses=losses, parts=parts)
            if parts > fit.parts and not self._affords():
                self._entries[key] = fit
                error = BudgetExceededError(
                    f"{fit.estimator} holds parts of rows that other servers hold parts of: under "
                    f"a secure sum it costs {as_text(losses)}. Nothing was opened. Use a smaller "
                    "'epsilon' or a larger ledger."
                )
                self._refused.append((BudgetExceededError, str(error)))
                raise error

    def _settle(self, key: int, granted: tuple[Loss, ...], state: str) -> None:
        """Replace a reservation by what was granted; nothing granted is nothing spent."""
        with self._lock:
            fit = self._entries[key]
            if not granted and state == "failed":
                del self._entries[key]
                return
            losses = fit.costs(granted)
            self._entries[key] = replace(fit, losses=losses, state=state)
            if fit.state != "open" and losses != fit.losses and not self._affords():
                error = BudgetExceededError(f"{fit.estimator} released more after it was settled.")
                self._refused.append((BudgetExceededError, str(error)))
                raise error

    @property
    def entries(self) -> tuple[LedgerFit, ...]:
        """The fits that were charged, oldest first."""
        with self._lock:
            return tuple(self._entries.values())

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why fits were refused, since the ledger was last opened."""
        return tuple(text for _, text in self._refused)

    @property
    def spent(self) -> PrivacySpent:
        """The receipt of everything so far, fits that still run with their whole budget."""
        with self._lock:
            first, later, fits = self._total()
            limit, left = self._limits(fits)
            epsilon = spent_epsilon(first, later, left, (self.epsilon, self.delta))
            if self._affords():
                epsilon = min(epsilon, limit)
            unit, adjacency = self._meaning()
            seeded = any(fit.seeded for fit in self._entries.values())
        meaning = adjacency or ADJACENCIES[0], unit or UNITS[0]
        return PrivacySpent(epsilon, self.delta, spent_losses(first, later), *meaning, seeded)

    def _table(self) -> list[tuple[str, str, str, str, str, str]]:
        table = [("fit", "estimator", "unit", "adjacency", "loss", "state")]
        for i, fit in enumerate(self.entries, 1):
            adjacency = fit.adjacency + (" (twice)" if fit.factor > 1 else "")
            state = fit.state + (" SEEDED" if fit.seeded else "")
            table.append((str(i), fit.estimator, fit.unit, adjacency, as_text(fit.losses), state))
        return table

    def _summary(self) -> str:
        spent = self.spent
        return (
            f"Budget epsilon={self.epsilon:.4g}, delta={self.delta:.3g}; spent "
            f"{as_text(spent.losses)}: {spent.sentence()} Left for one more fit: "
            f"epsilon={self.remaining():.4g}. Refused: {len(self.refusals)}."
        )

    def report(self) -> str:
        """Return the charged fits as aligned text, with what was spent and what is left.

        Returns
        -------
        str
            Notebooks show the ledger itself as a table.
        """
        return "\n".join([*aligned(self._table()), self._summary()])

    def _repr_html_(self) -> str:
        cells = [[f"<td>{html.escape(cell)}</td>" for cell in row] for row in self._table()]
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        return f"<table>{rows}</table><p>{html.escape(self._summary())}</p>"

    def __repr__(self) -> str:
        return f"PrivacyLedger(epsilon={self.epsilon!r}, delta={self.delta!r})"
