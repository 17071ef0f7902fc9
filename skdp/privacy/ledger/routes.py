"""How a fit finds whom it has to pay: every ledger that is open around it, or a reservation.

A plain fit pays all ledgers that are open in its process, whatever its thread, and all that the
processes before it hold open. A clone or a pickle carries a ticket: it draws on the reservation
that somebody paid for by name (`PrivacyLedger.pay_for`), or is refused.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.session import Observer, PrivacySession
from skdp.privacy.ledger.files import FileBook
from skdp.privacy.ledger.fits import LedgerFit, planned, unit_name
from skdp.privacy.ledger.reservations import (
    RUN,
    Prepaid,
    Reservation,
    RunLimit,
    Slips,
    Ticket,
    WholeFits,
)
from skdp.privacy.ledger.scope import around

Losses: TypeAlias = tuple[Loss, ...]

_UNPAID = (
    "was cloned or pickled inside a PrivacyLedger by code that nobody paid for by name, so that "
    "which rows it gets, and how often, is not known. Write\n"
    "    with ledger.pay_for(search, n_samples=len(X)):\n"
    "        search.fit(X, y)\n"
    "where 'search' is the object that makes the clones, or a private estimator with 'cv', for "
    "cross_validate. To fit it yourself, make a new one from its parameters (outside: "
    "sklearn.base.clone)."
)
_ENDED = (
    "is part of what was paid for by name, and that has ended: what it did not use ended with it. "
    "Fit a new estimator, made from its parameters."
)
_ELSEWHERE = (
    "runs in another process than the PrivacyLedger that is open, which cannot be charged from "
    "here. Use n_jobs=1 or joblib.parallel_config('threading'), or pay for a search by name: "
    "ledger.pay_for(search, n_samples=len(X)). A PrivacyLedger(..., path=...) in a file is charged."
)
_SHARED = (
    "a PrivacyLedger adds up random sketches as independent ones, and this sketch is shared (by "
    "'sketch_seed' or for_server). Use sensitivity_mode='worst_case', or no ledger."
)


class _Payer(Protocol):
    """What a fit can be charged to: a ledger, or something that was paid for in advance."""

    def reserve(self, fit: LedgerFit) -> int: ...

    def recharge(self, key: int, losses: tuple[Loss, ...]) -> None: ...

    def scale(self, key: int, parts: float) -> None: ...

    def check_same_part(self, key: int) -> None: ...

    def settle(self, key: int, granted: tuple[Loss, ...], state: str) -> None: ...


Charges: TypeAlias = "list[tuple[_Payer, int]]"
_RESERVATIONS: dict[str, Reservation] = {}


class Account(Observer):
    """Whom a session is charged to; the session tells it what is granted, before it is."""

    def __init__(self) -> None:
        self.charges: Charges = []
        self._shares_sketch = False  # a random one, with other sessions

    def unplanned(self, losses: Losses, *, shared: bool) -> None:
        """Change planned charges to a loss of another kind, or refuse."""
        self._shares_sketch |= shared
        if self.charges:
            self.check_own_sketch()
        for payer, key in self.charges:
            payer.recharge(key, losses)

    def check_own_sketch(self) -> None:
        """Refuse to stand in a ledger with a random sketch that other sessions have too."""
        if self._shares_sketch:
            raise PrivacyError(_SHARED)


def _charges(session: PrivacySession) -> Charges:
    return session.observer.charges if isinstance(session.observer, Account) else []


def _refuse(name: str, why: str) -> PrivacyError:
    """Return a refusal; the ledgers of this process meet whoever swallows it."""
    error = PrivacyError(f"{name} {why}")
    for ledger in around()[0].values():
        ledger.book.note_refusal(error)
    return error


def _reservation(ticket: Ticket | None, name: str) -> Reservation | None:
    """Return what a ticket draws on, or refuse."""
    if (run := RUN.get()) is not None:
        return run
    if ticket is None:
        return None
    if not ticket.reservation:
        raise _refuse(name, _UNPAID)
    if ticket.reservation in _RESERVATIONS:
        return _RESERVATIONS[ticket.reservation]
    if not (ticket.slips and Path(ticket.slips).exists()):
        raise _refuse(name, _ENDED)
    return WholeFits() if ticket.whole else Slips(ticket.slips, ticket.ledgers)


def _payers(ticket: Ticket | None, name: str) -> list[_Payer]:
    """Return whom a fit has to pay, or refuse."""
    reservation = _reservation(ticket, name)
    covers = frozenset() if reservation is None else reservation.covers
    own, before = around()
    if isinstance(reservation, RunLimit):  # a ledger of another thread may not count the runs
        own = {token: ledger for token, ledger in own.items() if ledger.run is reservation}
    payers: list[_Payer] = [ledger.book for token, ledger in own.items() if token not in covers]
    for token, path in before.items():
        if token not in covers and token not in own:
            if not path:
                raise _refuse(name, _ELSEWHERE)
            payers.append(FileBook(path, token=token))
    return [reservation, *payers] if isinstance(reservation, Prepaid) else payers


def _charge_all(payers: Iterable[_Payer], fit: LedgerFit) -> Charges:
    charges: Charges = []
    try:
        for payer in payers:
            charges.append((payer, payer.reserve(fit)))
    except BaseException:
        settle_charges(charges, (), "failed")
        raise
    return charges


def charge(
    session: PrivacySession, name: str, ticket: Ticket | None = None, sensitivity: object = None
) -> None:
    """Charge the whole budget of a session to all who pay for it, or to none and raise.

    Once charged, it is charged again only to ledgers that were opened since.
    """
    charged = _charges(session)
    for payer, key in charged:
        payer.check_same_part(key)
    paid = {payer for payer, _ in charged}
    covered = {token for payer in paid for token in getattr(payer, "covers", ())}
    if covered:
        own, _ = around()
        payers = [ledger.book for token, ledger in own.items() if token not in covered]
    else:
        payers = _payers(ticket, name)
    payers = [payer for payer in payers if payer not in paid]
    if not payers:
        return
    if session.stages is not None:
        raise PrivacyError(
            f"{name} spends a budget in stages, which no ledger can add up: open the ledger first."
        )
    if not isinstance(session.observer, Account):
        raise PrivacyError(f"the session of {name} has no account that a ledger could charge")
    session.observer.check_own_sketch()
    granted = accounting.compose(entry.loss for entry in session.ledger)
    unit, losses = unit_name(session.unit, sensitivity), granted or planned(session.budget)
    fit = LedgerFit(name, unit, session.adjacency, losses, session.source.seeded)
    session.observer.charges += _charge_all(payers, fit)


def charge_parts(sessions: Sequence[PrivacySession]) -> None:
    """Charge p sessions for shares of one sum, each with a part of one unit, or refuse.

    The noise is there once, so that their losses add up: p times one. A ledger that has j of the
    charges adds up squares: each counts as p / sqrt(j).
    """
    held: dict[_Payer, list[int]] = {}
    for session in sessions:
        for payer, key in _charges(session):
            held.setdefault(payer, []).append(key)
    done: Charges = []
    try:
        for payer, keys in held.items():
            for key in keys:
                payer.scale(key, len(sessions) / math.sqrt(len(keys)))
                done.append((payer, key))
    except BaseException:
        for payer, key in done:
            payer.scale(key, 1.0)
        raise


def settle(session: PrivacySession, state: str = "fitted") -> None:
    """Bring the charge of a session down to what it was granted; call it when the fit ends."""
    granted = accounting.compose(entry.loss for entry in session.ledger)
    settle_charges(_charges(session), granted, state)


def settle_charges(charges: Iterable[tuple[_Payer, int]], granted: Losses, state: str) -> None:
    """Bring charges to what was granted."""
    for payer, key in charges:
        payer.settle(key, granted, state)


# -- paid in advance ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Payment:
    """What is paid for by name: a search with its whole cost, or whole fits (no `fit`).

    `parts` are the estimators and scorers whose clones and copies draw on it.
    """

    parts: tuple[Any, ...]
    fit: LedgerFit | None = None
    fits: tuple[LedgerFit, ...] = ()
    refits: tuple[tuple[LedgerFit, ...], ...] = ()


# Functions that count the cost of a search, and of what else fits clones: this layer knows neither.
COUNTERS: list[Callable[..., Payment]] = []


@contextmanager
def pay_for(payment: Payment) -> Iterator[None]:
    """Charge what is paid for by name, and let its parts draw on it, to the end of the block."""
    if payment.fit is None:
        own, before = around()
        with (
            tempfile.NamedTemporaryFile(prefix="skdp-clones-") as while_it_lasts,
            _parts_draw_on(payment.parts, WholeFits(), (*own, *before), while_it_lasts.name),
        ):
            yield
        return
    payers = _payers(None, payment.fit.estimator)
    charges = _charge_all(payers, payment.fit)
    covers = tuple(around()[0])
    slips = Slips.write(payment.fits, payment.refits, covers)
    state = "failed"
    try:
        with _parts_draw_on(payment.parts, slips, covers, slips.path):
            yield
        state = "fitted"
    finally:
        used = slips.end()
        settle_charges(charges, payment.fit.losses if used else (), state if used else "failed")


@contextmanager
def _parts_draw_on(
    parts: Sequence[Any], reservation: Reservation, ledgers: tuple[str, ...], slips: str
) -> Iterator[None]:
    whole = isinstance(reservation, WholeFits)
    ticket = Ticket(ledgers, reservation.token, slips, whole)
    before = [vars(part).get("_ledger_ticket") for part in parts]
    _RESERVATIONS[reservation.token] = reservation
    try:
        for part in parts:
            part._ledger_ticket = ticket
        yield
    finally:
        del _RESERVATIONS[reservation.token]
        for part, old in zip(parts, before, strict=True):
            vars(part).pop("_ledger_ticket", None)
            if old is not None:
                part._ledger_ticket = old


@contextmanager
def prepaid(fit: LedgerFit, ticket: Ticket | None, limit: RunLimit) -> Iterator[RunLimit]:
    """Charge a private search as one fit; the fits of its runs, in this block, draw on its limit.

    A block that fails keeps its charge (that a run failed, and when, is a function of answers),
    unless nothing was granted in it.
    """
    charges = _charge_all(_payers(ticket, fit.estimator), fit)
    limit.covers = frozenset(token for ledgers in around() for token in ledgers)
    _RESERVATIONS[limit.token] = limit
    run = RUN.set(limit)
    try:
        yield limit
    except BaseException:
        settle_charges(charges, fit.losses if limit.granted else (), "failed")
        raise
    finally:
        RUN.reset(run)
        del _RESERVATIONS[limit.token]
    settle_charges(charges, fit.losses, "fitted")
