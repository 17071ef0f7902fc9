"""Which ledgers are open around this process: its own, and those of processes that started it.

A fit is charged to all of them, in any thread or task: a context that did not inherit a ledger
cannot be distinguished from one that left it on purpose.

Other processes learn of a ledger from a file, named after it, that is locked while the ledger is
open. A process looks for the files of its ancestors, which covers workers that were started before
the ledger was opened. It also looks for files named in its environment, which covers processes that
were detached or outlive their parent: they count as inside until the ledger is closed. A lock ends
with its process, so the file of a killed process counts as an open ledger only if it is named in
the environment.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from skdp.exceptions import PrivacyError
from skdp.privacy.ledger.fits import is_ours


class OpenLedger(NamedTuple):
    """What a fit has to know of a ledger that is open in this process."""

    book: Any
    run: Any  # the run of a private search that it was opened in
    file: LedgerFile
    process: int


class LedgerFile(NamedTuple):
    """What a fit in another process has to know of it."""

    path: str
    note: str = ""


OPEN: dict[str, OpenLedger] = {}  # strong references: a ledger that is never closed is charged too
_VARIABLE = "SKDP_LEDGERS"
# Folders for these files: the first usable one is written to, and all are read. TMPDIR is not used,
# as a program may change it while its workers go on.
_PLACES = (
    ("/tmp", "/var/tmp", "/dev/shm")
    if os.name == "posix"
    else (os.path.join(os.path.expanduser("~"), "AppData", "Local"),)
)
_SEEN: dict[tuple[int, int | None], frozenset[str]] = {}  # a process -> its ancestors at first look


def is_over(token: str) -> bool:
    """Whether this process knows that the ledger of this name is closed."""
    return is_ours(token) and token not in OPEN


def around() -> tuple[dict[str, OpenLedger], dict[str, LedgerFile]]:
    """Return the open ledgers of this process, and those of its ancestors (token -> its file)."""
    here = os.getpid()  # a forked child holds copies of its parent's ledgers
    now = OPEN.copy()  # a snapshot: other threads open and close ledgers meanwhile
    own = {token: ledger for token, ledger in now.items() if ledger.process == here}
    inherited = {token: ledger.file for token, ledger in now.items() if token not in own}
    return own, inherited | dict(_announced())


def announce(token: str, ledger: LedgerFile) -> Callable[[], None]:
    """Announce an open ledger to descendants of this process; return a function to end that."""
    name = _own_folder() / f"{os.getpid()}-{token}"

    def withdraw() -> None:
        file.close()
        name.unlink(missing_ok=True)
        os.environ[_VARIABLE] = os.pathsep.join(each for each in _named() if each != str(name))

    file = name.open("w+", encoding="utf-8")
    try:
        _lock(file, exclusive=True)
        file.write("\0".join(ledger))
        file.flush()
        os.environ[_VARIABLE] = os.pathsep.join([*_named(), str(name)])
    except BaseException:
        withdraw()
        raise
    return withdraw


def _folders() -> list[str]:
    return [os.path.join(place, f"skdp-ledgers-{_user()}") for place in _PLACES]


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _own_folder() -> Path:
    """Return a folder that nobody else can write to; it is made if it is not there."""
    for folder in map(Path, _folders()):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_own(folder):
                return folder
    raise PrivacyError(
        f"worker processes find a ledger in a folder that only this user can write to, and none of "
        f"{', '.join(_folders())} can be created so. Remove a folder of that name of another user."
    )


def _is_own(folder: str | Path) -> bool:
    """Whether it is a folder of this user (no link, which could lead elsewhere tomorrow)."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(folder)
        shared = hasattr(os, "getuid") and found.st_mode & 0o077
        return stat.S_ISDIR(found.st_mode) and found.st_uid == _user() and not shared
    return False


def _announced() -> Iterator[tuple[str, LedgerFile]]:
    """Yield (token, file) of the ledgers that ancestors of this process hold open."""
    folders = list(filter(_is_own, _folders()))
    files = [(folder, file) for folder in folders for file in os.listdir(folder)]
    ancestors = _among_ancestors({file.partition("-")[0] for _, file in files})
    own = {Path(folder, file) for folder, file in files if file.partition("-")[0] in ancestors}
    named = set(map(Path, _named()))  # even if their process was killed, which closed no ledger
    for name in named | own:
        process, _, token = name.name.partition("-")
        if process == str(os.getpid()):
            continue
        with contextlib.suppress(FileNotFoundError), name.open(encoding="utf-8") as file:
            if name in named or not _lock(file, exclusive=False):
                yield token, LedgerFile(*file.read().split("\0"))


def _named() -> list[str]:
    return [name for name in os.environ.get(_VARIABLE, "").split(os.pathsep) if name]


def _among_ancestors(processes: set[str]) -> set[str]:
    """Return which of some processes are ancestors of this one.

    A process whose parent ends is adopted by another ancestor, so it never gains one. Reading the
    ancestors takes ten times as long as all else. So they are read again only if a given process
    was among them at the first reading; the files of killed processes, and our own, need no
    reading.
    """
    processes = processes - {str(os.getpid())}
    if not processes:
        return processes
    parent = multiprocessing.parent_process()  # a child that is only starting has none yet
    key = os.getpid(), None if parent is None else parent.pid
    if key not in _SEEN:
        _SEEN[key] = frozenset(_ancestors())
    return processes.intersection(_ancestors()) if processes & _SEEN[key] else set()


def _ancestors() -> set[str]:
    found, process = {os.getppid()}, os.getpid()
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        found.add(parent.pid)  # a fork server may be the direct parent
    # If /proc does not exist or is restricted, only the parents are known.
    with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
        while process > 1:
            with open(f"/proc/{process}/stat", "rb", buffering=0) as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
            found.add(process)
    return set(map(str, found))


def _lock(file: IO[str], *, exclusive: bool) -> bool:
    """Try to lock a file, to the end of its opening; False if somebody has it."""
    try:
        import fcntl
    except ImportError:  # this system has no such locks: a file counts as locked
        return exclusive
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
