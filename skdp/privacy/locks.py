"""Locks on files: one holder at a time among all threads and processes of a machine.

A lock on the file that it guards would not do. On POSIX every lock that SQLite has on its database
ends as soon as any thread of the process closes any opening of that file. So what is guarded has a
file of its own beside it, which nothing but this module opens, once at a time in a process.

*Threads* wait at a lock of the process first, so that also where locks belong to processes (files
of a network) none drops that of another. *Processes* that die lose their locks. *Forks* wait until
no thread is inside: a child shares no lock, and no half of a change.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from skdp.exceptions import PrivacyError

WAIT = 60.0  # seconds for other holders
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # what systems say of a lock that is held
_NO_LOCKS = (
    "{} no locks on files, so two processes could spend the same budget, or release the same steps "
    "with other noise. Keep no ledger and no checkpoint in files there."
)
_GUARD = threading.Lock()
_THREADS: dict[str, threading.RLock] = {}  # path -> who of this process is inside
_INSIDE: set[str] = set()


def _posix(descriptor: int, take: bool) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN)


def _windows(descriptor: int, take: bool, at: int) -> None:
    import msvcrt

    os.lseek(descriptor, at, os.SEEK_SET)
    mode = getattr(msvcrt, "LK_NBLCK" if take else "LK_UNLCK")
    getattr(msvcrt, "locking")(descriptor, mode, 1)  # noqa: B009


def lock(descriptor: int, at: int = 0) -> bool:
    """Try to lock an open file to the end of its opening; False if somebody has it.

    Where a lock is on a byte, which nobody may read then, it is the byte `at`.
    """
    try:
        return _apply(descriptor, True, at)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise PrivacyError(_NO_LOCKS.format(f"the place of this file has ({error})")) from None


def _apply(descriptor: int, take: bool, at: int) -> bool:
    try:
        _posix(descriptor, take)
    except ImportError:
        try:
            _windows(descriptor, take, at)
        except ImportError:
            raise PrivacyError(_NO_LOCKS.format("this system has")) from None
    return True


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the lock of a file: its own, `path` + ".lock", mode 0600."""
    with _GUARD:
        threads = _THREADS.setdefault(path, threading.RLock())
    with threads:
        if path in _INSIDE:
            raise PrivacyError(f"{path} is being changed by this thread already.")
        _INSIDE.add(path)
        try:
            descriptor = _taken(path + ".lock")
            try:
                yield
            finally:
                _apply(descriptor, False, 0)  # now, whoever else has a copy of the descriptor
                os.close(descriptor)
        finally:
            _INSIDE.discard(path)


def _taken(name: str) -> int:
    """Open and lock a file, after those who have it."""
    end, pause = time.monotonic() + WAIT, 0.0005
    while True:
        descriptor, taken = os.open(name, os.O_CREAT | os.O_RDWR, 0o600), False
        try:
            taken = lock(descriptor)
        finally:
            if not taken:
                os.close(descriptor)
        if taken:
            return descriptor
        if time.monotonic() > end:
            raise PrivacyError(f"another process has held {name} for {WAIT:.0f} seconds.")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _hold_all() -> None:
    _GUARD.acquire()
    for path in sorted(_THREADS):
        _THREADS[path].acquire()


def _free_all() -> None:
    for threads in _THREADS.values():
        threads.release()
    _GUARD.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_free_all, after_in_child=_free_all)
