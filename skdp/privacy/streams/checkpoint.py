"""Checkpoints of a running stream: who paid, what was released, and the exact state.

A checkpoint is as secret as the data. From the moment it is made, each act of the group is durable
before the call returns (`skdp.privacy.streams.journal`), so that after a crash `restore` returns
the stream as it was acknowledged: no act is lost, and no step is released a second time with other
noise, since noisy sums are stored before anybody sees them.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from skdp._packing import pack, unpack
from skdp.privacy.accounting.receipts import LedgerEntry
from skdp.privacy.accounting.sketch_laws import SketchLaw
from skdp.privacy.accounting.states import loss_from_state, loss_state
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.grants import Grant
from skdp.privacy.gate.session import Observer, PrivacySession, Spending
from skdp.privacy.noise.words import SeededSource, SystemSource
from skdp.privacy.streams.continual import Stream
from skdp.privacy.streams.correlated import stream_schedule
from skdp.privacy.streams.groups import StreamGroup
from skdp.privacy.streams.journal import Journal


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
        if self.journal.overgrown:  # of the state before this act
            self.journal.rewrite(_snapshot(self.group))
        try:
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
        journal = Journal.start(path, _snapshot(group), os.urandom(16), group.acts, old)
        group.log = _Keeper(group, journal)


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
