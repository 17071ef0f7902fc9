"""Tools that record all releases in a block, replay them on a neighbour, or replace them.

All hooks replace methods of `PrivacySession`, `Grant` and `SystemSource` while a ``with`` block
runs. They act on the whole process: use them in tests, one at a time, never in production.
"""

import itertools
import math
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from skdp.base import BaseDPEstimator
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import Bound
from skdp.privacy.gate.session import FlipGrant, Grant, PrivacySession
from skdp.privacy.noise.words import SeededSource, SystemSource
from skdp.privacy.streams.continual import Stream


def fresh(estimator, **params):
    """Return a clone with private noise and other parameters as given."""
    copy = clone(estimator)
    if "random_state" in copy.get_params(deep=False):
        copy.set_params(random_state=None)
    return copy.set_params(**params)


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]):
    """Replace a class's own method (a module's function) by ``make(original)`` for a block."""
    raw = vars(owner)[name]
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        setattr(owner, name, raw)


def change(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return after - before of two integer answers, modulo 2**64 as the gate adds them."""
    steps = after.reshape(-1).view(np.uint64) - before.reshape(-1).view(np.uint64)
    return steps.view(np.int64).reshape(before.shape).astype(np.float64)


@contextmanager
def null_release(*, run: bool = False):
    """Let every read return zeros: what comes out of a fit is then a function of public values.

    Parameters
    ----------
    run : bool, default=False
        Also run the private code and discard its result, so that its exceptions and warnings (which
        anybody can see) can be compared too.
    """

    def make(original):
        def read(self, answer, grant):
            if run:
                original(self, answer, grant)
            return grant.nothing()

        return read

    with replaced(PrivacySession, "_read", make):
        yield


@contextmanager
def fixed_noise(seed: int, *, scale_free: bool = False):
    """Make fits draw the same noise, from a keyed stream, without a warning or "SEEDED".

    Parameters
    ----------
    seed : int
        Key of the stream.
    scale_free : bool, default=False
        Leave the noise scale out of the key, so that fits of different scale get the same integers.
    """
    source = SeededSource(seed, "skdp.testing")

    def make_words(_):
        def words(_, *key):
            kept = tuple(part for part in key if not (scale_free and isinstance(part, float)))
            return source.words(*kept)

        return words

    # The warning about several epsilons depends on earlier fits, so it is off: fits are compared.
    alone = replaced(BaseDPEstimator, "_warn_of_search", lambda _: lambda *_: None)
    with alone, replaced(SystemSource, "words", make_words):
        yield


@contextmanager
def seeded_entropy(seed: int):
    """Replace the operating system's entropy by a seeded sequence: a program repeats its results.

    For statistical tests of code that draws private noise.

    Parameters
    ----------
    seed : int
        Seed of the sequence.
    """
    source, count = SeededSource(seed, "skdp.testing.sequence"), itertools.count()

    def make_words(_):
        return lambda _, *key: source.words(next(count))

    with replaced(SystemSource, "words", make_words):
        yield


# Transcripts: all that passed the gate in a block, recorded, and replayed on a neighbour.


@dataclass
class RecordedRelease:
    """One release with its exact private value, for tests only.

    Attributes
    ----------
    bound : Bound
        The public bound of the statistic.
    mechanism : str
        "gaussian", "laplace", "exponential", or "none (epsilon is infinite)", and notes.
    step, noise_scale : float
        Unit of the integers, standard deviation that is claimed.
    loss : Loss or None
        What the ledger charges; None if the data were read without a ledger line.
    exact : ndarray
        The exact answer in steps (int64), or the float answer where epsilon is infinite.
    total : ndarray or None
        The noisy answer in steps, before anything is done to it.
    value : ndarray, int or None
        What became public: the noisy array, or the index that was chosen.
    n_reads : int
        How often the data were read for it.
    serial : int
        Number of its ledger line.
    session : int
        Which session paid for it: 0 for the first that opened something in the block.
    stream : object or None
        An object shared by all releases that one ledger line pays for.
    """

    bound: Bound
    mechanism: str
    step: float
    noise_scale: float
    loss: Loss | None
    exact: np.ndarray
    total: Any = None
    value: Any = None
    n_reads: int = 0
    serial: int = 0
    session: int = 0
    stream: Any = field(default=None, repr=False)

    def residual(self) -> np.ndarray:
        """Return (answer - exact) / noise scale: standard normal (or Laplace) if all is well."""
        exact = np.asarray(self.exact, np.float64)
        if self.bound.symmetric:
            exact = (exact + exact.T) / 2
        return np.asarray((np.asarray(self.value) - exact * self.step) / self.noise_scale)


@dataclass
class Transcript:
    """Everything that passed the gate in one block.

    Attributes
    ----------
    openings : list of RecordedRelease
        In the order in which they became public.
    faults : list of str
        Reads before the charge, and reads after the release.
    public_words : list of ndarray
        Random words that were drawn for anything but noise: public starts.
    """

    openings: list[RecordedRelease] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    public_words: list[np.ndarray] = field(default_factory=list, repr=False)

    def __iter__(self):
        return iter(self.openings)

    def __len__(self):
        return len(self.openings)


class _Recorder:
    """Records every release; with a script, returns the answers of an earlier transcript."""

    def __init__(self, script: Transcript | None = None) -> None:
        self.transcript = Transcript()
        self.script = None if script is None else list(script.openings)
        self._starts = [] if script is None else list(script.public_words)
        self._in_noise = False
        self._pending: dict[Grant, RecordedRelease] = {}
        self._closed: set[Grant] = set()
        self._sessions: dict[PrivacySession, int] = {}

    @contextmanager
    def _noise(self):
        """Mark words that are drawn inside this block as noise, as opposed to public starts."""
        self._in_noise = True
        try:
            yield
        finally:
            self._in_noise = False

    def _opening(self, grant: Grant) -> RecordedRelease:
        if grant not in self._pending:
            ledger = grant._session.ledger
            loss = ledger[grant.serial].loss if grant.serial < len(ledger) else None
            exact = grant.nothing()
            self._pending[grant] = RecordedRelease(
                grant.bound, grant.mechanism, grant.step, grant.noise_scale, loss, exact,
                serial=grant.serial,
                session=self._sessions.setdefault(grant._session, len(self._sessions)),
            )  # fmt: skip
        return self._pending[grant]

    def _close(self, grant: Grant, total: Any, value: Any) -> Any:
        opening = self._opening(grant)
        del self._pending[grant]
        self._closed.add(grant)
        if opening.n_reads > 1 and "noise first" not in opening.mechanism:
            name, n = opening.bound.name, opening.n_reads
            self.transcript.faults.append(f"{name!r} was read {n} times for one opening")
        opening.total, opening.value = total, value
        index = len(self.transcript)
        self.transcript.openings.append(opening)
        return value if self.script is None else self._scripted(index, opening.bound).value

    def _scripted(self, index: int, bound: Bound) -> RecordedRelease:
        """Return what the first data set released in this place."""
        if index >= len(self.script) or self.script[index].bound != bound:
            raise AssertionError(
                f"the neighbour asks for release {index} {bound}, which the first data set did "
                "not: the sequence of releases depends on private data"
            )
        return self.script[index]

    # Hooks: each is given the method that it replaces, and then what that was called with.

    def read(self, original, session, answer, grant):
        name = grant.bound.name
        if grant in self._closed:
            self.transcript.faults.append(f"{name!r} was read after it was opened")
        opening = self._opening(grant)
        if opening.loss is None:
            self.transcript.faults.append(f"{name!r} was read before it was paid for")
        exact = original(session, answer, grant)
        opening.exact = opening.exact + exact if opening.n_reads else exact
        opening.n_reads += 1
        return exact

    def finish(self, original, grant, total):
        answer = original(grant, total)
        value = self._close(grant, np.array(total), answer.value)
        return answer._replace(value=np.array(value))

    def finish_flips(self, original, grant, total):
        """Record an array that was flipped: its noise is not added, so there is no total."""
        answer = original(grant, total)
        return answer._replace(value=self._close(grant, None, answer.value))

    def stream_sum(self, original, stream, exact, node):
        """Record each noisy sum of a stream; in a replay, hand out that of the first data set."""
        grant = stream._grant
        opening = self._opening(grant)
        del self._pending[grant]
        opening.exact, index = np.array(exact), len(self.transcript)
        total = original(stream, exact, node)
        if self.script is not None:
            total = self._scripted(index, opening.bound).total.copy()
        opening.total, opening.value = total, grant.decoded(total).value
        opening.stream = grant
        self.transcript.openings.append(opening)
        return total

    def choose(self, original, session, bounded, share):
        with self._noise():
            index = original(session, bounded, share)
        return self._close(list(self._pending)[-1], None, index)

    def draw(self, original, grant, *index):
        if self.script is not None:
            return grant.nothing()
        with self._noise():
            return original(grant, *index)

    def words(self, original, source, *key):
        """Log the words of public starts, and hand out the same ones in a replay."""
        take = original(source, *key)
        if self._in_noise:
            return take

        def logged(n):
            drawn = self._starts.pop(0) if self._starts else take(n)
            if len(drawn) != n:
                raise AssertionError("the random start depends on private data")
            self.transcript.public_words.append(drawn)
            return drawn

        return logged


def _hooked(hook: Callable[..., Any]):
    return lambda original: lambda *args, **named: hook(original, *args, **named)


@contextmanager
def _recording(recorder: _Recorder):
    with ExitStack() as stack:
        stack.enter_context(replaced(PrivacySession, "_read", _hooked(recorder.read)))
        stack.enter_context(replaced(PrivacySession, "choose", _hooked(recorder.choose)))
        stack.enter_context(replaced(Grant, "finish", _hooked(recorder.finish)))
        stack.enter_context(replaced(Grant, "draw", _hooked(recorder.draw)))
        stack.enter_context(replaced(FlipGrant, "finish", _hooked(recorder.finish_flips)))
        stack.enter_context(replaced(FlipGrant, "draw", _hooked(recorder.draw)))
        stack.enter_context(replaced(Stream, "_noised", _hooked(recorder.stream_sum)))
        stack.enter_context(replaced(SystemSource, "words", _hooked(recorder.words)))
        yield recorder.transcript


def record_transcript():
    """Record every release while the block runs.

    Yields
    ------
    transcript : Transcript
        Filled as the fit goes on. It holds exact private answers: keep it as secret as the data.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.testing import record_transcript
    >>> X = np.random.default_rng(0).standard_normal((5000, 3))
    >>> with record_transcript() as transcript:
    ...     pca = DPPCA(n_components=1, clip_norm=1.0).fit(X)
    >>> [opening.bound.name for opening in transcript] == [line.name for line in pca.releases_]
    True
    """
    return _recording(_Recorder())


def replay_answers(transcript: Transcript):
    """Run a fit on a neighbour *at the answers released to the first data set*, and record it.

    Random starts are repeated too: they are public, the same for both.

    Without this, an adaptive method requests other statistics on the neighbour, and the changes of
    later steps mean nothing.

    Parameters
    ----------
    transcript : Transcript
        Recorded on the first data set.

    Yields
    ------
    neighbour : Transcript
        The exact answers of the neighbour, next to the answers of the first data set.
    """
    return _recording(_Recorder(transcript))


def merge_streams(steps, transcript):
    """Put the audited openings of a stream together: their changes are one vector."""
    lines = {}
    for i, (step, opening) in enumerate(zip(steps, transcript, strict=False)):
        key = i if opening.stream is None else opening.stream
        before = lines[key].realised if key in lines else 0.0
        lines[key] = replace(step, realised=math.hypot(before, step.realised))
    return tuple(lines.values())
