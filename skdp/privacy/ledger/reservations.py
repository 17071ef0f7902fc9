"""What was paid for by name, before it is fitted: reservations, and the tickets that draw on them.

Inside a ledger a clone or a pickle has a `Ticket`. A clone is made by other code, which may fit it
on rows that were chosen by looking at other rows, or keep what scored best. So it is fitted only if
somebody said what that code does, and paid: a ticket without a reservation is refused.

*Folds.* A search whose folds are functions of public sizes, or of one unit each, fits t_j training
sets that hold a unit; its cost is counted beforehand (`skdp.model_selection.search_cost`), and each
of its fits takes one slip.

*Whole fits.* Code that hands the rows of a clone on as they are, one row for one row, gives it
neighbours when its own rows are neighbours. Each fit is then charged as a fit on everything:
sequential composition, however many there are and whatever was released before.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.scope import around, is_over, new_token

Losses: TypeAlias = tuple[Loss, ...]


class Reservation:
    """What somebody paid for by name, as long as it lasts."""

    def __init__(self, covers: Iterable[str] = ()) -> None:
        self.token = new_token()
        self.covers = frozenset(covers)  # the ledgers that paid

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a reservation cannot be copied or pickled: it would be spent twice.")


class WholeFits(Reservation):
    """Leave to fit clones, each of which pays the ledgers in full."""


class Prepaid(Reservation, ABC):
    """What was paid for in advance: its fits draw on it, and not on the ledgers that paid."""

    def __init__(self, covers: Iterable[str] = ()) -> None:
        super().__init__(covers)
        self.granted = False

    @abstractmethod
    def reserve(self, fit: LedgerFit) -> int:
        """Take what a fit needs, or refuse."""

    def recharge(self, key: int, losses: Losses) -> None:
        """Refuse: the search was paid for as a sum of Gaussian or pure fits."""
        raise PrivacyError(
            f"a search accounts for no {losses[0].kind!r} losses: random sketches compose in no "
            "simple way. Use sensitivity_mode='worst_case', or tune on public data."
        )

    def scale(self, key: int, parts: float) -> None:
        """Refuse: the search was paid for as fits that hold whole units."""
        raise PrivacyError("a search accounts for no secure sum of parts of rows.")

    def check_same_part(self, key: int) -> None:
        """Nothing to check: it is paid for, whatever data it gets."""

    def settle(self, key: int, granted: Losses, state: str) -> None:
        """Give nothing back: what the search costs was fixed before it started."""
        self.granted |= bool(granted)


class RunLimit(Prepaid):
    """What one run of a private search may spend; `next_run` fills it up again."""

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
        if (fit.unit, fit.adjacency) != self.meaning:
            raise PrivacyError(
                f"{fit.estimator} protects one {fit.unit} ({fit.adjacency}), and the search one "
                f"{self.meaning[0]} ({self.meaning[1]}). Use one privacy unit and adjacency."
            )
        if math.isinf(self.run.value):  # nothing is protected
            return 0
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
        return 0


# The private search whose run goes on in this context: it pays for everything in it.
RUN: ContextVar[RunLimit | None] = ContextVar("skdp_run", default=None)


class Slips(Prepaid):
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

    @classmethod
    def write(
        cls,
        fits: Iterable[LedgerFit],
        refits: Iterable[Iterable[LedgerFit]],
        covers: Iterable[str] = (),
    ) -> Slips:
        """Make a new file; `refits` has the fits of each candidate, one of which is made again."""
        descriptor, path = tempfile.mkstemp(prefix="skdp-search-")
        os.close(descriptor)
        lists: list[tuple[int | None, Iterable[LedgerFit]]] = [(None, fits), *enumerate(refits)]
        rows = [(k, i, n) for i, each in lists for k, n in Counter(map(_kind, each)).items()]
        with contextlib.closing(_connect(path)) as file:
            file.execute("CREATE TABLE slips (kind TEXT, candidate INTEGER, n INTEGER)")
            file.execute("CREATE TABLE taken (what TEXT)")
            file.execute("BEGIN")
            file.executemany("INSERT INTO slips VALUES (?, ?, ?)", rows)
            file.execute("COMMIT")
        return cls(path, covers)

    def reserve(self, fit: LedgerFit) -> int:
        """Take one slip, or refuse."""
        try:
            with contextlib.closing(_connect(self.path)) as file:
                file.execute("BEGIN IMMEDIATE")
                found = _take(file, _kind(fit))
                file.execute("INSERT INTO taken VALUES (?)", (fit.estimator,))
                file.execute("COMMIT" if found else "ROLLBACK")
        except sqlite3.Error as error:
            raise PrivacyError(
                f"{fit.estimator} is part of a search that was paid for and has ended: what it did "
                "not use ended with it. Fit a new estimator, made from its parameters."
            ) from error
        if not found:
            raise BudgetExceededError(
                f"{fit.estimator} is part of a search that was paid for in advance, and this fit "
                "is not among those. Fit a new estimator, made from its parameters."
            )
        return 0

    def used(self) -> bool:
        """Whether any fit drew on it."""
        with contextlib.closing(_connect(self.path)) as file:
            return bool(file.execute("SELECT count(*) FROM taken").fetchone()[0])

    def end(self) -> bool:
        """Take away what was not used; return whether anything was."""
        used = self.used()
        Path(self.path).unlink(missing_ok=True)
        return used


def _connect(path: str) -> sqlite3.Connection:
    """Open a file that is there; each statement stands for itself unless it is in a BEGIN."""
    uri = Path(path).absolute().as_uri() + "?mode=rw"
    return sqlite3.connect(uri, timeout=60, isolation_level=None, uri=True)


def _kind(fit: LedgerFit) -> str:
    return repr((fit.unit, fit.adjacency, tuple(fit.losses)))


def _take(file: sqlite3.Connection, kind: str) -> bool:
    """Take one slip: the first beyond the fits begins the refit of a candidate that has it."""
    one_less = "UPDATE slips SET n = n - 1 WHERE kind = ? AND n > 0 AND candidate IS "
    if file.execute(one_less + "NULL", (kind,)).rowcount:
        return True
    possible = "SELECT candidate FROM slips WHERE kind = ? AND n > 0 AND candidate IS NOT NULL"
    file.execute(
        f"DELETE FROM slips WHERE candidate IS NOT NULL AND candidate NOT IN ({possible}) "
        f"AND EXISTS ({possible})",
        (kind, kind),
    )
    return bool(file.execute(one_less + "NOT NULL", (kind,)).rowcount)


@dataclass(frozen=True)
class Ticket:
    """What a clone or a pickle that was made inside ledgers, or a part of a search, may draw on.

    `ledgers` are those that were open; `reservation` is empty if nobody paid; `slips` is a file
    that is there as long as the reservation, of whole fits or with the slips of a search.
    """

    ledgers: tuple[str, ...]
    reservation: str = ""
    slips: str = ""
    whole: bool = False


def handed_on(ticket: Ticket | None) -> Ticket | None:
    """Return the ticket of a clone or a pickle that is made now, of what has this one."""
    if ticket is not None and not all(map(is_over, ticket.ledgers)):
        return ticket
    run = RUN.get()
    tokens = tuple(token for ledgers in around() for token in ledgers)
    if run is not None:
        return Ticket((*tokens, run.token), run.token)
    return Ticket(tokens) if tokens else None
