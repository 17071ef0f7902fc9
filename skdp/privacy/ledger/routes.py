"""How a fit finds the ledgers that it has to pay.

By three routes, and it pays all of them: the context it runs in (nested ``with`` blocks, asyncio
tasks), the stamp that a clone or a pickle made inside carries, and, where there is neither (a
worker thread), every ledger that is open in the process. A stamp whose ledger is not here is an
error: a charge is never lost by going elsewhere.

A search that was paid for in advance is a `Reservation`: its fits draw on it, and on no ledger.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn, Protocol, TypeAlias

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.session import Observer, PrivacySession
from skdp.privacy.ledger.fits import NORM_UNITS, LedgerFit, planned, unit_name

__all__ = [
    "ACTIVE",
    "OPEN",
    "PREPAID",
    "Account",
    "FitList",
    "NORM_UNITS",
    "LedgerFit",
    "Reservation",
    "RunLimit",
    "charge",
    "charge_parts",
    "close",
    "home",
    "is_open",
    "planned",
    "prepaid",
    "prepay",
    "settle",
    "unit_name",
]

Losses: TypeAlias = tuple[Loss, ...]

_ELSEWHERE = (
    "belongs to a PrivacyLedger of another process, which cannot be charged from here. Use "
    "n_jobs=1 or joblib.parallel_config('threading'); for an estimator loaded from a file, make a "
    "new one from its parameters."
)
_CLOSED = (
    "belongs to a PrivacyLedger that is closed. To fit it outside, use "
    "sklearn.base.clone(estimator); to charge it, open the ledger again."
)
_SHARED = (
    "a PrivacyLedger adds up random sketches as independent ones, and this sketch is shared (by "
    "'sketch_seed' or for_server). Use sensitivity_mode='worst_case', or no ledger."
)


class Payer(Protocol):
    """What a fit can be charged to: a ledger, or something that was paid for in advance."""

    def _reserve(self, fit: LedgerFit) -> int: ...

    def _recharge(self, key: int, losses: tuple[Loss, ...]) -> None: ...

    def _scale(self, key: int, parts: float) -> None: ...

    def _settle(self, key: int, granted: tuple[Loss, ...], state: str) -> None: ...


OPEN: dict[str, Payer] = {}  # strong: a ledger that nobody closes is still charged
PREPAID: dict[str, Reservation] = {}
ACTIVE: ContextVar[tuple[str, ...]] = ContextVar("skdp_ledgers", default=())
Charges: TypeAlias = "list[tuple[Payer, int]]"


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
            payer._recharge(key, losses)

    def check_own_sketch(self) -> None:
        """Refuse to stand in a ledger with a random sketch that other sessions have too."""
        if self._shares_sketch:
            raise PrivacyError(_SHARED)


def _charges(session: PrivacySession) -> Charges:
    return session.observer.charges if isinstance(session.observer, Account) else []


def home(token: str) -> int:
    """Return the process of a token; 0 marks a ledger closed before its stamp was pickled."""
    return int(token.partition("-")[0])


def is_open(token: str) -> bool:
    """Whether a fit with this token can be charged here."""
    return token in OPEN or token in PREPAID


def _find(token: str, name: str) -> Payer:
    ours = home(token) == os.getpid()  # a forked child has a copy of OPEN, and its own number
    if ours and is_open(token):
        return OPEN.get(token) or PREPAID[token]
    reason = _CLOSED if ours or home(token) == 0 else _ELSEWHERE
    raise PrivacyError(f"{name} {reason}")


def _payers(stamp: Iterable[str], name: str) -> dict[str, Payer]:
    """Return whom a fit has to pay: ledgers that paid for a reservation in advance are left out."""
    tokens = dict.fromkeys((*ACTIVE.get(), *stamp)) or dict.fromkeys(OPEN)
    prepaid_by = [PREPAID[token] for token in tokens if token in PREPAID]
    covered = {other for reservation in prepaid_by for other in reservation.covers}
    return {token: _find(token, name) for token in tokens if token not in covered}


def _charge_all(payers: Iterable[Payer], fit: LedgerFit) -> Charges:
    charges: Charges = []
    try:
        for payer in payers:
            charges.append((payer, payer._reserve(fit)))
    except BaseException:
        settle_charges(charges, (), "failed")
        raise
    return charges


def charge(
    session: PrivacySession, name: str, stamp: Iterable[str] = (), sensitivity: object = None
) -> None:
    """Charge the whole budget of a session to each new ledger of its, or to none and raise."""
    paid = {payer for payer, _ in _charges(session)}  # a stream may go on in a later ledger
    payers = [payer for payer in _payers(stamp, name).values() if payer not in paid]
    if not payers:
        return
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
    held: dict[Payer, list[int]] = {}
    for session in sessions:
        for payer, key in _charges(session):
            held.setdefault(payer, []).append(key)
    done: Charges = []
    try:
        for payer, keys in held.items():
            for key in keys:
                payer._scale(key, len(sessions) / math.sqrt(len(keys)))
                done.append((payer, key))
    except BaseException:
        for payer, key in done:
            payer._scale(key, 1.0)
        raise


def settle(session: PrivacySession, state: str = "fitted") -> None:
    """Bring the charge of a session down to what it was granted; call it when the fit ends."""
    granted = accounting.compose(entry.loss for entry in session.ledger)
    settle_charges(_charges(session), granted, state)


def settle_charges(charges: Iterable[tuple[Payer, int]], granted: Losses, state: str) -> None:
    """Bring charges to what was granted."""
    for payer, key in charges:
        payer._settle(key, granted, state)


# -- searches -------------------------------------------------------------------------------------


class Reservation:
    """What a search paid for in advance: its fits draw on it, and not on the ledgers that paid.

    Subclasses say in `_take` which fits it has room for.
    """

    def __init__(self) -> None:
        self.token = f"{os.getpid()}-{secrets.token_hex(8)}"
        self.covers: frozenset[str] = frozenset()
        self.charges: Charges = []
        self.started = self.granted = False
        self.lock = threading.RLock()

    def _take(self, fit: LedgerFit) -> None:
        raise NotImplementedError

    def _reserve(self, fit: LedgerFit) -> int:
        with self.lock:
            self._take(fit)
            self.started = True
        return 0

    def _recharge(self, key: int, losses: Losses) -> None:
        """Refuse: the search was paid for as a sum of Gaussian or pure fits."""
        raise PrivacyError(
            f"a search accounts for no {losses[0].kind!r} losses: random sketches compose in no "
            "simple way. Use sensitivity_mode='worst_case', or tune on public data."
        )

    def _scale(self, key: int, parts: float) -> None:
        """Refuse: the search was paid for as fits that hold whole units."""
        raise PrivacyError("a search accounts for no secure sum of parts of rows.")

    def _settle(self, key: int, granted: Losses, state: str) -> None:
        """Give nothing back: what the search costs was fixed before it started."""
        self.granted |= bool(granted)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a reservation cannot be copied or pickled: it would be spent twice.")


class FitList(Reservation):
    """A fixed list of fits of a search, each known by what it costs, and one refit.

    `refits` has the fits of each candidate: the first that is not on the list begins the refit of
    a candidate that has it.
    """

    def __init__(
        self, fits: Iterable[LedgerFit], refits: Iterable[Iterable[LedgerFit]] = ()
    ) -> None:
        super().__init__()
        self._left = Counter(map(_kind, fits))
        self._refits = [Counter(map(_kind, candidate)) for candidate in refits]

    def _take(self, fit: LedgerFit) -> None:
        kind = _kind(fit)
        if self._left[kind] > 0:
            self._left[kind] -= 1
            return
        possible = [candidate for candidate in self._refits if candidate[kind] > 0]
        if not possible:
            raise BudgetExceededError(
                f"{fit.estimator} is part of a search that was paid for in advance, and this fit "
                "is not among those. Fit a new estimator, made from its parameters."
            )
        self._refits = [candidate - Counter([kind]) for candidate in possible]


def _kind(fit: LedgerFit) -> tuple[str, str, Losses]:
    return fit.unit, fit.adjacency, fit.losses


class RunLimit(Reservation):
    """What one run of a private search may spend; `next_run` fills it up again."""

    def __init__(self, unit: str, adjacency: str, run: Loss) -> None:
        super().__init__()
        self.meaning = unit, adjacency
        self.run = run
        self._spent: list[Loss] = []

    def next_run(self) -> None:
        """Start another run."""
        self._spent = []

    def _take(self, fit: LedgerFit) -> None:
        if (fit.unit, fit.adjacency) != self.meaning:
            raise PrivacyError(
                f"{fit.estimator} protects one {fit.unit} ({fit.adjacency}), and the search one "
                f"{self.meaning[0]} ({self.meaning[1]}). Use one privacy unit and adjacency."
            )
        if math.isinf(self.run.value):  # nothing is protected
            return
        if any(kind != self.run.kind for kind, _ in fit.losses):
            raise PrivacyError(
                f"{fit.estimator} spends {sorted({kind for kind, _ in fit.losses})} losses, and "
                f"this search accounts for {self.run.kind!r} ones only. Use settings whose "
                "releases are all of that kind, or tune on public data."
            )
        spent = [*self._spent, *fit.losses]
        values = [value for _, value in spent]
        total = math.hypot(*values) if self.run.kind == "gaussian" else math.fsum(values)
        if total > self.run.value:
            raise BudgetExceededError(f"{fit.estimator} asks for more than one run has.")
        self._spent = spent


@contextmanager
def prepaid(
    fit: LedgerFit, stamp: Iterable[str], reservation: Reservation
) -> Iterator[Reservation]:
    """Charge a search as one fit, and let the fits of this block draw on its reservation alone.

    A block that fails keeps its charge (that a run failed, and when, is a function of answers),
    unless nothing was granted in it.
    """
    payers = _payers(stamp, fit.estimator)
    charges = _charge_all(payers.values(), fit)
    reservation.covers = frozenset(payers)
    PREPAID[reservation.token] = reservation
    active = ACTIVE.set((reservation.token,))
    try:
        yield reservation
    except BaseException:
        settle_charges(charges, fit.losses if reservation.granted else (), "failed")
        raise
    finally:
        ACTIVE.reset(active)
        del PREPAID[reservation.token]
    settle_charges(charges, fit.losses, "fitted")


def prepay(fit: LedgerFit, stamp: Iterable[str], reservation: Reservation) -> None:
    """Charge a search as one fit; estimators stamped with the reservation's token draw on it.

    It lasts as long as the ledgers that paid for it.
    """
    payers = _payers(stamp, fit.estimator)
    reservation.charges = _charge_all(payers.values(), fit)
    reservation.covers = frozenset(payers)
    PREPAID[reservation.token] = reservation


def close(token: str) -> None:
    """Close a ledger, and the reservations that it paid for: those never used cost nothing."""
    OPEN.pop(token, None)
    for reservation in [r for r in PREPAID.values() if token in r.covers]:
        PREPAID.pop(reservation.token, None)
        with reservation.lock:
            if not reservation.started:
                settle_charges(reservation.charges, (), "failed")
                reservation.charges = []
