"""Checkpoints of streams: each call is written to disk before it returns.

A checkpoint is as secret as the data. Once it is made, every later call on the group is durable
before it returns. So after a crash `restore` returns the stream after its last completed call: no
data are lost, and no step is released a second time with other noise, since noisy sums are stored
before they are published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from skdp._limits import BLOCK
from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.losses import SketchLaw
from skdp.privacy.accounting.plain_data import loss_state, pack, unpack
from skdp.privacy.gate.bounds import Bound, PrivacyBudget
from skdp.privacy.gate.session import Grant, Observer, PrivacySession
from skdp.privacy.noise.words import NoiseSource, SeededSource, SystemSource
from skdp.privacy.store import CacheStore
from skdp.privacy.streams.continual import (
    Read,
    Stream,
    pack_sums,
    paid_stream,
    stream_schedule,
    unpack_sums,
)
from skdp.privacy.streams.sketches import SketchSource, grant_sketches, paid_lines

# Streams that advance together: one call at a time, durable before it returns.


class StreamGroup:
    """Streams of one session that advance together, as one transaction at a time.

    Each call (adding data, closing the step, or both) first reads data and draws noise, then writes
    to the file if there is one, and changes the state last.

    Attributes
    ----------
    session : PrivacySession
        The session that was charged.
    streams : dict of Stream
        By name.
    acts : int
        Number of acts so far, which may be private: only the owner of the data may read it.
    keeper : Keeper or None
        Makes acts durable.
    interrupted : bool
        Whether it is unknown how much of the last act was done.
    notes : dict
        Public facts stored with the streams; an act may update them.
    """

    def __init__(self, session: PrivacySession, streams: Mapping[str, Stream]) -> None:
        self.session = session
        self.streams = dict(streams)
        self.acts = 0
        self.keeper: Keeper | None = None
        self.notes: dict[str, Any] = {}
        self.interrupted = False

    @classmethod
    def paid(
        cls,
        session: PrivacySession,
        bounds: Mapping[str, Bound],
        shares: Mapping[str, float],
        horizon: int,
        **options: Any,
    ) -> StreamGroup:
        """Charge one stream for each bound; `options` as in `paid_stream`."""
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
        """Charge streams of sketches that are calibrated together; some may be random.

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
        """Raise unless data may be added now, in this process."""
        if self.interrupted:
            close(self)  # otherwise `restore` would find the file in use
            raise PrivacyError(
                "an earlier call on this stream was interrupted while it was written to disk; "
                "continue from its checkpoint with restore()."
            )
        for stream in self.streams.values():
            stream.check_running()

    def open(self) -> dict[str, Answer]:
        """Close the step of all streams and return their releases."""
        return self.advance({})

    def advance(self, answers: Mapping[str, Read], **notes: Any) -> dict[str, Answer]:
        """Add data and close the step, as one act: it is done as a whole or not at all."""
        with self.session.lock:
            self.add(answers, closes=True, **notes)
            return self.answers()

    def answers(self) -> dict[str, Answer]:
        """Return the last releases again, unchanged."""
        return {name: stream.answer() for name, stream in self.streams.items()}

    def add(self, answers: Mapping[str, Read], *, closes: bool = False, **notes: Any) -> None:
        """Add data to the open step of the named streams, and close it if that is asked."""
        with self.session.lock:
            self.check_running()
            acts = self.acts
            parts = {name: self.streams[name].read(answer) for name, answer in answers.items()}
            record: dict[str, Any] = {"parts": parts, "noised": {}, "notes": notes}
            if closes:
                record["noised"] = {
                    name: pack_sums(stream.ending(parts.get(name)))
                    for name, stream in self.streams.items()
                }
            self.interrupted = True
            if self.acts != acts:  # what was read and drawn above belongs to an earlier step
                self.interrupted = False
                raise PrivacyError(
                    "a signal handler used this stream during this call, which added nothing: "
                    "repeat the call."
                )
            if self.keeper is not None:
                self.keeper.append(pack(record), self)
            self.apply(record)
            self.interrupted = False

    def sketches(self) -> SketchSource:
        """Return the source of this stream's sketches, whose key is in the notes."""
        seeded = self.session.source.seeded
        return SketchSource.from_secret(self.session, self.notes["sketches"], seeded=seeded)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply the record of a call to the state, now or when a checkpoint is restored."""
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


# Groups in files: a snapshot, and the calls since then. `skdp.privacy.store` describes the
# guarantees of files. A file is as secret as the data.


_FORM: Final = int.from_bytes(b"skS2")
_MOVED: Final = pack(None)  # the last act of a stream that continues at another path


def _session_state(session: PrivacySession) -> dict[str, Any]:
    budget, source = session.budget, session.source
    return {
        "budget": [budget.epsilon, budget.delta, budget.pure_epsilon],
        "seed": source.secret() if isinstance(source, SeededSource) else None,
        "seeded": source.seeded,
        "adjacency": session.adjacency,
        "unit": session.unit,
        "ledger": [[*entry[:4], *loss_state(entry.loss)] for entry in session.ledger],
        "spent": session.shares,
        "draws": session.draws,
        "starts": session.starts,
    }


def _restored_session(state: dict[str, Any], observer: Observer | None) -> PrivacySession:
    source: NoiseSource = SystemSource()
    if state["seed"] is not None:
        source = SeededSource.from_secret(state["seed"], seeded=state["seeded"])
    budget, meaning = PrivacyBudget(*state["budget"]), {k: state[k] for k in ("adjacency", "unit")}
    session = PrivacySession(budget, source=source, observer=observer, **meaning)
    session.ledger = tuple(paid_lines(state))
    session.shares, session.draws, session.starts = state["spent"], state["draws"], state["starts"]
    return session


def _stream_state(stream: Stream) -> dict[str, Any]:
    grant, schedule = stream._grant, stream.schedule
    return {
        "plan": [schedule.mechanism, schedule.horizon, schedule.window],
        "bound": stream.bound._asdict(),
        "wide": grant.bound._asdict(),
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


class Keeper:
    """Writes the acts of a group to its file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.store = CacheStore(path, _FORM)
        self._used, self._room = 0, BLOCK

    def append(self, record: bytes, group: StreamGroup | None = None) -> None:
        """Write one act to disk; sometimes also a snapshot of the `group` before it."""
        with self.store.closed_by_errors(), self.store.change() as chain:
            if group is not None and self._used > self._room:
                chain.replace(self.snapshot(group))
            chain.add(record)
        self._used += len(record)

    def snapshot(self, group: StreamGroup) -> bytes:
        """Return the state of a group, and count the size of acts from now on."""
        items = {
            "notes": group.notes,
            "session": _session_state(group.session),
            "streams": {name: _stream_state(s) for name, s in group.streams.items()},
            "acts": group.acts,
        }
        state = pack(items)
        self._used, self._room = 0, 4 * len(state) + BLOCK
        return state


def checkpoint(group: StreamGroup, path: str | os.PathLike[str]) -> None:
    """Write a group to a path; from now on each act is on disk when it returns.

    A second path replaces the first, whose file can no longer be resumed.

    Parameters
    ----------
    group : StreamGroup
        Running streams.
    path : path-like
        A file with secret content, mode 0600; `path` + ".lock" is written next to it.
    """
    with group.session.lock:
        group.check_running()
        old = group.keeper
        if old is not None and old.store.path == os.path.realpath(path):
            with old.store.change() as chain:
                chain.replace(old.snapshot(group))
            return
        keeper = Keeper(path)
        with keeper.store.closed_by_errors():
            with keeper.store.change(create=True) as chain:
                chain.begin(keeper.snapshot(group))
                group.interrupted = True  # the file can be resumed now: this object must stop
                if old is not None:  # a crash after this loses the stream, but never doubles it
                    old.append(_MOVED)
                    old.store.close()
            group.keeper, group.interrupted = keeper, False


def restore(path: str | os.PathLike[str], observer: Observer | None = None) -> StreamGroup:
    """Return the group of a checkpoint, as it was after its last completed call.

    `observer` is the observer of its session. Raises PrivacyError if the file is damaged, in use,
    or an older copy.
    """
    missing = FileNotFoundError(f"there is no checkpoint in {os.fspath(path)!r}")
    if not os.path.exists(path):
        raise missing
    keeper, group = Keeper(path), None
    with keeper.store.closed_by_errors():
        with keeper.store.change() as chain:
            for record in chain.since_snapshot():
                if record == _MOVED:
                    raise PrivacyError(f"{path} was replaced by a checkpoint at another path.")
                if group is None:
                    group = _restored_group(unpack(record), observer)
                else:
                    group.apply(unpack(record))
        if group is None:
            raise missing
    group.keeper = keeper
    return group


def _restored_group(state: dict[str, Any], observer: Observer | None) -> StreamGroup:
    session = _restored_session(state["session"], observer)
    streams = {n: _restored_stream(session, s) for n, s in state["streams"].items()}
    group = StreamGroup(session, streams)
    group.acts, group.notes = state["acts"], state["notes"]
    return group


def close(group: StreamGroup) -> None:
    """Release the files of a group; the group object can no longer be used."""
    with group.session.lock:
        if group.keeper is not None:
            group.keeper.store.close()
