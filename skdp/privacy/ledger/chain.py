"""Lines in a database file that are only added to, each with a hash over it and all before it.

A line that was changed, taken out or put in later breaks the hash of every line after it. Who can
write the file can also make all hashes anew, or take away the last lines: against them, keep a
`head` elsewhere and ask whether it is still there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from skdp.exceptions import PrivacyError

Line: TypeAlias = dict[str, Any]

_WAIT = 60.0  # seconds for other writers
_TABLE = "CREATE TABLE IF NOT EXISTS lines (number INTEGER PRIMARY KEY, line TEXT, hash TEXT)"


def _hash(before: str, line: Line) -> str:
    text = json.dumps(line, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def verified(rows: Iterable[tuple[Line, str]], name: str) -> tuple[list[Line], list[str]]:
    """Return lines and their hashes, or refuse them."""
    lines: list[Line] = []
    hashes: list[str] = []
    for line, written in rows:
        if _hash(hashes[-1] if hashes else "", line) != written:
            raise PrivacyError(
                f"line {len(lines) + 1} of {name}, or one before it, was changed after it was "
                "written: what was spent is not known. Nothing may be charged to it. Go back to "
                "a copy that is whole, or take the budget to be spent."
            )
        lines.append(line)
        hashes.append(written)
    return lines, hashes


class Chain:
    """The lines of one file, inside a change that nobody else interrupts."""

    def __init__(self, file: sqlite3.Connection, name: str) -> None:
        self._file = file
        rows = file.execute("SELECT line, hash FROM lines ORDER BY number")
        self.lines, self.hashes = verified(((json.loads(line), h) for line, h in rows), name)

    def add(self, **line: Any) -> None:
        """Add a line, with the time."""
        line["at"] = datetime.now(UTC).isoformat(timespec="seconds")
        line = json.loads(json.dumps(line))  # as it will be read
        self.hashes.append(_hash(self.hashes[-1] if self.hashes else "", line))
        self.lines.append(line)
        row = (len(self.lines), json.dumps(line, sort_keys=True), self.hashes[-1])
        self._file.execute("INSERT INTO lines VALUES (?, ?, ?)", row)


def make_file(path: str) -> None:
    """Make a file that only its owner reads, if there is none."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


@contextmanager
def transaction(path: str) -> Iterator[Chain]:
    """Begin a change that nobody else interrupts; it is durable when this is left."""
    uri = Path(path).as_uri() + "?mode=rw"
    try:
        file = sqlite3.connect(uri, timeout=_WAIT, isolation_level=None, uri=True)
        with contextlib.closing(file):
            file.execute("PRAGMA synchronous = EXTRA")
            file.execute("BEGIN IMMEDIATE")
            if {name for (name,) in file.execute("SELECT name FROM sqlite_master")} - {"lines"}:
                raise PrivacyError(f"{path} was written by another version, or another program.")
            file.execute(_TABLE)
            yield Chain(file, path)
            file.execute("COMMIT")  # closed without it, nothing has happened
    except (sqlite3.Error, json.JSONDecodeError) as error:
        raise PrivacyError(
            f"the PrivacyLedger in {path} cannot be read or written, so nothing was charged "
            f"and nothing may be fitted: {error}."
        ) from error
