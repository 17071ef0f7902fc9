"""A book in a file: it outlives the process, and many processes write to it.

A charge is on the disk before any data are read: the transaction ends with a sync of the file and
of its directory. Who is killed between the charge and the release leaves an open entry, which
counts with its whole budget. Writers wait for each other, so that check and charge are one step.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.states import loss_from_state, loss_state
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import Book, Entries
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.scope import new_token

_VERSION = 1
_WAIT = 60.0  # seconds for other writers
_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)",
    # AUTOINCREMENT: the number of a fit that failed and cost nothing is not used again
    "CREATE TABLE IF NOT EXISTS fits (number INTEGER PRIMARY KEY AUTOINCREMENT, fit TEXT)",
)
_LOSSES = ("losses", "promised")


class FileBook(Book):
    """Entries in a database file, mode 0600.

    Parameters
    ----------
    path : str
        The file.
    terms : Terms or None, default=None
        A file that is new is made with them, another must have the same. None: read them.
    """

    def __init__(self, path: str, terms: Terms | None = None) -> None:
        self.path = os.path.realpath(path)
        if terms is not None:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with self._transaction(self.path) as file:
            known = dict(file.execute("SELECT name, value FROM about"))
            if not known:
                known = _described(terms, self.path)
                file.executemany("INSERT INTO about VALUES (?, ?)", known.items())
        if known["version"] != str(_VERSION):
            raise PrivacyError(f"{path} was written by another version of skdp.")
        kept = Terms(**json.loads(known["terms"]))
        if terms is not None and terms != kept:
            raise ValueError(f"{path} is a PrivacyLedger with other terms: {kept}. Got {terms}.")
        super().__init__(kept)
        self.token = known["token"]
        self._file: sqlite3.Connection | None = None  # of the change that is being made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileBook) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @staticmethod
    @contextmanager
    def _transaction(path: str) -> Iterator[sqlite3.Connection]:
        """Begin a change that nobody else interrupts; it is durable when this is left."""
        uri = Path(path).as_uri() + "?mode=rw"
        try:
            file = sqlite3.connect(uri, timeout=_WAIT, isolation_level=None, uri=True)
            with contextlib.closing(file):
                file.execute("PRAGMA synchronous = EXTRA")
                file.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    file.execute(table)
                yield file
                file.execute("COMMIT")  # closed without it, nothing has happened
        except sqlite3.Error as error:
            raise PrivacyError(
                f"the PrivacyLedger in {path} cannot be read or written, so nothing was charged "
                f"and nothing may be fitted: {error}."
            ) from error

    @contextmanager
    def held(self) -> Iterator[Entries]:
        """Hold the entries; what was changed is on the disk when this is left."""
        with self._lock, self._transaction(self.path) as file:
            rows = file.execute("SELECT number, fit FROM fits ORDER BY number")
            entries = {number: _from_text(text) for number, text in rows}
            before = dict(entries)
            self._file = file
            try:
                yield entries
            finally:
                self._file = None
            for number in before.keys() | entries.keys():
                if number not in entries:
                    file.execute("DELETE FROM fits WHERE number = ?", (number,))
                elif entries[number] != before.get(number):
                    values = (_text(entries[number]), number)
                    file.execute("UPDATE fits SET fit = ? WHERE number = ?", values)

    def _next_key(self) -> int:
        assert self._file is not None  # inside held
        return int(self._file.execute("INSERT INTO fits (fit) VALUES ('')").lastrowid or 0)


def _described(terms: Terms | None, path: str) -> dict[str, str]:
    if terms is None:
        raise PrivacyError(f"{path} is no PrivacyLedger.")
    return {
        "version": str(_VERSION),
        "terms": json.dumps(asdict(terms)),
        "token": new_token(),
    }


def _text(fit: LedgerFit) -> str:
    state: dict[str, Any] = {field.name: getattr(fit, field.name) for field in fields(fit)}
    for name in _LOSSES:
        state[name] = [loss_state(loss) for loss in state[name]]
    return json.dumps(state)


def _from_text(text: str) -> LedgerFit:
    state = json.loads(text)
    for name in _LOSSES:
        state[name] = tuple(loss_from_state(*loss) for loss in state[name])
    return LedgerFit(**state)
