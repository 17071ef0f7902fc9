"""Streams that survive being killed: acts are durable before they are acknowledged.

A checkpoint is as secret as the data. From the moment it is made, each act of the group is
durable before the call returns, so that after a crash `restore` returns the stream as it was
acknowledged: no act is lost, and no step is released a second time with other noise, since
noisy sums are stored before anybody sees them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import SketchLaw
from skdp.privacy.accounting.plain_data import loss_from_state, loss_state, pack, unpack
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.gate.bounds import Bound, PrivacyBudget
from skdp.privacy.gate.session import Grant, Observer, PrivacySession, Spending
from skdp.privacy.locks import lock
from skdp.privacy.noise.words import SeededSource, SystemSource
from skdp.privacy.streams.continual import (
    Read,
    Stream,
    pack_sums,
    paid_stream,
    stream_schedule,
    unpack_sums,
)
from skdp.privacy.streams.sketches import SketchSource, grant_sketches

# Streams that advance together: one act at a time, durable before it is acknowledged.


class Log(Protocol):
    """Where a group writes what it does before it says that it was done."""

    def append(self, record: dict[str, Any]) -> None:
        """Make one act durable."""
        ...


class StreamGroup:
    """Streams of one session that advance together, as one transaction at a time.

    Each act (adding data, closing the step, or both) reads and draws first, is then made durable if
    a log is attached, and changes the state last. When a call returns it has been acknowledged.

    Attributes
    ----------
    session : PrivacySession
        Who paid.
    streams : dict of Stream
        By name.
    acts : int
        How many acts were done. Their number may be private: for the owner of the data.
    log : Log or None
        Where acts are made durable.
    notes : dict
        Public facts that go with the streams; an act may update them.
    """

    def __init__(self, session: PrivacySession, streams: Mapping[str, Stream]) -> None:
        self.session = session
        self.streams = dict(streams)
        self.acts = 0
        self.log: Log | None = None
        self.notes: dict[str, Any] = {}
        self._broken = False

    @classmethod
    def paid(
        cls,
        session: PrivacySession,
        bounds: Mapping[str, Bound],
        shares: Mapping[str, float],
        horizon: int,
        **options: Any,
    ) -> StreamGroup:
        """Pay for one stream a bound; `options` as in `paid_stream`."""
        streams = {
            name: paid_stream(session, bound, shares[name], horizon, **options)
            for name, bound in bounds.items()
        }
        return cls(session, streams)

    @classmethod
    def paid_sketches(
        cls,
        session: PrivacySession,
        bounds: Sequence[Bound],
        shares: Sequence[float],
        horizon: int,
        *,
        mechanism: str = "auto",
        window: int | None = None,
    ) -> StreamGroup:
        """Pay for streams of sketches that are calibrated together, random ones among them.

        A sketch is linear, so all that is published is a sketch of the stacked matrix C D of a
        unit's contributions D, of norm at most the schedule's factor times the bound. With a `law`
        this holds for contributions that do not depend on the sketch, hence on no earlier release.
        """
        schedules = [stream_schedule(b.size, horizon, mechanism, window) for b in bounds]
        wide = [schedule.widened(b, horizon) for schedule, b in zip(schedules, bounds, strict=True)]
        for schedule, bound in zip(schedules, bounds, strict=True):
            session.charge_draws((schedule.draws - 1) * bound.size)
        units = [schedule.unit for schedule in schedules]
        grants = grant_sketches(session, wide, shares, note=schedules[0].note, units=units)
        parts = zip(grants, schedules, bounds, strict=True)
        return cls(
            session, {bound.name: Stream(g, schedule, bound) for g, schedule, bound in parts}
        )

    @property
    def left(self) -> int:
        """How many releases are left."""
        return min(stream.left for stream in self.streams.values())

    @property
    def steps(self) -> int:
        """How many releases were made."""
        return next(iter(self.streams.values())).steps

    def check_running(self) -> None:
        """Raise unless data may be added here and now."""
        for stream in self.streams.values():
            stream.check_running()
        if self._broken:
            raise PrivacyError(
                "an earlier call on this stream was interrupted while it was made durable; go on "
                "from its checkpoint with restore()."
            )

    def add(self, answers: Mapping[str, Read], **notes: Any) -> None:
        """Add data to the open step of the named streams."""
        self._act(answers, closes=False, notes=notes)

    def open(self) -> dict[str, Answer]:
        """Close the step of all streams and return their releases."""
        return self.advance({})

    def advance(self, answers: Mapping[str, Read], **notes: Any) -> dict[str, Answer]:
        """Add data and close the step, as one act: it is done as a whole or not at all."""
        with self.session.lock:
            self._act(answers, closes=True, notes=notes)
            return self.answers()

    def answers(self) -> dict[str, Answer]:
        """Return the last releases again, the same bits."""
        return {name: stream.answer() for name, stream in self.streams.items()}

    def _act(self, answers: Mapping[str, Read], *, closes: bool, notes: Mapping[str, Any]) -> None:
        with self.session.lock:
            self.check_running()
            parts = {name: self.streams[name].read(answer) for name, answer in answers.items()}
            record: dict[str, Any] = {"parts": parts, "noised": {}, "notes": dict(notes)}
            if closes:
                record["noised"] = {
                    name: pack_sums(stream.ending(parts.get(name)))
                    for name, stream in self.streams.items()
                }
            self._broken = True
            if self.log is not None:
                self.log.append(record)
            self.apply(record)
            self._broken = False

    def sketches(self) -> SketchSource:
        """Return the source of this stream's sketches, whose key is in the notes."""
        seeded = self.session.source.seeded
        return SketchSource.from_secret(self.session, self.notes["sketches"], seeded=seeded)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Do what a record says: first time, or again after a restore."""
        for name, part in record["parts"].items():
            self.streams[name].take(part)
        for name, noised in record["noised"].items():
            self.streams[name].close(unpack_sums(noised))
        self.notes.update(record["notes"])
        self.acts += 1

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be copied, as each stream does."""
        raise PrivacyError(
            "a running stream cannot be copied or pickled. Use checkpoint(), and store the file "
            "like the data; or publish what was released."
        )


# A file that survives being killed: a snapshot and the acts since, each made durable in its turn.
#
# Two files. ``path`` holds records, each chained to the one before by a SHA-256 digest. ``path`` +
# ".count" holds a number: how many acts were acknowledged. Both have mode 0600.
#
# - A record is written and synchronised before the count, and the count before the act is
#   acknowledged. Killed in between, the record is there and the count is behind: the act is done.
# - A record that was cut off by a crash is the last one, and was not acknowledged: it is dropped.
# - The count is ahead of the records if the file is an older copy: then it is refused. A copy of
#   *both* files from an earlier time (a restored backup, a rolled back virtual machine) cannot be
#   told from the true one by anything on that disk.
# - A new snapshot goes to a temporary file that replaces the old one in one step.
# - A second process on the same path is refused, and so are systems without locks on files.


FORMAT: Final = 1
_MAGIC: Final = b"skdp stream %05d" % FORMAT
_HEAD: Final = struct.Struct("<Q32s")  # length and chained digest of a record
_SLOT: Final = struct.Struct("<16sQ32s")  # identity, number of acts, digest
_SLOT_BYTES: Final = 512  # a disk writes a sector as a whole
_LOCKED_BYTE: Final = 2 * _SLOT_BYTES  # nobody may read it, so it is behind the slots
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
            taken = lock(self._file.fileno(), _LOCKED_BYTE)
        except PrivacyError:
            self._file.close()
            raise
        if not taken:
            self._file.close()
            raise _in_use(path)

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
            end = file.tell()
        finally:
            file.close()
        self._close_records()  # Windows replaces no file that is open
        if old is not None:
            old.retire()
        os.replace(temporary, self.path)
        _synchronise_folder(self.path)
        self._digest, self._end = digest, end
        self._snapshot_bytes = end
        self._file = _open_secret(self.path, 0)

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
        self._close_records()  # first: without it nothing is written
        self._count.close()

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


def _session_state(session: PrivacySession) -> dict[str, Any]:
    budget, source = session.budget, session.source
    return {
        "budget": [budget.epsilon, budget.delta, budget.pure_epsilon],
        "seed": source.secret() if isinstance(source, SeededSource) else None,
        "seeded": source.seeded,
        "adjacency": session.adjacency,
        "unit": session.unit,
        "ledger": [[*entry[:4], *loss_state(entry.loss)] for entry in session.ledger],
        "spent": session.spending.shares,
        "draws": session.spending.draws,
        "starts": session.spending.starts,
    }


def _restored_session(state: dict[str, Any], observer: Observer | None) -> PrivacySession:
    source: SystemSource | SeededSource = SystemSource()
    if state["seed"] is not None:
        source = SeededSource.from_secret(state["seed"], seeded=state["seeded"])
    session = PrivacySession(
        PrivacyBudget(*state["budget"]),
        source=source,
        adjacency=state["adjacency"],
        unit=state["unit"],
        observer=observer,
    )
    session.ledger = tuple(
        LedgerEntry(name, mechanism, sensitivity, noise_scale, loss_from_state(kind, value))
        for name, mechanism, sensitivity, noise_scale, kind, value in state["ledger"]
    )
    session.spending = Spending(dict(state["spent"]), state["draws"], state["starts"])
    return session


def _stream_state(stream: Stream) -> dict[str, Any]:
    grant, schedule = stream._grant, stream.schedule
    return {
        "plan": [schedule.mechanism, schedule.horizon, schedule.window],
        "bound": asdict(stream.bound),
        "wide": asdict(grant.bound),
        "grant": [grant.mechanism, grant.step, grant.noise_scale, grant.serial],
        "state": stream.state(),
    }


def _bound(state: dict[str, Any]) -> Bound:
    law = state["law"] and SketchLaw(tuple(state["law"][0]))
    return Bound(**state | {"shape": tuple(state["shape"]), "law": law})


def _restored_stream(session: PrivacySession, state: dict[str, Any]) -> Stream:
    mechanism, horizon, window = state["plan"]
    bound = _bound(state["bound"])
    name, step, noise_scale, serial = state["grant"]
    grant = Grant(session, _bound(state["wide"]), name, step, noise_scale)
    grant.serial = serial
    stream = Stream(grant, stream_schedule(bound.size, horizon, mechanism, window), bound)
    stream.load(state["state"])
    return stream


class _Keeper:
    """Writes the acts of a group to its journal."""

    def __init__(self, group: StreamGroup, journal: Journal) -> None:
        self.group, self.journal = group, journal

    def append(self, record: dict[str, Any]) -> None:
        try:
            if self.journal.overgrown:  # of the state before this act
                self.journal.rewrite(_snapshot(self.group))
            self.journal.append(pack(record))
        except BaseException:  # nobody knows how much was written: only a restore does
            self.journal.close()
            raise


def _snapshot(group: StreamGroup) -> bytes:
    return pack(
        {
            "notes": group.notes,
            "session": _session_state(group.session),
            "streams": {name: _stream_state(s) for name, s in group.streams.items()},
            "acts": group.acts,
        }
    )


def checkpoint(group: StreamGroup, path: str | os.PathLike[str]) -> None:
    """Write a group to a path and keep it there: from now on each act is durable when it returns.

    A second path takes over: the file at the first one can no longer be resumed.

    Parameters
    ----------
    group : StreamGroup
        Running streams.
    path : path-like
        A file with secret content, mode 0600; `path` + ".count" is written beside it.
    """
    with group.session.lock:
        group.check_running()
        old = group.log.journal if isinstance(group.log, _Keeper) else None
        new = os.path.abspath(path)
        if old is not None and str(old.path) == new:
            old.rewrite(_snapshot(group))
            return
        journal, theirs = None, os.path.exists(new)
        group._broken = True
        try:
            journal = Journal.start(path, _snapshot(group), os.urandom(16), group.acts, old)
            group.log = _Keeper(group, journal)
            group._broken = False
        except BaseException:
            if journal is not None:
                journal.close()
            # A file that can be resumed is the stream now: both would release the same steps.
            group._broken = os.path.exists(new) and not theirs
            raise


def restore(path: str | os.PathLike[str], observer: Observer | None = None) -> StreamGroup:
    """Go on from a checkpoint: the group as it was acknowledged, its session heard by `observer`.

    Raises PrivacyError if the file is damaged, in use, or older than what was acknowledged.
    """
    journal, snapshot, acts = Journal.resume(path)
    try:
        state = unpack(snapshot)
        session = _restored_session(state["session"], observer)
        streams = {n: _restored_stream(session, s) for n, s in state["streams"].items()}
        group = StreamGroup(session, streams)
        group.acts, group.notes = state["acts"], state["notes"]
        for act in acts:
            group.apply(unpack(act))
    except BaseException:
        journal.close()
        raise
    group.log = _Keeper(group, journal)
    return group


def close(group: StreamGroup) -> None:
    """Give the files of a group free; the group itself can no longer go on."""
    with group.session.lock:
        if isinstance(group.log, _Keeper):
            group.log.journal.close()
