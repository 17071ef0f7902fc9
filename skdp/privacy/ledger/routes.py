"""How a fit finds the ledgers that it is charged to, or the reservation that was paid for it.

A plain fit is charged to all ledgers that are open in its process, in any thread, and to those that
its parent processes hold open. A clone or a pickle that was made inside a ledger carries a key. It
may only be fitted from a reservation, which is paid for by `PrivacyLedger.charge`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from skdp._limits import NEGLIGIBLE
from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import Loss, Losses
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.gate.session import Observer, PrivacySession
from skdp.privacy.ledger.balances import at_end_of_part
from skdp.privacy.ledger.books import Book, FileBook
from skdp.privacy.ledger.fits import LedgerFit, budget_losses, is_ours, new_token, unit_name
from skdp.privacy.ledger.scope import around, is_over
from skdp.privacy.store import connect

# Reservations: budget that `PrivacyLedger.charge` paid in advance, for clones to draw on.
#
# Inside a ledger a clone or a pickle has a `ReservationKey`. Other code made the clone; it may fit
# it on rows that were chosen by looking at other rows, or keep the clone that scored best. So a
# clone is fitted only if the user declared what that code does, and paid for it in advance.
#
# *Folds.* A search whose folds are functions of public sizes, or of one unit each, fits t_j
# training sets that hold a unit; its cost is counted beforehand
# (`skdp.model_selection.search_cost`), and each of its fits takes one of those that were counted.
# It is a search only while its own `fit` runs.
#
# *Whole fits.* If code passes its rows to a clone unchanged, one row for one row, the clone
# receives neighbours whenever the code does. Each fit is then charged as a fit on everything:
# sequential composition, however many there are and whatever was released before. A table lists
# compositions that do so while they fit. For all other code this is a statement of the caller,
# which the ledger and the receipt of each fit quote.


ENDED = (
    "was charged in advance by ledger.charge, and this charge has ended: it covers one call of "
    "'fit' of a search. Construct a new estimator, and fit that."
)


def refused(text: str, kind: type[PrivacyError] = PrivacyError) -> PrivacyError:
    """Return an error that the ledgers of this process note; on exit they raise if it is hidden."""
    error = kind(text)
    for ledger in around()[0].values():
        ledger.book.note_refusal(error)
    return error


class Reservation:
    """What was paid in advance by name, while it may be used; here fits are charged in full."""

    def __init__(self, covers: Iterable[str] = ()) -> None:
        self.token = new_token()
        self.covers = frozenset(covers)  # the ledgers that paid

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a reservation cannot be copied or pickled: it would be spent twice.")


CALLERS_WORD = "all rows, as the caller states"


class Prepaid(Reservation):
    """A reservation whose fits are charged to it, and not to the ledgers that paid for it."""

    granted = False  # whether any fit released something

    def recharge(self, key: int, losses: Losses) -> None:
        """Refuse: the search was paid for as a sum of Gaussian or pure fits."""
        raise refused(
            f"a search accounts for no {losses[0].kind!r} losses, which do not compose "
            "with other runs. Use sensitivity_mode='worst_case', or tune on public data."
        )

    def scale(self, key: int, parts: float) -> None:
        """Refuse: the search was paid for as fits that hold whole units."""
        raise refused("a search accounts for no secure sum of parts of rows.")

    def check_same_part(self, key: int) -> None:
        """Check nothing: a run receives the rows of its search."""

    def settle(self, key: int, granted: Losses, state: str) -> None:
        """Return no budget: the cost of the search was fixed before it started."""
        self.granted |= bool(granted)


class RunLimit(Prepaid):
    """The budget of one run of a private search; `next_run` renews it."""

    def __init__(self, unit: str, adjacency: str, run: Loss) -> None:
        super().__init__()
        self.meaning = unit, adjacency
        self.run = run
        self._spent: list[Loss] = []

    def next_run(self) -> None:
        """Start another run."""
        self._spent = []

    def reserve(self, fit: LedgerFit) -> int:
        """Take what a fit needs of this run, or refuse."""
        if not is_ours(self.token):  # a forked child: it has a copy of what is left
            raise refused(f"{fit.estimator} runs in another process than its search: fit it there.")
        if (fit.unit, fit.adjacency) != self.meaning:
            raise refused(
                f"{fit.estimator} protects one {fit.unit} ({fit.adjacency}), and the search one "
                f"{self.meaning[0]} ({self.meaning[1]}). Use one privacy unit and adjacency."
            )
        if math.isinf(self.run.value):  # nothing is protected
            return 0
        if any(kind != self.run.kind for kind, _ in fit.losses):
            raise refused(
                f"{fit.estimator} spends {sorted({kind for kind, _ in fit.losses})} losses, and "
                f"this search accounts for {self.run.kind!r} ones only. Use settings whose "
                "releases are all of that kind, or tune on public data."
            )
        spent = [*self._spent, *fit.losses]
        values = [value for _, value in spent]
        total = math.hypot(*values) if self.run.kind == "gaussian" else math.fsum(values)
        if total > self.run.value:
            raise refused(f"{fit.estimator} exceeds the budget of one run.", BudgetExceededError)
        self._spent = spent
        return 0


# The private search whose run goes on in this context: it pays for everything in it.
RUN: ContextVar[RunLimit | None] = ContextVar("skdp_run", default=None)


class SearchReservation(Prepaid):
    """A fixed list of fits and one refit, in a file: any process of this machine may draw on it.

    Parameters
    ----------
    path : str
        The file; it ends with the search.
    covers : iterable of str
        The ledgers that paid.
    """

    def __init__(self, path: str, covers: Iterable[str] = ()) -> None:
        super().__init__(covers)
        self.path = path
        self._drawn_on = True  # the safe assumption if the file disappears before the end
        self._calls = iter((True,))

    @classmethod
    def write(
        cls,
        fits: Iterable[LedgerFit],
        refits: Iterable[Iterable[LedgerFit]],
        covers: Iterable[str] = (),
    ) -> SearchReservation:
        """Make a new file; `refits` has the fits of each candidate, one of which is made again."""
        descriptor, path = tempfile.mkstemp(prefix="skdp-search-")
        os.close(descriptor)
        lists: list[tuple[int | None, Iterable[LedgerFit]]] = [(None, fits), *enumerate(refits)]
        rows = [(k, i, n) for i, each in lists for k, n in Counter(map(_kind, each)).items()]
        with contextlib.closing(connect(path)) as file:
            file.execute("CREATE TABLE reserved (kind TEXT, candidate INTEGER, n INTEGER)")
            file.execute("CREATE TABLE taken (what TEXT)")
            file.execute("BEGIN")
            file.executemany("INSERT INTO reserved VALUES (?, ?, ?)", rows)
            file.execute("COMMIT")
        return cls(path, covers)

    def begin(self) -> bool:
        """Whether this is the first call of the search, in whatever thread, and nothing ended."""
        return next(self._calls, False) and Path(self.path).exists()

    def reserve(self, fit: LedgerFit) -> int:
        """Take one fit, or refuse."""
        try:
            with contextlib.closing(connect(self.path)) as file:
                file.execute("BEGIN IMMEDIATE")
                found = _take(file, _kind(fit))
                file.execute("INSERT INTO taken VALUES (?)", (fit.estimator,))
                file.execute("COMMIT" if found else "ROLLBACK")
        except sqlite3.Error as error:
            raise refused(f"{fit.estimator} {ENDED}") from error
        if not found:
            raise refused(
                f"{fit.estimator} is part of a search that was charged in advance, and this fit "
                "is not among those. Construct a new estimator, and fit that.",
                BudgetExceededError,
            )
        return 0

    def check_same_part(self, key: int) -> None:
        """Refuse to go on with a fit, of a stream, when the search has ended."""
        if not Path(self.path).exists():
            raise refused(f"a fit {ENDED}")

    def end(self) -> bool:
        """Take away what was not used, from all processes; return whether anything was."""
        if Path(self.path).exists():
            with contextlib.closing(connect(self.path)) as file:
                file.execute("DELETE FROM reserved")  # no fit can draw on it from here on
                taken = file.execute("SELECT count(*) FROM taken").fetchone()
            self._drawn_on = taken != (0,)
            Path(self.path).unlink(missing_ok=True)
        return self._drawn_on


def _kind(fit: LedgerFit) -> str:
    return repr((fit.unit, fit.adjacency, fit.seeded, tuple(fit.losses)))


def _take(file: sqlite3.Connection, kind: str) -> bool:
    """Take one fit: the first beyond the folds begins the refit of a candidate that has it."""
    one_less = "UPDATE reserved SET n = n - 1 WHERE kind = ? AND n > 0 AND candidate IS "
    if file.execute(one_less + "NULL", (kind,)).rowcount:
        return True
    possible = "SELECT candidate FROM reserved WHERE kind = ? AND n > 0 AND candidate IS NOT NULL"
    file.execute(
        f"DELETE FROM reserved WHERE candidate IS NOT NULL AND candidate NOT IN ({possible}) "
        f"AND EXISTS ({possible})",
        (kind, kind),
    )
    return bool(file.execute(one_less + "NOT NULL", (kind,)).rowcount)


class ReservationKey(NamedTuple):
    """The key of a clone or pickle that was made inside ledgers, or of a part of a search.

    `ledgers` are those that were open; `reservation` is empty if nothing was paid; `file` exists as
    long as it; its `kind` is "search", "whole" (clones get all rows) or "word" (the caller's).
    """

    ledgers: tuple[str, ...]
    reservation: str = ""
    file: str = ""
    kind: str = "search"


def handed_on(key: ReservationKey | None) -> ReservationKey | None:
    """Return the key of a clone or pickle that is made now of an object with this key."""
    if key is not None and not all(map(is_over, key.ledgers)):
        return key
    run = RUN.get()
    tokens = tuple(token for ledgers in around() for token in ledgers)
    if run is not None:
        return ReservationKey((*tokens, run.token), run.token)
    return ReservationKey(tokens) if tokens else None


_UNPAID = (
    "was cloned or pickled inside a PrivacyLedger, which cannot know on which rows the clone is "
    "fitted, and how often. To choose parameters use DPGridSearchCV. Charge other searches:\n"
    "    with ledger.charge(search, n_samples=len(X)):\n"
    "        search.fit(X, y)\n"
    "They need cv=skdp.model_selection.IndependentKFold(...) and scoring=make_private_scorer(...). "
    "For cross_validate, charge the private estimator with 'cv' and 'scoring'. A ColumnTransformer "
    "clones its steps: use ledger.charge(pipeline) in the same way. To fit one "
    "yourself, construct it anew, as in DPPCA(2), or call sklearn.base.clone or with_budget before "
    "the ledger is opened."
)
_ELSEWHERE = (
    "runs in another process than the PrivacyLedger that is open, which cannot be charged from "
    "here. Use n_jobs=1 or joblib.parallel_config('threading'), or charge a search in advance: "
    "ledger.charge(search, n_samples=len(X)). A PrivacyLedger(..., path=...) in a file is charged "
    "by processes that its own one started."
)
_SHARED = (
    "a PrivacyLedger adds up random sketches as independent ones, and this sketch is shared (by "
    "'sketch_seed' or for_server). Use sensitivity_mode='worst_case', or no ledger."
)


_Payer: TypeAlias = Book | RunLimit | SearchReservation  # what a fit can be charged to
Charges: TypeAlias = list[tuple[_Payer, int]]
_RESERVATIONS: dict[str, Reservation] = {}


class Account(Observer):
    """The payers of a session, which informs this object of each loss before it is granted."""

    def __init__(self) -> None:
        self.charges: Charges = []
        self.scope = ""  # the scope in the receipt, if it rests on the caller's word
        self.of_made_data = False  # whether a plan drew the data, so that nothing is charged
        self._shares_sketch = False  # whether other sessions use the same random sketch

    def unplanned(self, losses: Losses, *, shared: bool) -> None:
        """Change planned charges to a loss of another kind, or refuse."""
        self._shares_sketch |= shared
        if self.charges:
            self.check_own_sketch()
        for payer, key in self.charges:
            payer.recharge(key, losses)

    def check_own_sketch(self) -> None:
        """Raise if the random sketch is shared with other sessions: ledgers cannot add that up."""
        if self._shares_sketch:
            raise refused(_SHARED)


# The copy that a plan fits, in this context, to data that the plan itself drew from public facts.
_ON_MADE_DATA: ContextVar[object] = ContextVar("skdp_on_made_data", default=None)


@contextmanager
def on_made_data(copy: object) -> Iterator[None]:
    """Fit this one object without a charge inside the block.

    Only a plan does this, with an object and synthetic data of its own. Any other object that is
    fitted meanwhile (by a callback, say) is charged as usual.
    """
    token = _ON_MADE_DATA.set(copy)
    try:
        yield
    finally:
        _ON_MADE_DATA.reset(token)


def is_on_made_data(estimator: object) -> bool:
    """Whether an estimator is the copy that a plan fits."""
    return _ON_MADE_DATA.get() is estimator


def _charges(session: PrivacySession) -> Charges:
    return session.observer.charges if isinstance(session.observer, Account) else []


def _reservation(key: ReservationKey | None, name: str) -> Reservation | None:
    """Return the reservation of a key (None if it needs none), or raise."""
    if (run := RUN.get()) is not None:
        return run
    if key is None:
        return None
    if not key.reservation:
        raise refused(f"{name} {_UNPAID}")
    found = _RESERVATIONS.get(key.reservation)
    if found is None and not (key.file and Path(key.file).exists()):
        raise refused(f"{name} {ENDED}")
    if key.kind == "search":
        return found or SearchReservation(key.file, key.ledgers)
    if set(key.ledgers).difference(*around()):  # a worker that was not started from their process
        raise refused(f"{name} {_ELSEWHERE}")
    return found or Reservation()


def _payers(key: ReservationKey | None, name: str) -> list[_Payer]:
    """Return the ledgers and the reservation that a fit is charged to, or raise."""
    reservation = _reservation(key, name)
    covers = frozenset() if reservation is None else reservation.covers
    own, before = around()
    if isinstance(reservation, RunLimit):  # those of other threads and processes may not count runs
        own, before = {t: ledger for t, ledger in own.items() if ledger.run is reservation}, {}
    payers: list[_Payer] = [ledger.book for token, ledger in own.items() if token not in covers]
    for token, file in before.items():
        # Compare paths too: a copy of a ledger file has the same token, but is another ledger.
        if token not in covers and (token not in own or own[token].file.path != file.path):
            if not file.path:
                raise refused(f"{name} {_ELSEWHERE}")
            payers.append(FileBook(file.path, token=token, note=file.note))
    if isinstance(reservation, RunLimit | SearchReservation):
        payers.insert(0, reservation)
    return payers


def _charge_all(payers: Iterable[_Payer], fit: LedgerFit, charges: Charges) -> None:
    """Charge all payers or none; each charge is added to `charges`, so that it can be settled."""
    before = len(charges)
    try:
        for payer in payers:
            charges.append((payer, payer.reserve(fit)))
    except BaseException:
        made = charges[before:]
        del charges[before:]
        settle_charges(made, (), "failed")
        raise


def _covered_by(charges: Charges) -> frozenset[str]:
    """Return the ledgers that were charged; ledgers opened later are not among them."""
    return frozenset(t for p, _ in charges for t in (p.token, *getattr(p, "covers", ())))


def charge(
    session: PrivacySession,
    name: str,
    key: ReservationKey | None = None,
    sensitivity: object = None,
    *,
    in_any_part: bool = False,
) -> None:
    """Charge the whole budget of a session to all its payers, or raise and charge none.

    Once charged, it is charged again only to ledgers that were opened since. Where its rows are
    fixed it goes on `in_any_part` of the data, else in that where it began.
    """
    if isinstance(session.observer, Account) and session.observer.of_made_data:
        return
    charged = _charges(session)
    for payer, number in () if in_any_part else charged:
        payer.check_same_part(number)
    paid = {payer for payer, _ in charged}
    covered = {token for payer in paid for token in getattr(payer, "covers", ())}
    if covered:
        payers = [ledger.book for token, ledger in around()[0].items() if token not in covered]
    else:
        payers = _payers(key, name)
    payers = [payer for payer in payers if payer not in paid]
    if not payers:
        return
    if not isinstance(session.observer, Account):
        raise PrivacyError(f"the session of {name} has no account that a ledger could charge")
    session.observer.check_own_sketch()
    if key is not None and key.kind == "word":
        session.observer.scope = f"this fit alone ({CALLERS_WORD})"
        name = f"{name} ({CALLERS_WORD})"
    unit, losses = unit_name(session.unit, sensitivity), _owed(session)
    fit = LedgerFit(name, unit, session.adjacency, losses, session.source.seeded)
    _charge_all(payers, fit, session.observer.charges)


def _owed(session: PrivacySession) -> Losses:
    """Return the losses that a session was granted so far, and all that it may still be granted."""
    granted = [entry.loss for entry in session.ledger]
    rest = {"gaussian": session.budget.mu, "pure": session.budget.pure_epsilon}
    left = {kind: share for kind in rest if (share := session.remaining(kind)) > NEGLIGIBLE}
    if session.open or not granted:
        return session.open or budget_losses(session.budget)
    more = [Loss(k, rest[k] * (math.sqrt(s) if k == "gaussian" else s)) for k, s in left.items()]
    return accounting.compose([*granted, *more])


def charge_parts(sessions: Sequence[PrivacySession]) -> None:
    """Raise the charges of p sessions that contribute parts of one unit to one secure sum.

    The noise is in the sum only once, so the losses add linearly: together they are p times one. A
    ledger that holds j of the charges adds their squares, so each is charged p / sqrt(j) times.
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


def receipt(session: PrivacySession) -> PrivacySpent:
    """Return the receipt of a session; it says so where it rests on the caller's word."""
    scope = session.observer.scope if isinstance(session.observer, Account) else ""
    return replace(session.spent(), scope=scope) if scope else session.spent()


def settle(session: PrivacySession, state: str = "fitted") -> None:
    """Bring the charge of a session down to what it was granted; call it when the fit ends."""
    if charges := _charges(session):
        made = [entry.loss for entry in session.ledger]
        settle_charges(charges, (made and session.open) or accounting.compose(made), state)


def settle_charges(charges: Iterable[tuple[_Payer, int]], granted: Losses, state: str) -> None:
    """Bring charges to what was granted."""
    for payer, key in charges:
        payer.settle(key, granted, state)


# -- payments in advance --------------------------------------------------------------------------


class Payment(NamedTuple):
    """A payment in advance: for a whole search, or for fits of all rows (`fit` is None).

    Clones of `parts` (estimators and scorers) draw on it while a method of `caller` runs. Without a
    `caller` they do so to the end of the block, and the user guarantees what they are fitted on.
    ``changed(args, kwargs)`` returns why a call differs from what was paid for, or raises.
    """

    parts: tuple[Any, ...]
    fit: LedgerFit | None = None
    fits: tuple[LedgerFit, ...] = ()
    refits: tuple[tuple[LedgerFit, ...], ...] = ()
    caller: Any = None
    changed: Callable[[Any, Any], str | None] = lambda *_: None

    def in_calls(self, opened: Callable[[], AbstractContextManager[None]]) -> Any:
        """Return a context in which the parts draw on what is `opened`."""
        return opened() if self.caller is None else _in_calls(self, opened)


# Functions that compute the `Payment` of an object; `model_selection`, a higher layer, adds them.
COUNTERS: list[Callable[..., Payment]] = []


@contextmanager
def charged(payment: Payment) -> Iterator[None]:
    """Charge a payment in advance, and let its parts draw on it inside the block."""
    if (fit := payment.fit) is None:
        with payment.in_calls(lambda: _whole_fits(payment)):
            yield
        return
    charges: Charges = []
    reservation, state = None, "failed"

    def settle() -> None:
        used = reservation is not None and reservation.end()
        settle_charges(charges, fit.losses if used else (), state if used else "failed")

    try:
        _charge_all(_payers(None, fit.estimator), fit, charges)
        covers = _covered_by(charges)
        reservation = SearchReservation.write(payment.fits, payment.refits, covers)
        for token in covers:  # the payment holds for one part of the data: it ends with that part
            at_end_of_part(token, reservation.end)
        with payment.in_calls(lambda: _one_search(payment, reservation, charges)):
            yield
        state = "fitted"
        settle()
    except BaseException:  # an interrupt too, which may come before or during `settle`
        settle()
        raise


@contextmanager
def _whole_fits(payment: Payment) -> Iterator[None]:
    own, before = around()
    with tempfile.NamedTemporaryFile(prefix="skdp-clones-") as while_it_lasts:
        kind = "word" if payment.caller is None else "whole"
        key = ((*own, *before), while_it_lasts.name, kind)
        with _parts_draw_on(payment.parts, Reservation(), *key):
            yield


@contextmanager
def _one_search(
    payment: Payment, reservation: SearchReservation, charges: Charges
) -> Iterator[None]:
    """Let the parts draw on the reservation, once."""
    key = tuple(reservation.covers), reservation.path, "search"
    for payer, number in charges:
        payer.check_same_part(number)
    if not reservation.begin():
        name = type(payment.caller).__name__
        raise refused(f"{name} {ENDED[:-1]}, and charge it again.")
    try:
        with _parts_draw_on(payment.parts, reservation, *key):
            yield
    finally:
        reservation.end()


class _PaidCall:
    """A wrapped method of the object that was paid for; clones that it makes use the payment."""

    def __init__(self, caller: Any, name: str, during: Callable[..., Any]) -> None:
        self._caller, self._name, self._during = caller, name, during
        self._method = getattr(caller, name)
        functools.update_wrapper(self, self._method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._during(args, kwargs):
            return self._method(*args, **kwargs)

    def __reduce_ex__(self, protocol: object) -> Any:
        return getattr, (self._caller, self._name)  # a copy gets its plain method, without payment


_CALLS = ("fit", "fit_transform", "fit_predict", "partial_fit")


@contextmanager
def _in_calls(
    payment: Payment, opened: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Open a reservation in each call of the object that was paid for, and in nothing else."""
    caller, name = payment.caller, type(payment.caller).__name__

    @contextmanager
    def during(args: Any, kwargs: Any) -> Iterator[None]:
        if why := payment.changed(args, kwargs):
            raise refused(f"{name} {why}")
        with opened():
            yield

    before = {method: vars(caller)[method] for method in _CALLS if method in vars(caller)}
    paid = {
        method: _PaidCall(caller, method, during)
        for method in _CALLS
        if callable(getattr(caller, method, None))
    }

    def restore() -> None:
        for method in paid:
            vars(caller).pop(method, None)
        vars(caller).update(before)

    try:
        vars(caller).update(paid)
        yield
        restore()
    except BaseException:  # an interrupt too, which may come during `restore`
        restore()
        raise


@contextmanager
def _parts_draw_on(
    parts: Sequence[Any], reservation: Reservation, ledgers: tuple[str, ...], file: str, kind: str
) -> Iterator[None]:
    key = ReservationKey(ledgers, reservation.token, file, kind)
    before = [vars(part).get("_reservation_key") for part in parts]
    _RESERVATIONS[reservation.token] = reservation
    try:
        for part in parts:
            part._reservation_key = key
        yield
    finally:
        del _RESERVATIONS[reservation.token]
        for part, old in zip(parts, before, strict=True):
            vars(part).pop("_reservation_key", None)
            if old is not None:
                part._reservation_key = old


@contextmanager
def prepaid(fit: LedgerFit, key: ReservationKey | None, limit: RunLimit) -> Iterator[RunLimit]:
    """Charge a private search as one fit; the fits of its runs, in this block, draw on its limit.

    A block that fails keeps its charge (that a run failed, and when, is a function of answers),
    unless nothing was granted in it.
    """
    charges: Charges = []
    run = RUN.get()
    try:
        _charge_all(_payers(key, fit.estimator), fit, charges)
        limit.covers = _covered_by(charges)
        _RESERVATIONS[limit.token] = limit
        RUN.set(limit)
        yield limit
        settle_charges(charges, fit.losses, "fitted")
    except BaseException:
        settle_charges(charges, fit.losses if limit.granted else (), "failed")
        raise
    finally:
        RUN.set(run)
        _RESERVATIONS.pop(limit.token, None)
