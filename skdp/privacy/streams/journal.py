"""A file that survives being killed: a snapshot and the acts since, each made durable in its turn.

Two files. ``path`` holds records, each chained to the one before by a SHA-256 digest. ``path`` +
".count" holds a number: how many acts were acknowledged. Both have mode 0600.

- A record is written and synchronised before the count, and the count before the act is
  acknowledged. Killed in between, the record is there and the count is behind: the act is done.
- A record that was cut off by a crash is the last one, and was not acknowledged: it is dropped.
- The count is ahead of the records if the file is an older copy: then it is refused. A copy of
  *both* files from an earlier time (a restored backup, a rolled back virtual machine) cannot be
  told from the true one by anything on that disk.
- A new snapshot goes to a temporary file that replaces the old one in one step.
- A second process on the same path is refused, and so are systems without locks on files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

from skdp.exceptions import PrivacyError

FORMAT: Final = 1
_MAGIC: Final = b"skdp stream %05d" % FORMAT
_HEAD: Final = struct.Struct("<Q32s")  # length and chained digest of a record
_SLOT: Final = struct.Struct("<16sQ32s")  # identity, number of acts, digest
_SLOT_BYTES: Final = 512  # a disk writes a sector as a whole
_LOCKED_BYTE: Final = 2 * _SLOT_BYTES
_MOVED: Final = 2**63  # the count of a file that another one has replaced
_SLACK: Final = 2**20  # bytes of acts beyond which a snapshot may be worth it


def _synchronise_folder(path: Path) -> None:
    """Make a new name durable (not offered everywhere)."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _lock_posix(file: BinaryIO) -> None:
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_windows(file: BinaryIO) -> None:
    import msvcrt

    file.seek(_LOCKED_BYTE)  # nobody may read a locked byte, so it is one behind the slots
    getattr(msvcrt, "locking")(file.fileno(), getattr(msvcrt, "LK_NBLCK"), 1)  # noqa: B009


def _lock(file: BinaryIO, path: Path) -> None:
    """Take the file for this process until it ends."""
    for lock in (_lock_posix, _lock_windows):
        try:
            return lock(file)
        except ImportError:
            continue
        except OSError:
            raise _in_use(path) from None
    raise PrivacyError(
        f"this system has no locks on files, so two processes could go on from {path} and release "
        "the same steps with other noise. Keep no checkpoint here."
    )


def _in_use(path: Path) -> PrivacyError:
    return PrivacyError(
        f"{path} is in use: another stream goes on from it. Two of them would release the same "
        "steps with other noise."
    )


def _open_secret(path: Path, mode: int) -> BinaryIO:
    descriptor = os.open(path, os.O_RDWR | mode | getattr(os, "O_BINARY", 0), 0o600)
    return os.fdopen(descriptor, "r+b", buffering=0)


class _Count:
    """The number of acknowledged acts, in two slots that are written in turn."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        if not create and not path.exists():
            raise PrivacyError(
                f"{path} is missing: nothing says how far the stream had gone. Keep it beside the "
                "checkpoint."
            )
        self._file = _open_secret(path, os.O_CREAT)
        try:
            _lock(self._file, path)
        except PrivacyError:
            self._file.close()
            raise

    def read(self) -> tuple[bytes, int]:
        """Return identity and count; an error if no slot is whole."""
        slots = []
        for place in (0, 1):
            self._file.seek(place * _SLOT_BYTES)
            data = self._file.read(_SLOT.size)
            if len(data) == _SLOT.size:
                identity, count, digest = _SLOT.unpack(data)
                if hashlib.sha256(data[:24]).digest() == digest:
                    slots.append((count, identity))
        if not slots:
            raise PrivacyError(f"{self.path} is damaged: nothing says how far the stream had gone")
        count, identity = max(slots)
        return identity, count

    def write(self, identity: bytes, count: int, *, both: bool = False) -> None:
        """Make a count durable. `both`: forget what was there."""
        body = struct.pack("<16sQ", identity, count)
        slot = body + hashlib.sha256(body).digest()
        for place in (0, 1) if both else (count % 2,):
            self._file.seek(place * _SLOT_BYTES)
            self._file.write(slot.ljust(_SLOT_BYTES, b"\0"))
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Journal:
    """An open journal, locked by this process.

    Parameters
    ----------
    path : path-like
        The file. Both files are as secret as the data.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        self.path = Path(path).absolute()
        self._count = _Count(self.path.with_name(self.path.name + ".count"), create=create)
        self._file: BinaryIO | None = None
        self._digest = b""
        self._end = 0
        self.identity = b""
        self.acts = 0
        self._snapshot_bytes = 0

    # -- writing -------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        path: str | os.PathLike[str],
        snapshot: bytes,
        identity: bytes,
        acts: int,
        old: Journal | None = None,
    ) -> Journal:
        """Begin a journal with a snapshot; a file of another stream is never overwritten.

        `old`, the journal that it takes over from, is retired before the new one can be resumed:
        killed in between, the stream is lost (but for the temporary file), not doubled.
        """
        if Path(path).exists():
            raise PrivacyError(
                f"{os.fspath(path)!r} exists and is not this stream's. Use another path, or remove "
                "it and its .count file if its stream has ended."
            )
        journal = cls(path, create=True)
        try:
            journal.identity, journal.acts = identity, acts
            journal._count.write(identity, acts, both=True)
            journal.rewrite(snapshot, old)
        except BaseException:
            journal.close()
            raise
        return journal

    def rewrite(self, snapshot: bytes, old: Journal | None = None) -> None:
        """Replace the file, in one step, by a snapshot of now; just before that, retire `old`."""
        temporary = self._temporary()
        file = _open_secret(temporary, os.O_CREAT | os.O_EXCL)
        try:
            head = _MAGIC + self.identity + struct.pack("<Q", self.acts)
            digest = hashlib.sha256(head + snapshot).digest()
            self._write(file, head + _HEAD.pack(len(snapshot), digest) + snapshot)
            self._digest, self._end = digest, file.tell()
        finally:
            file.close()
        self._close_records()  # Windows replaces no file that is open
        if old is not None:
            old.retire()
        os.replace(temporary, self.path)
        _synchronise_folder(self.path)
        self._file = _open_secret(self.path, 0)
        self._snapshot_bytes = self._end

    def _temporary(self) -> Path:
        """Return the name of the temporary file; one that a crash left behind is removed."""
        temporary = self.path.with_name(self.path.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        return temporary

    @staticmethod
    def _write(file: BinaryIO, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())

    def append(self, record: bytes) -> None:
        """Make one act durable: the record first, then the count."""
        if self._file is None:
            raise PrivacyError("this checkpoint is closed")
        digest = hashlib.sha256(self._digest + record).digest()
        self._file.seek(self._end)
        self._write(self._file, _HEAD.pack(len(record), digest) + record)
        self._digest, self._end = digest, self._end + _HEAD.size + len(record)
        self.acts += 1
        self._count.write(self.identity, self.acts)

    @property
    def overgrown(self) -> bool:
        """Whether the acts take far more room than a snapshot did."""
        return self._end > 4 * self._snapshot_bytes + _SLACK

    def retire(self) -> None:
        """Mark the file as replaced by another: it can never be resumed."""
        if self._file is None:
            return
        self._count.write(self.identity, _MOVED, both=True)
        self.close()

    def close(self) -> None:
        """Give the files free."""
        self._count.close()
        self._close_records()

    def _close_records(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied."""
        raise PrivacyError("a checkpoint that is in use cannot be copied or pickled.")

    # -- reading -------------------------------------------------------------------------------

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> tuple[Journal, bytes, list[bytes]]:
        """Open the journal of a stream that ended or was killed: (journal, snapshot, acts)."""
        if not Path(path).exists():
            raise FileNotFoundError(f"there is no checkpoint {os.fspath(path)!r}")
        journal = cls(path)
        try:
            return journal, *journal._load()
        except BaseException:
            journal.close()
            raise

    def _load(self) -> tuple[bytes, list[bytes]]:
        self._file = file = _open_secret(self.path, 0)
        data = file.read()
        head = len(_MAGIC) + 24
        if data[:11] != _MAGIC[:11] or len(data) < head + _HEAD.size:
            raise PrivacyError(f"{self.path} is not a checkpoint of skdp, or is damaged")
        if data[: len(_MAGIC)] != _MAGIC:
            raise PrivacyError(f"{self.path} was written by another version of skdp")
        self.identity, acts = struct.unpack_from("<16sQ", data, len(_MAGIC))
        records, self._digest, self._end = _chain(data, head, data[:head])
        if not records:
            raise PrivacyError(f"{self.path} is damaged: its checksum is wrong")
        self.acts = acts + len(records) - 1
        self._snapshot_bytes = head + _HEAD.size + len(records[0])
        self._check_count()
        self._temporary()
        os.ftruncate(file.fileno(), self._end)  # what a crash cut off was never acknowledged
        self._count.write(self.identity, self.acts, both=True)
        return records[0], records[1:]

    def _check_count(self) -> None:
        identity, count = self._count.read()
        if identity != self.identity:
            raise PrivacyError(f"{self.path} and its .count file belong to different streams")
        if count == _MOVED:
            raise PrivacyError(f"{self.path} was replaced by a checkpoint at another path")
        if count > self.acts:
            raise PrivacyError(
                f"{self.path} is behind: {count} acts were acknowledged and it holds {self.acts} "
                "whole ones. Going on from it would release the same steps with other noise."
            )


def _chain(data: bytes, start: int, before: bytes) -> tuple[list[bytes], bytes, int]:
    """Return the whole records, the digest of the last, and where it ends."""
    records, end = [], start
    while end + _HEAD.size <= len(data):
        length, digest = _HEAD.unpack_from(data, end)
        body = data[end + _HEAD.size : end + _HEAD.size + length]
        if len(body) < length or hashlib.sha256(before + body).digest() != digest:
            break
        records.append(body)
        before, end = digest, end + _HEAD.size + length
    return records, before, end
