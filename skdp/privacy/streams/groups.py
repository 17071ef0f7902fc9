"""Streams that advance together: one act at a time, durable before it is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.streams.continual import Read, Stream, pack_sums, paid_stream, unpack_sums
from skdp.privacy.streams.correlated import stream_schedule
from skdp.privacy.streams.sketch_draws import SketchSource
from skdp.privacy.streams.sketches import grant_sketches


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
