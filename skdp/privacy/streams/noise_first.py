"""Sketches that are noisy from their birth, take data in parts, and are opened once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.grants import Accumulator, Grant
from skdp.privacy.gate.session import PrivacySession


class NoisyGroup:
    """Accumulators of one session that take data together: all of them or none.

    It has the `add` of a `StreamGroup`, and one opening.

    Attributes
    ----------
    session : PrivacySession
        Who paid.
    accumulators : dict of Accumulator
        By name.
    notes : dict
        Public facts that go with them; an addition may update them.
    """

    def __init__(
        self, session: PrivacySession, grants: Iterable[Grant], notes: Mapping[str, Any]
    ) -> None:
        self.session = session
        self.accumulators = {grant.bound.name: Accumulator(grant) for grant in grants}
        self.notes = dict(notes)
        self._whole = True

    def add(self, answers: Mapping[str, Callable[[float], NDArray[Any]]], **notes: Any) -> None:
        """Add data to the named accumulators.

        All are read before any is added to: a call that failed may be repeated, and a sketch that
        had the data of the first attempt would have them twice.
        """
        with self.session.lock:
            if not self._whole:
                raise PrivacyError(
                    "an earlier call was interrupted while its data were added: again, they might "
                    "count twice. Release what is there, or start anew."
                )
            parts = {name: self.accumulators[name].read(answer) for name, answer in answers.items()}
            self._whole = False
            for name, part in parts.items():
                self.accumulators[name].take(part)
            self.notes.update(notes)
            self._whole = True

    def steps(self) -> list[tuple[float, float]]:
        """Return the public (step, noise scale) of each."""
        grants = [accumulator.grant for accumulator in self.accumulators.values()]
        return [(grant.step, grant.noise_scale) for grant in grants]

    def close(self) -> list[NDArray[Any]]:
        """Publish all of them as they are, in steps: this is their opening."""
        return [accumulator.close() for accumulator in self.accumulators.values()]
