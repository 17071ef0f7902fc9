"""Files that survive a crash: chains of records, each durable on disk before it is relied on.

A file is an append-only SQLite database: each record has a number and a hash over itself and the
record before. A *snapshot* is a record that replaces all records before it, which are deleted. Next
to the file lies a *lock file* (`path` + ".lock"), which also holds the number and hash of the last
record, the *marker*. All have mode 0600. What the records mean is up to the caller.

What is promised, and what keeps it:

- *Whole or not at all.* Records, and a snapshot, are one transaction of SQLite. Killed at any
  point, the next change goes on from a whole one. An interrupt leaves what was, or what is after.
- *Durable before the block of a change is left*: the file and its folder (``synchronous = EXTRA``),
  then the marker, with a sync of its own.
- *In the file that has the name*: after the commit the last record is read again.
- *What was changed, taken out or put in later is seen*, by its hash and all hashes behind it.
- *An older copy, or a file made anew, is refused*, by the marker and by what this process saw.
- *One change at a time*, of all threads, processes and forks: a lock of the process, the lock file
  and the locks of SQLite. Who dies gives them back; who leaves does, whoever has a copy of the
  descriptor.
- *A kept store is nobody else's* until it is closed: its lock file is held, and the next holder is
  refused, in this process too.
- *Forks* wait for the end of a change, and have no half of one.
- *A place or a system without locks on files is refused*, at once.

The marker may be behind by one change: killed between its commit and the marker, the change is
done. A copy of *all* files from an earlier time (a restored folder, a machine that was rolled back)
cannot be told from the true one by anything on that disk.

*Why a lock file.* On POSIX every lock that SQLite has on its database ends as soon as any thread
of the process closes any opening of that file. So nothing but SQLite opens it, and the lock that
counts is on another file, which nothing but this module opens, once at a time in a process. That
holds too where locks belong to processes (files of a network).

*Tests:* tests/privacy/test_store.py asks both users of this, ledgers and streams, for each line of
the table.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from skdp.exceptions import PrivacyError

WAIT = 60.0  # seconds for other holders

# Locks on files: one holder at a time among all threads and processes of a machine.


_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # error codes for a lock that another holds
_NO_LOCKS = (
    "{} no locks on files, so two processes could spend the same budget, or release the same steps "
    "with other noise. Ledgers and checkpoints cannot be kept in files there."
)
_SLOT_BYTES: Final = 512  # a disk writes a sector as a whole

_TURN = threading.RLock()  # held while a thread of this process changes a file; forks wait for it
# path -> the present or last holder of its lock file in this process (weak: no removal needed)
_TAKEN: weakref.WeakValueDictionary[str, _Lock] = weakref.WeakValueDictionary()


def _apply(descriptor: int, take: bool) -> None:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN)
    except ImportError:
        _apply_on_windows(descriptor, take)


def _apply_on_windows(descriptor: int, take: bool) -> None:
    try:
        import msvcrt
    except ImportError:
        raise PrivacyError(_NO_LOCKS.format("this system has")) from None
    os.lseek(descriptor, 2 * _SLOT_BYTES, os.SEEK_SET)  # nobody may read a locked byte
    mode = getattr(msvcrt, "LK_NBLCK" if take else "LK_UNLCK")
    getattr(msvcrt, "locking")(descriptor, mode, 1)  # noqa: B009


def _lock(descriptor: int) -> bool:
    """Try to lock an open file; False if somebody has it."""
    try:
        _apply(descriptor, True)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise PrivacyError(_NO_LOCKS.format(f"the place of this file has ({error})")) from None
    return True


Position: TypeAlias = tuple[int, str]  # number and hash of a record
START: Final[Position] = 0, ""


def _in_slot(data: bytes) -> Position:
    """Return the marker in a slot, or `START` if the slot is damaged."""
    text, _, written = data.rstrip().rpartition(b" ")
    if chained("", text).encode() != written:
        return START
    number, head = text.decode().split()
    return int(number), head


class _Lock:
    """The lock file of a path, from `take` to `close`, and the marker in it.

    The code that calls `take` must call `close`, even if `take` was interrupted: the object owns
    the open file from the start.
    """

    _descriptor: int | None = None  # on the class: it exists even if __init__ is interrupted

    def __init__(self, path: str) -> None:
        self.path, self._process = path, os.getpid()

    def take(self, wait: float) -> None:
        """Open and lock the file, after other processes that have it."""
        end, pause = time.monotonic() + wait, 0.0005
        flags = os.O_CREAT | os.O_RDWR | getattr(os, "O_BINARY", 0)
        with _TURN:
            other = _TAKEN.get(self.path)
            if other is not None and other._descriptor is not None:
                raise PrivacyError(f"{self.path} is in use by this process already.")
            _TAKEN[self.path] = self
            while True:
                self._descriptor = os.open(self.path + ".lock", flags, 0o600)
                if _lock(self._descriptor):
                    return
                self._free()
                if time.monotonic() >= end:
                    raise PrivacyError(
                        f"{self.path}.lock is in use: another process has held it for {wait:.0f} s."
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.02)

    def descriptor(self) -> int:
        """Return the descriptor, where the lock is held."""
        if self._descriptor is None or self._process != os.getpid():
            raise PrivacyError(f"{self.path} is closed, or was opened by another process.")
        return self._descriptor

    def marker(self) -> Position:
        """Return the number and hash of the last record, as noted in the newer slot."""
        return max(self._slots())

    def _slots(self) -> list[Position]:
        os.lseek(self.descriptor(), 0, os.SEEK_SET)
        data = os.read(self.descriptor(), 2 * _SLOT_BYTES)
        return [_in_slot(data[:_SLOT_BYTES]), _in_slot(data[_SLOT_BYTES:])]

    def mark(self, place: Position) -> None:
        """Write a marker to the older slot and sync it; the other slot stays intact meanwhile."""
        text, slots = f"{place[0]} {place[1]}".encode(), self._slots()
        slot = b"%s %s" % (text, chained("", text).encode())
        os.lseek(self.descriptor(), slots.index(min(slots)) * _SLOT_BYTES, os.SEEK_SET)
        if os.write(self.descriptor(), slot.ljust(_SLOT_BYTES)) < _SLOT_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self.descriptor())

    def forget(self) -> None:
        """Delete the marker."""
        os.ftruncate(self.descriptor(), 0)

    def close(self) -> None:
        """Release the lock; a copy in a forked child releases nothing."""
        with _TURN:
            self._free()

    def _free(self) -> None:
        if self._descriptor is None:
            return
        if self._process == os.getpid():
            with contextlib.suppress(OSError, PrivacyError):  # closing the file unlocks it anyway
                _apply(self._descriptor, False)  # even if a child has a copy of the descriptor
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor is not None:  # at interpreter exit, `_free` may no longer work
            os.close(self._descriptor)


# Records of a file, each with a hash over it and all before it.
#
# A record that was changed, removed or inserted later breaks the hashes of all records after it.
# Someone who can write the file could also recompute all hashes, or remove the last records. The
# marker, the memory of this process, or a hash that was noted elsewhere detects that.


_TABLE = "CREATE TABLE lines (number INTEGER PRIMARY KEY, line BLOB, hash TEXT)"
_AFTER = "SELECT number, CAST(line AS BLOB), hash FROM lines WHERE number > ? ORDER BY number"
_SEEN: dict[str, Position] = {}  # path -> last record seen there


def chained(before: str, record: bytes) -> str:
    """Return the hash of a record that follows one with the hash `before`."""
    return hashlib.sha256(b"%s\n%s" % (before.encode(), record)).hexdigest()


def verify(rows: Iterable[tuple[int, bytes, str]], name: str, place: Position = START) -> None:
    """Raise unless these rows continue the chain after the record at `place`."""
    number, head = place
    for at, record, written in rows:
        number += 1
        if at != number or record is None or chained(head, record) != written:
            raise PrivacyError(
                f"line {number} of {name}, or one before it, was changed after it was written: "
                "what was spent is not known, and the file cannot be used. Restore an intact copy, "
                "or assume that the budget is spent."
            )
        head = written


class Chain:
    """The records of one file, inside a `Store.change` block."""

    def __init__(self, file: sqlite3.Cursor, name: str, lock: _Lock) -> None:
        self._file, self._name, self._lock = file, name, lock
        self.last = _end_of(file, "DESC")
        self.added = False

    def check_has(self, place: Position) -> None:
        """Raise if a record that is known to have been written is missing from the file."""
        number, head = place
        gone = number < _end_of(self._file, "ASC")[0]
        found = self._file.execute("SELECT hash FROM lines WHERE number = ?", (number,)).fetchone()
        if place != START and not gone and found != (head,):
            raise PrivacyError(
                f"{self._name} lacks line {number}, which it had before: it is an older copy, or "
                "was written anew, so some charges or releases are missing. It cannot be used. "
                "Restore the newest file, or use another path."
            )

    def after(self, place: Position) -> list[tuple[bytes, str]]:
        """Return the records that follow one, verified, each with its hash."""
        rows = self._file.execute(_AFTER, place[:1]).fetchall()
        verify(rows, self._name, place)
        return [(record, written) for _, record, written in rows]

    def add(self, record: bytes) -> str:
        """Add a record; return its hash."""
        number, head = self.last
        self._insert(number + 1, record, chained(head, record))
        return self.last[1]

    def _insert(self, number: int, record: bytes, written: str) -> None:
        self._file.execute("INSERT INTO lines VALUES (?, ?, ?)", (number, record, written))
        self.last, self.added = (number, written), True

    def begin(self, snapshot: bytes) -> None:
        """Begin with a snapshot; what is there is never overwritten."""
        if self.last != START:
            raise PrivacyError(
                f"{self._name!r} exists and has other content. Use another path, or remove the "
                "file and its .lock file if they are no longer needed."
            )
        self._insert(0, b"", os.urandom(32).hex())
        self._lock.forget()
        self._lock.mark(self.last)  # before the record: a file without marker is refused
        self.add(snapshot)

    def replace(self, snapshot: bytes) -> None:
        """Add a snapshot, which stands for all records so far; its hash covers the last of them."""
        self._file.execute("DELETE FROM lines WHERE number < ?", self.last[:1])
        self.add(snapshot)

    def since_snapshot(self) -> list[bytes]:
        """Return the last snapshot and all records after it; nothing if none was ever there."""
        if self.last == START:
            return []
        if self._lock.marker() == START:
            raise PrivacyError(
                f"{self._name}.lock is missing or damaged, so the newest line of the file is not "
                "known. Keep both files together."
            )
        return [record for record, _ in self.after(_end_of(self._file, "ASC"))]


def _end_of(file: sqlite3.Cursor, order: str) -> Position:
    """Return the first or the last place; START if there are no records."""
    found = file.execute(f"SELECT number, hash FROM lines ORDER BY number {order} LIMIT 1")
    return found.fetchone() or START


def connect(path: str, mode: str = "rw") -> sqlite3.Connection:
    """Open an existing database; each statement is a transaction unless inside a BEGIN."""
    uri = f"{Path(path).as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, timeout=WAIT, isolation_level=None, uri=True, check_same_thread=False
    )


def is_database(path: str) -> bool:
    """Return whether a file is an SQLite database, which may be opened by SQLite alone."""
    try:
        with closing(connect(path, "ro")) as file:
            file.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        return error.sqlite_errorcode != sqlite3.SQLITE_NOTADB
    return True


class Store:
    """A file of records, locked and open while it is changed.

    Parameters
    ----------
    path : path-like
        The file.
    form : int
        What its records mean, and in which version; another one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], form: int) -> None:
        self.path, self.form = os.path.realpath(path), form

    @contextmanager
    def change(self, *, create: bool = False) -> Iterator[Chain]:
        """Make an exclusive change; at the end of the block it is durable, and verified by reading.

        With `create` a missing file is made, readable by its owner alone.
        """
        try:
            with self._locked() as lock:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                with self._connected() as file:
                    file.execute("BEGIN IMMEDIATE")
                    self._check_form(file)
                    chain = Chain(file, self.path, lock)
                    for place in self._known(chain, lock.marker()):
                        chain.check_has(place)
                    yield chain
                    file.execute("COMMIT")  # closing the file without it undoes the change
                self._remember(chain, lock)
        except (sqlite3.Error, OSError) as error:
            raise PrivacyError(
                f"{self.path} cannot be read or written, so nothing more is charged or released, "
                f"and nothing may be fitted: {error}."
            ) from error

    def _known(self, chain: Chain, marker: Position) -> tuple[Position, ...]:
        return marker, _SEEN.get(self.path, START)

    def _remember(self, chain: Chain, lock: _Lock) -> None:
        """Check with a new connection that the last record is in the file, and remember it."""
        if chain.added:
            with self._connected() as file:
                found = _end_of(file, "DESC")
            if found != chain.last:
                raise PrivacyError(
                    f"{self.path} does not contain what was just written to it: it was replaced, "
                    "or another program writes to it. It cannot be used."
                )
        if chain.last not in (START, lock.marker()):
            lock.mark(chain.last)
        _SEEN[self.path] = chain.last

    def _check_form(self, file: sqlite3.Cursor) -> None:
        (form,) = file.execute("PRAGMA application_id").fetchone()
        if file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            file.execute(f"PRAGMA application_id = {self.form}")
            file.execute(_TABLE)
        elif form != self.form:
            raise PrivacyError(f"{self.path} was written by another version or program.")

    @contextmanager
    def _locked(self) -> Iterator[_Lock]:
        lock = _Lock(self.path)
        with _TURN:
            try:
                lock.take(WAIT)
                yield lock
            finally:
                try:
                    lock.close()
                except BaseException:  # an interrupt: the lock is released all the same
                    lock.close()
                    raise

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Cursor]:
        # One cursor: an unfinished statement would keep the file locked.
        with closing(connect(self.path)) as connection, closing(connection.cursor()) as file:
            file.execute("PRAGMA synchronous = EXTRA")
            # A journal that stays takes one sync of the folder less than one that is deleted.
            file.execute("PRAGMA journal_mode = PERSIST")
            yield file


class CacheStore(Store):
    """A file of records that stays locked for others until it is closed."""

    def __init__(self, path: str | os.PathLike[str], form: int) -> None:
        super().__init__(path, form)
        self._lock = _Lock(self.path)
        with self.closed_by_errors():
            self._lock.take(0.0)

    def _known(self, chain: Chain, marker: Position) -> tuple[Position, ...]:
        return () if chain.last == START else super()._known(chain, marker)

    @contextmanager
    def _locked(self) -> Iterator[_Lock]:
        with _TURN:
            self._lock.descriptor()
            yield self._lock

    def close(self) -> None:
        """Release the file; this object can no longer change it."""
        self._lock.close()

    @contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        """Close the file on an error, after which it is not known how much was written.

        Opening it again reads what is there.
        """
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a file that is in use cannot be copied or pickled.")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_TURN.acquire, after_in_parent=_TURN.release, after_in_child=_TURN.release
    )
