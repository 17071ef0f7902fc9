"""Raise, kill, or let another thread or process step in at each line between charge and answer.

States of a fit: nothing charged; all of it charged; data read; number out; charge settled with what
was granted; receipt. Data are read only while the receipt of the session and all ledgers hold what
was granted. Who is stopped before has spent nothing, or, where nobody can tell, everything.
"""

import dis
import gc
import os
import shutil
import signal
import sys
import threading
import zlib
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import skdp
from skdp import DPPCA, DPPersonalizedRegressor, PrivacyError, PrivacyLedger, federated
from skdp.base import BaseDPEstimator, atomic
from skdp.federated import _messages as wire
from skdp.federated.config import InvalidMessageError
from skdp.model_selection import IndependentKFold, make_private_scorer, search_cost
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import SketchLaw
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger.scope import OPEN
from skdp.privacy.streams.checkpoints import StreamGroup, checkpoint, close, restore
from skdp.privacy.streams.continual import paid_stream
from skdp.privacy.streams.sketches import NoisyGroup, grant_sketches
from skdp.recommend import DPRecommender
from tools.federation import first_request

HOME = Path(skdp.__file__).parent
TRACED = (
    *(HOME / "privacy" / part for part in ("gate", "ledger", "streams")),
    *(HOME / "federated" / f"{name}.py" for name in ("_clients", "noise_parts", "aggregation")),
    HOME / "model_selection" / "_scorers.py",
    HOME / "base.py",
    HOME / "privacy" / "store.py",
)
SECONDS = 120  # until something that waits counts as a deadlock, on a busy machine too
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


# -- the injector -------------------------------------------------------------------------------


@cache
def _traced(code):
    return any(Path(code.co_filename).is_relative_to(part) for part in TRACED)


@cache
def _does_something(code, offset):
    """Whether an error can arise at the start of a line: not in `try`, nor where a `with` ends."""
    names = [(i.opname, i.argval) for i in dis.get_instructions(code) if i.offset >= offset][:3]
    return names[0][0] != "NOP" and names != [("LOAD_CONST", None)] * 3


class Injector:
    """Does `fault()` at one executed line: (code, line, which time), or notes all lines."""

    def __init__(self, at=None, fault=None):
        self.at, self.fault, self.seen, self.done = at, fault, Counter(), False

    def _enter(self, frame, event, arg):
        """With a place to strike, only its function is followed."""
        wanted = frame.f_code == self.at[0] if self.at else _traced(frame.f_code)
        return self._line if wanted else None

    def _line(self, frame, event, arg):
        if event != "line" or (self.at and frame.f_lineno != self.at[1]):
            return self._line
        if _does_something(frame.f_code, frame.f_lasti):
            if frame.f_code.co_name == "__del__":
                return None  # errors there are discarded
            place = frame.f_code, frame.f_lineno
            self.seen[place] += 1
            if (*place, self.seen[place]) == self.at:
                self.done = True
                sys.settrace(None)
                self.fault()
        return self._line

    @contextmanager
    def armed(self):
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield self
        finally:
            sys.settrace(before)

    def places(self, every, known=()):
        """Return the places to strike: first and last time of lines that are not `known`.

        Or one of each function, and of some where the functions are known.
        """
        lines, functions = {}, {code for code, _ in known}
        for (code, line), times in self.seen.items():
            if not (every and (code, line) in known):
                lines.setdefault(code, []).extend((code, line, n) for n in sorted({1, times}))
        if every:
            return [place for found in lines.values() for place in found]
        return [
            found[_number(code, len(lines)) % len(found)]
            for code, found in lines.items()
            if code not in functions or _number(code, len(lines)) % 16 == 0
        ]


def _number(code, salt):
    return zlib.crc32(f"{code.co_qualname}{salt}".encode())


def raising(error):
    def fault():
        raise error("struck")

    return fault


# -- releases: what fits and clients do between charge and answer --------------------------------


def sums(X, name="sums", **more):
    bound = Bound(name, (3,), 1.0, slack=0.0, l1=2.0, **more)
    return Bounded(bound, lambda step: np.rint(X.sum(axis=0) / step).astype(np.int64))


def accumulated(session, X):
    state = session.accumulate(sums(X).bound, 1.0)
    state.add(sums(X).answer)
    return state.open().value


def chosen(session, X):
    session.release(sums(X), 0.5)
    return session.choose(sums(X, "choice", linf=1.0), 0.5)


def flipped(session, X):
    bound = Bound("cells", (4, 3), 1.0, cells=1)
    ones = np.flatnonzero(X[:4] > 0).astype(np.int64)
    return session.release(Bounded(bound, lambda step: ones), 1.0).value.toarray()


def sketched(session, X):
    grants = grant_sketches(
        session, [sums(X, name, law=SketchLaw((20,))).bound for name in "ab"], [0.5, 0.5]
    )
    return [grant.open(sums(X).answer).value for grant in grants]


def grouped(session, X):
    group = NoisyGroup(session, [session.grant(sums(X, name).bound, 0.5) for name in "ab"], {})
    group.add({"a": sums(X).answer, "b": sums(X).answer}, rows=1)
    return group.close()


def streamed(session, X):
    stream = paid_stream(session, sums(X).bound, 1.0, 4)
    for _ in range(2):
        stream.add(sums(X))
        stream.open()
    return stream.answer().value


RELEASES = {
    "release": lambda session, X: session.release(sums(X), 1.0).value,
    "laplace": lambda session, X: session.release(sums(X), 1.0).value,
    "accumulate": accumulated,
    "choose": chosen,
    "flips": flipped,
    "sketches": sketched,
    "noise first": grouped,
    "stream": streamed,
}


class Releases(BaseDPEstimator):
    """A fit that makes one kind of release."""

    def __init__(self, kind, epsilon=0.3, delta=1e-6, adjacency="add_remove", random_state=None):
        self.kind, self.epsilon, self.delta = kind, epsilon, delta
        self.adjacency, self.random_state = adjacency, random_state

    _pure_dp = True

    @atomic
    def fit(self, X, y=None):
        session = self._open_session()
        return self._close_session(session, {"answer_": RELEASES[self.kind](session, X)})


class Other(Releases):
    """The fit of another program: its charge has to stay."""

    def __init__(
        self, kind="release", epsilon=0.2, delta=1e-6, adjacency="add_remove", random_state=None
    ):
        super().__init__(kind, epsilon, delta, adjacency, random_state)


class Scorer:
    """A private scorer; of the rows, whatever the model is."""

    def __init__(self):
        self.score = make_private_scorer(lambda model, X, y: X[:, 0], (0.0, 1.0), epsilon=0.3)

    def fit(self, X):
        self.score(None, X)


class Asked:
    """A client that is made, asked and closed."""

    def fit(self, X):
        request, make = requests("power method")
        client = make(X)
        client.respond(request)
        client.close()


def search():
    folds = {"cv": IndependentKFold(2), "scoring": Scorer().score}
    return GridSearchCV(Releases("release"), {"epsilon": [0.3]}, **folds)


MADE = {"DPPCA": lambda: DPPCA(1, center="none", epsilon=0.3), "scorer": Scorer, "asked": Asked,
        "search": search}  # fmt: skip
NAMES = {"scorer": "PrivateScorer", "asked": "PowerMethodClient",
         "search": "GridSearchCV (1 candidates)"}  # fmt: skip


def estimator(kind):
    if kind in MADE:
        return MADE[kind]()
    return Releases(kind, delta=0.0 if kind in ("laplace", "flips", "choose") else 1e-6)


DATA = (
    np.random.default_rng(0).standard_normal((12, 3)),
    np.vstack([np.zeros((6, 3)), np.full((6, 3), 1e6)]),
)


# -- what is seen of a run, and what has to hold --------------------------------------------------


@cache
def cost(losses):
    return accounting.epsilon_from_losses(losses, 1e-6) if losses else 0.0


def granted(session):
    return cost(accounting.compose(line.loss for line in session.ledger)) * (1 - 1e-9)


@contextmanager
def untraced():
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


@contextmanager
def watched(note, opened):
    """Call note(session, grant) in this thread just before data are read; note what is opened."""
    real, here = PrivacySession._read, threading.get_ident()
    made = PrivacySession.__init__

    def make(session, *args, **kwargs):
        made(session, *args, **kwargs)
        if threading.get_ident() == here:
            opened.append(session)

    def read(session, answer, grant):
        if threading.get_ident() == here:
            with untraced():
                note(session, grant)
        return real(session, answer, grant)

    PrivacySession._read, PrivacySession.__init__ = read, make
    try:
        yield
    finally:
        PrivacySession._read, PrivacySession.__init__ = real, made


@contextmanager
def time_limit():
    """Turn a deadlock into an error."""

    def late(*_):
        raise AssertionError("stuck: something waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Run:
    """What is struck while it runs, and what was seen of it."""

    reads, opened, error = (), (), None

    def note(self, session, grant):
        """Look at who has paid, just before data are read."""

    def go(self, injector):
        try:
            with time_limit(), watched(self.note, self.opened):
                self.run(injector)
        except BaseException as error:
            self.error = error

    def end(self):
        """Clean up for the next run after any interrupt."""
        self.error = None  # its traceback holds what was open


@cache
def _charged(path, **terms):
    """Make the file of a ledger that has a charge already, of which each fit gets a copy."""
    with PrivacyLedger(**terms, path=path):
        Other().fit(DATA[0])
    return path


class Fit(Run):
    """One fit in a ledger that has a charge already; what stands there when data are read."""

    def __init__(self, kind, path, X):
        terms = {"epsilon": 8.0, "delta": 1e-5, "adjacency": "add_remove", "unit": "row"}
        if path is not None and kind != "sketches":
            path = shutil.copyfile(_charged(Path(path).parent / "charged", **terms), path)
        self.ledger = PrivacyLedger(**terms, path=path)
        if path is None and kind != "sketches":  # which are the first of their ledger, or refused
            with self.ledger:
                Other().fit(X)
        self.before = self.ledger.entries
        self.kind, self.model, self.X, self.on_disk = kind, estimator(kind), X, path is not None
        self.name = NAMES.get(kind, type(self.model).__name__)
        self.whole = cost(search_cost(self.model).losses) if kind == "search" else 0.0
        self.reads, self.opened, self.others, self.outside = [], [], 0, False
        self.attributes = self.state()

    def fit(self):
        with self.ledger.charge(self.model) if self.whole else nullcontext():
            self.model.fit(self.X)

    def state(self):
        """Return what an estimator is, and is again after it failed; of a search what is ours."""
        found = vars(self.model)
        if isinstance(self.model, BaseDPEstimator):
            return dict(found)
        return {name: found[name] for name in ("fit", "_reservation_key") if name in found}

    def mine(self, name=None):
        name = name or self.name
        entries = self.ledger.entries[len(self.before) :]
        return [fit for fit in entries if fit.estimator == name]

    def note(self, session, grant):
        lines = [line.name for line in session.ledger]
        self.reads.append((session, grant.bound.name in lines and self.holds(session)))

    def holds(self, session):
        held = sum(cost(fit.losses) for fit in self.mine())
        return held >= max(granted(session), self.whole)

    def run(self, injector):
        with self.ledger:
            try:
                with injector.armed():
                    self.fit()
            finally:
                self.wait()

    def wait(self):
        """Wait for the other thread or process, around which the ledger is not open later."""

    def told(self):
        """Return all that may not depend on data."""
        entries = [(fit.estimator, fit.losses, fit.state) for fit in self.ledger.entries]
        return repr(self.error), sorted(vars(self.model)), entries, len(self.reads)

    def wrong(self):
        """Yield what does not hold after the run."""
        fitted = hasattr(self.model, "privacy_spent_")
        if not all(paid or self.outside for _, paid in self.reads):
            yield "unpaid: data were read before all had paid"
        if not self.outside and not all(self.holds(session) for session, _ in self.reads):
            yield "unpaid: the ledger holds less than was granted"
        if fitted and self.model.privacy_spent_.epsilon < max(map(granted, self.sessions())):
            yield "unpaid: the receipt holds less than was granted"
        if (
            self.ledger.entries[: len(self.before)] != self.before
            or len(self.mine("Other")) != self.others
        ):
            yield "lost: another charge has changed"
        if not fitted and self.state() != self.attributes:
            yield "half: the estimator is not as it was"
        noted = [key for session in self.opened for _, key in session.observer.charges]
        twice = self.error is not None and self.error.__context__ is not None
        ends = self.kind != "asked"  # a client may be asked again, until it is closed
        if ends and noted and not twice and any(fit.state == "open" for fit in self.mine()):
            yield "kept: the fit is over, and its whole charge stays"
        yield from self.again()

    def sessions(self):
        return [session for session, _ in self.reads]

    def again(self):
        """Yield what is wrong with the next fits: they go on, or are refused as they should be."""
        try:
            with time_limit(), self.ledger:
                self.fit()
                Other().fit(self.X)
        except PrivacyError:
            pass
        except BaseException as error:
            yield f"stuck: the next fit ends with {type(error).__name__}"

    def end(self):
        OPEN.pop(self.ledger._token, None)
        super().end()

    # -- who steps in --
    def other(self):
        Other().fit(self.X)
        self.others += 1

    def look(self):
        _ = self.ledger.spent, self.on_disk and (self.ledger.file_hash, self.ledger.history())

    def leave(self):
        self.outside = not self.mine()  # then the fit is none of this ledger
        self.ledger.__exit__(None, None, None)


class Block(Fit):
    """The same, struck also where the ledger is opened and closed."""

    def run(self, injector):
        with injector.armed(), self.ledger:
            self.fit()


class Client(Run):
    """A holder of data that is asked once: its own receipt is its ledger."""

    def __init__(self, kind, path, X):
        self.request, make = requests(kind)
        self.client = make(X)
        self.reads, self.opened, self.words = [], [], []

    def note(self, session, grant):
        lines = [line.name for line in session.ledger]
        self.reads.append(
            (grant, len(lines) > grant.serial and lines[grant.serial] == grant.bound.name)
        )

    def ask(self):
        self.words.append(self.client.respond(self.request))

    def run(self, injector):
        with injector.armed():
            self.ask()

    def told(self):
        return repr(self.error), len(self.reads), self.client.releases_

    def wrong(self):
        if not all(paid for _, paid in self.reads):
            yield "unpaid: data were read before the client had paid"
        if max(len(self.reads), len(self.words)) > len(self.client.releases_):
            yield "unpaid: more answers than lines of the receipt"
        try:
            with time_limit():
                self.ask()
                if self.reads:
                    yield "unpaid: the same request was answered twice"
        except (PrivacyError, InvalidMessageError):
            pass
        except BaseException as error:
            yield f"stuck: the next answer ends with {type(error).__name__}"

    def other(self):
        with suppress(InvalidMessageError):
            self.ask()

    def look(self):
        _ = self.client.privacy_spent_, self.client.releases_


class Member(Run):
    """A member of a secure sum: it is asked once, and shows one secret of each neighbour."""

    terms = b"run", federated.AggregationConfig(4, n_colluders=1, n_dropouts=1)

    def __init__(self, kind, path, X):
        self.words = sums(X).answer(1e-9).view(np.uint64)
        self.server, self.reads, self.shown = federated.AggregationServer(*self.terms), [], []
        responds = [self.respond, *[lambda question: self.words] * 3]
        self.members = [
            federated.AggregationClient(self.terms[0], number, self.terms[1], respond)
            for number, respond in enumerate(responds)
        ]

    def respond(self, question):
        self.reads.append(self.server.step)
        return self.words

    def handle(self, message):
        self.last = message
        answer = self.members[0].handle(message)
        self.shown += [answer] * (wire.message_kind(message) is wire.Kind.UNMASK)
        return answer

    def run(self, injector):
        messages = self.server.begin(b"question", 3)
        self.first = messages[0]
        while messages:
            for number, message in messages.items():
                if number:
                    answer = self.members[number].handle(message)
                else:
                    with injector.armed():
                        answer = self.handle(message)
                self.server.receive(number, answer)
            messages = self.server.advance()

    def told(self):
        return repr(self.error), len(self.reads), len(self.shown)

    def wrong(self):
        header, _ = wire.unpack_message(self.first)
        flags = wire.pack_flags(4, [0, 1, 2], [3])
        others = (
            self.last,  # once more, another set to unmask, and the whole step
            wire.pack_message(header._replace(kind=wire.Kind.UNMASK), flags),
            self.first,
        )
        for message in others:
            with suppress(InvalidMessageError):
                self.handle(message)
                if self.shown and message is others[2]:
                    yield "unpaid: a step that was unmasked begins again"
        if len(self.reads) > len(set(self.reads)) or len(self.shown) > 1:
            yield "unpaid: a step was answered twice"
        try:
            with time_limit():
                self.run(Injector())
        except BaseException as error:
            yield f"stuck: the next step ends with {type(error).__name__}"

    def other(self):
        with suppress(InvalidMessageError):
            self.handle(self.last)


class Kept(Run):
    """A stream in a file: no step is released twice, no act that was acknowledged is lost."""

    def __init__(self, kind, path, X):
        self.paths, self.X = [Path(f"{path}{name}") for name in ("", "-2")], X
        self.published, self.twice, self.acts = {}, False, 0
        session = Releases("stream")._checked_session()
        bounds = {"sums": sums(X).bound}
        self.group = StreamGroup.paid(session, bounds, {"sums": 1.0}, 20, mechanism="tree")

    def step(self, group):
        value = group.advance({"sums": sums(self.X)})["sums"].value.tobytes()
        self.twice |= self.published.setdefault(group.steps, value) != value
        self.acts = group.acts

    def acted(self):
        first, second = self.paths
        checkpoint(self.group, first)
        self.step(self.group)
        checkpoint(self.group, first)
        self.step(self.group)
        checkpoint(self.group, second)
        self.step(self.group)

    def run(self, injector):
        with injector.armed():
            self.acted()

    def told(self):
        return repr(self.error), self.acts

    def wrong(self):
        refused = []
        groups = [self.group]
        try:
            self.step(self.group)  # who goes on here ...
        except Exception as error:
            refused.append(str(error))
            if not isinstance(error, PrivacyError):
                yield f"stuck: the next step ends with {type(error).__name__}"
        done = self.acts
        close(self.group)
        for path in self.paths:  # ... and from the files
            try:
                groups.append(restore(path))
                if groups[-1].acts < done:
                    yield "lost: what was acknowledged is not in the file"
                self.step(groups[-1])
                close(groups[-1])
            except (PrivacyError, FileNotFoundError) as error:
                refused.append(str(error))
        if self.twice:
            yield "unpaid: one step was released twice, with other noise"
        if any("damaged" in text or "lacks line" in text for text in refused):
            yield "lost: the file cannot be read"


# -- faults ---------------------------------------------------------------------------------------


def raised(make, place, error):
    """Return what does not hold after an error, and what it told."""
    struck = [Injector(place, raising(error)) for _ in DATA]
    run, twin = [make(X) for X in DATA]
    run.go(struck[0])
    twin.go(struck[1])
    # How often a loop over other processes runs is up to them.
    if all(each.done for each in struck) and run.told() != twin.told():
        yield "told: what is seen depends on the data"
    yield from run.wrong()


def beside(make, place, what):
    """Return what does not hold after another thread stepped in."""
    run = make(DATA[0])
    errors = []

    def step_in():
        try:
            getattr(run, what)()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=step_in, daemon=True)

    def fault():
        thread.start()
        thread.join(0.02)  # it may have to wait for the line to be over

    def wait():
        if thread.ident is not None:
            thread.join(SECONDS / 2)

    run.wait = wait
    run.go(Injector(place, fault))
    wait()
    if thread.is_alive():
        yield "stuck: another thread waits for ever"
    for error in [*errors, *([run.error] if run.error else [])]:
        if not isinstance(error, PrivacyError | InvalidMessageError):
            yield f"stuck: {what} ends with {type(error).__name__}"
    yield from run.wrong()


def killed(make, place):
    """Return what the file does not hold after the process was killed."""
    run = make(DATA[0])
    reading, writing = os.pipe()
    if not (child := os.fork()):
        run.note = lambda session, grant: os.write(writing, b"R")
        run.go(Injector(place, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        read = pipe.read()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return
    mine = run.mine()
    if read and sum(cost(fit.losses) for fit in mine) < 0.29:
        yield "unpaid: killed after data were read, and nothing is charged"
    if run.ledger.entries[: len(run.before)] != run.before:
        yield "lost: another charge has changed"
    yield from run.again()


class Helper:
    """Another process, already running, which fits on request."""

    def __init__(self):
        self.pipe, theirs = get_context("fork").Pipe()
        self.process = get_context("fork").Process(target=self._serve, args=(theirs,), daemon=True)
        self.process.start()

    def _serve(self, pipe):
        while pipe.recv():
            try:
                Other().fit(DATA[0])
                pipe.send("")
            except BaseException as error:
                pipe.send(type(error).__name__)


def elsewhere(helper, make, place):
    """Return what does not hold after another process charged the same file."""
    run = make(DATA[0])

    def fault():
        helper.pipe.send("fit")
        helper.pipe.poll(0.02)  # it may have to wait for the line to be over

    injector = Injector(place, fault)
    run.wait = lambda: injector.done and helper.pipe.poll(SECONDS / 2)
    run.go(injector)
    if injector.done:
        if not helper.pipe.poll(SECONDS):
            yield "stuck: another process waits for ever"
            return
        said = helper.pipe.recv()
        run.others += not said
        if said not in ("", "PrivacyError"):
            yield f"stuck: another process ends with {said}"
    if run.error is not None and not isinstance(run.error, PrivacyError):
        yield f"stuck: the fit ends with {type(run.error).__name__}"
    yield from run.wrong()


# -- cases ----------------------------------------------------------------------------------------

CONFIG = federated.AggregationConfig(n_clients=3, n_colluders=1)


def _device(X):
    model, groups = DPPersonalizedRegressor(1), np.arange(len(X)) // 3
    return federated.PersonalizedClient(model, X, X[:, 0], CONFIG, groups=groups)


CLIENTS = {
    "power method": (
        federated.FederatedPowerMethod(DPPCA(1, clip_norm=1.0), CONFIG),
        lambda X: federated.PowerMethodClient(X, CONFIG, epsilon=1.0),
    ),
    "recommender": (
        federated.FederatedPowerMethod(DPRecommender(1), CONFIG),
        lambda X: federated.RecommenderClient((X > 0) * 1.0, CONFIG, epsilon=1.0),
    ),
    "personalized": (federated.FederatedRounds(DPPersonalizedRegressor(1), CONFIG), _device),
}


@cache
def requests(kind):
    """Return the first request of a server, and what makes a client."""
    server, make = CLIENTS[kind]
    return first_request(partial(server.fit, n_features=3)).encode(), make


ENDS = "opening and closing"
CASES = {
    **{(kind, store): (Fit, kind) for store in ("memory", "file") for kind in (*RELEASES, *MADE)},
    **{(ENDS, store): (Block, "release") for store in ("memory", "file")},
    ("stream", "checkpoint"): (Kept, "stream"),
    **{(kind, "client"): (Client, kind) for kind in CLIENTS},
    ("secure sum", "client"): (Member, "secure sum"),
}
FAULTS = {
    "error": partial(raised, error=RuntimeError),
    "interrupt": partial(raised, error=KeyboardInterrupt),
    "memory": partial(raised, error=MemoryError), "kill": killed,
    "thread fits": partial(beside, what="other"), "thread looks": partial(beside, what="look"),
    "thread leaves": partial(beside, what="leave"), "process fits": None,
}  # fmt: skip


def faults_of(run, store):
    """Return the names of the faults that a case can meet."""
    if run is Block:
        return ("error", "interrupt", "memory", *(["kill"] * (store == "file")), "thread looks")
    if run in (Kept, Member):
        return ("error", "interrupt", "memory", *(["thread fits"] * (run is Member)))
    if run is Client:
        return ("error", "interrupt", "memory", "thread fits", "thread looks")
    return [name for name in FAULTS if store == "file" or name not in ("kill", "process fits")]


@cache
def _known(path, *kinds):
    """Return the lines that some fits run through, which have cases of their own."""
    seen = Injector()
    for kind in kinds:
        Fit(kind, path and f"{path} {kind}", DATA[0]).go(seen)
    return seen.seen.keys()


def tried(case, folder, every):
    """Yield (fault, place, what is wrong) for the places of a case."""
    store, (run, arg) = case[1], CASES[case]
    numbers = iter(range(10**6))

    made = []

    def make(X):
        made.append(
            run(arg, f"{folder}/{next(numbers)}" if store in ("file", "checkpoint") else None, X)
        )
        return made[-1]

    for seen in (Injector(), Injector()):  # the first fills caches
        make(DATA[0]).go(seen)
        if made[-1].error:
            raise made[-1].error
    names = faults_of(run, store)
    helper = Helper() if "process fits" in names else None
    plain = case == ("release", "memory") or (every and (case[0] == "release" or run is not Fit))
    kinds = ("release", *["scorer"] * (case[0] == "search"))
    files = store == "file" and case[0] != "release"  # whose other lines are struck in memory
    known = () if plain else _known(f"{folder}/known" if files else None, *kinds)
    for number, place in enumerate(seen.places(every, known)):
        for name in names if every else [names[number % len(names)]]:
            fault = partial(elsewhere, helper) if name == "process fits" else FAULTS[name]
            yield name, place, list(fault(make, place))
            while made:
                made.pop().end()


def place_in_words(place):
    code, line, time = place
    return f"{Path(code.co_filename).relative_to(HOME)}:{line} {code.co_name} ({time})"


def _params():
    """Yield the release, in memory and in a file, and clients; deep: others; slow: all lines."""
    for case in CASES:
        first = case[0] == "release" or case[1] == "client" or case == (ENDS, "file")
        marks = [] if first else [pytest.mark.deep]
        yield pytest.param(case, False, marks=marks, id=" ".join(case))
        yield pytest.param(case, True, marks=pytest.mark.slow, id=" ".join(case) + " all lines")


@pytest.mark.parametrize(("case", "every"), list(_params()))
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # struck at the end
@pytest.mark.filterwarnings("ignore:One or more of the test scores:UserWarning")
@pytest.mark.filterwarnings("ignore:clones of one:skdp.exceptions.PrivacyWarning")  # a ledger left
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.FitFailedWarning")  # of a search
def test_a_fault_at_a_line(case, every):
    """No release without a charge, nothing lost, nothing revealed, and the next fit can go on."""
    with TemporaryDirectory() as folder, np.errstate():  # whose end a fault may have struck
        wrong = [
            f"{name} at {place_in_words(place)}: {what}"
            for name, place, found in tried(case, folder, every)
            for what in found
        ]
        gc.collect(1)  # what was struck at its end says so here; what is older is of other tests
    assert not wrong, "\n".join(wrong)
