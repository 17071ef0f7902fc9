"""The book of a ledger: its entries, and how they change. One change at a time, or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.ledger.balances import Balance, Terms
from skdp.privacy.ledger.disjoint import check_part, part_of
from skdp.privacy.ledger.filters import late_kind
from skdp.privacy.ledger.fits import LedgerFit, as_text, multiplied
from skdp.privacy.ledger.scope import new_token

Losses: TypeAlias = tuple[Loss, ...]
Entries: TypeAlias = dict[int, LedgerFit]


class Book:
    """Entries in the memory of this process.

    Whatever keeps entries elsewhere replaces `held`: nobody else changes them inside it, and they
    are kept when it is left without an error.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.token = new_token()
        self.refused: list[tuple[type[PrivacyError], str]] = []  # no tracebacks: they hold X
        self._entries: Entries = {}
        self._last = 0
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[Entries]:
        """Hold the entries, to look at them or to change them."""
        with self._lock:
            yield self._entries

    def _next_key(self) -> int:
        self._last += 1
        return self._last

    def balance(self) -> Balance:
        """Return what stands in the book now."""
        with self.held() as entries:
            return Balance(self.terms, dict(entries))

    def note_refusal(self, error: PrivacyError) -> None:
        """Remember a refusal, for the end of the block."""
        self.refused.append((type(error), str(error)))

    @contextmanager
    def _changing(self) -> Iterator[Entries]:
        try:
            with self.held() as entries:
                yield entries
        except PrivacyError as error:
            self.note_refusal(error)
            raise

    # -- as a payer of fits ----------------------------------------------------------------
    def reserve(self, fit: LedgerFit) -> int:
        """Charge the whole budget of a fit that is about to start, or refuse."""
        with self._changing() as entries:
            balance = Balance(self.terms, entries)
            balance.check_kind(fit)
            factor = balance.factor(fit)
            if (part := part_of(self.token)) is not None:
                check_part(part, fit, factor, entries.values())
            losses = multiplied(fit.losses, factor)
            charged = replace(fit, losses=losses, factor=factor, promised=losses, part=part)
            if not balance.affords(charged):
                raise BudgetExceededError(
                    f"{fit.estimator} asks for {as_text(losses)}; this PrivacyLedger has room for "
                    f"epsilon={balance.remaining(part=part):.4g} at "
                    f"delta={self.terms.cap.delta:.3g}. The data were not touched. Use a smaller "
                    "'epsilon', fewer fits, or a larger ledger."
                )
            key = self._next_key()
            entries[key] = charged
            return key

    def check_same_part(self, key: int) -> None:
        """Refuse to go on with a fit in another part of the data than the one that it is in."""
        with self._changing() as entries:
            fit = entries[key]
            if fit.part not in (None, part_of(self.token)):
                raise PrivacyError(
                    f"{fit.estimator} was charged for one part of the data and goes on "
                    "elsewhere. Feed it inside the same part."
                )

    def recharge(self, key: int, losses: Losses) -> None:
        """Replace a reservation by a loss of another kind, before it is granted, or refuse."""
        with self._changing() as entries:
            self._check_recharge(entries, key, losses)
            fit = entries[key]
            costs = fit.costs(losses)
            changed = replace(fit, losses=costs, promised=costs)
            if not Balance(self.terms, {**entries, key: changed}).affords():
                raise BudgetExceededError(
                    f"{fit.estimator} asks for {as_text(losses)}, which costs more than a Gaussian "
                    "release beside other fits. The data were not touched. Use a smaller "
                    "'epsilon' or a larger ledger."
                )
            entries[key] = changed

    def _check_recharge(self, entries: Entries, key: int, losses: Losses) -> None:
        """Refuse to choose another way of adding up once there are answers."""
        oldest = next(iter(entries))
        sketched = any(loss.kind == "sketch" for loss in entries[oldest].promised)
        first = key == oldest and entries[key].part is None
        unanswered = all(other.state == "open" for other in entries.values())
        if not sketched and not (first and unanswered):
            raise PrivacyError(f"{entries[key].estimator}: {late_kind(losses)}")

    def scale(self, key: int, parts: float) -> None:
        """Charge a fit `parts` times its loss (Gaussian or of sketches) from now on, or refuse."""
        with self._changing() as entries:
            fit = entries[key]
            losses = tuple(loss.times(parts / fit.parts) for loss in fit.losses)
            changed = replace(fit, losses=losses, parts=parts)
            more = parts > fit.parts
            if more and not Balance(self.terms, {**entries, key: changed}).affords():
                raise BudgetExceededError(
                    f"{fit.estimator} holds parts of rows that other servers hold parts of: under "
                    f"a secure sum it costs {as_text(losses)}. Nothing was opened. Use a smaller "
                    "'epsilon' or a larger ledger."
                )
            entries[key] = changed

    def settle(self, key: int, granted: Losses, state: str) -> None:
        """Replace a reservation by what was granted; nothing granted is nothing spent."""
        with self.held() as entries:
            fit = entries[key]
            if not granted and state == "failed":
                del entries[key]
                return
            losses = fit.costs(granted)
            entries[key] = replace(fit, losses=losses, state=state)
            grown = fit.state != "open" and losses != fit.losses
            exceeded = grown and not Balance(self.terms, entries).affords()
        if exceeded:  # it was released: it stays in the book
            error = BudgetExceededError(f"{fit.estimator} released more after it was settled.")
            self.note_refusal(error)
            raise error
