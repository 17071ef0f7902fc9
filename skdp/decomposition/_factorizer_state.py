"""What a factorizer keeps between calls and sends to servers, as plain data.

None of it is ever pickled, copied or printed. An estimator only gives parameters, and is not
changed.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace

import numpy as np

from skdp._limits import MEMORY
from skdp.answer import Answer
from skdp.data.products import IntegerSketch, SketchMap
from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.plain_data import pack, unpack
from skdp.privacy.streams import sketches
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.queries.sketches import SketchUnit
from skdp.solvers.linalg import with_signs
from skdp.solvers.sketching import factorize
from skdp.units import INTERVAL, unit_named

# What a factorizer will release: decided from parameters and public shapes alone.


_EACH = 8  # entries of a row of a sparse sketch
_FINE, _FINE_CORE = 64, 2048  # units of an entry of an isometry; of all on one side of a core


@dataclass(frozen=True)
class Layout:
    """The releases of one fit.

    Attributes
    ----------
    method : {"dense", "two_sketch", "three_sketch"}
        What is released: A (see `with_sum`); A F and S'A; or these and S'A T.
    shape : tuple of int
        Shape of A.
    sketch_size, core_size : int
        Columns of F, and of S (and T).
    unit : SketchUnit
        Privacy unit.
    random : bool
        Gaussian sketches are secret random bits of the mechanism.
    n_components : int
        Rank that is asked for.
    """

    method: str
    shape: tuple
    sketch_size: int
    core_size: int
    unit: SketchUnit
    random: bool
    n_components: int

    @property
    def most(self):
        """Largest Frobenius norm of A within its bounds; infinite without any."""
        (m, n), unit = self.shape, self.unit
        row = unit.clip_norm if unit.kind.by_rows else math.sqrt(n) * max(-unit.low, unit.high)
        return math.sqrt(m) * row

    @property
    def with_sum(self):
        """Whether the sum of the rows is released next to the rest.

        One row, or entry, moves it by its own change. Entries of one sign have a mean.
        """
        unit = self.unit
        return unit.kind.by_rows or (unit.bounded and unit.low * unit.high >= 0)

    def shares(self, budget):
        """Shares of the budget: about sqrt(m) : sqrt(n) gives the least error.

        k columns of A F are read off t noisy ones, at a loss of t / (t - k - 1). A core has few
        numbers, each a sum of many: 2% are enough, and 10% cost 3% of the error of an exact rank.
        The sum of m rows has as much noise as each row of A, so it shows their mean even if A is
        below the noise. The ratio of its noise to that of A is the largest singular value within
        the bounds over the noise edge of A at the whole budget.
        """
        sum_share = []
        if self.with_sum:
            edge = self.unit.change * sum(map(math.sqrt, self.shape))
            largest = self.most * (budget.pure_epsilon / math.sqrt(2) if budget.pure else budget.mu)
            ratio = (largest / edge) ** (1 if budget.pure else 2)
            sum_share = [min(max(0.02, 1 / (1 + ratio)), 0.8)]
        unspent = 1.0 - sum(sum_share)
        if self.method == "dense":
            return [unspent, *sum_share]
        sizes = zip(self.shape, (self.sketch_size, self.core_size), strict=True)
        m, n = (math.sqrt(side * t / max(t - self.n_components - 1, t / 4)) for side, t in sizes)
        core_share = [0.02 * unspent] if self.method == "three_sketch" else []
        unspent -= sum(core_share)
        first = unspent * m / (m + n)
        return [first, unspent - first, *core_share, *sum_share]


def sizes(estimator, shape, *, stream):
    """Return (method, sketch_size, core_size) for a public shape.

    Small sketches of a matrix in memory are twice as wide, which halves the part of its tail that
    they lose. Updates would take twice as long, and servers must agree whatever rows they hold.
    """
    (m, n), k, given = shape, int(estimator.n_components), estimator.sketch_size
    t, v = map(int, given) if np.ndim(given) else (int(given or max(4 * k, 32)), None)
    method = estimator.method
    if method == "auto":
        method = "dense" if 8 * m * n <= MEMORY or 2 * t >= n else "two_sketch"
    if given is None and not stream and 8 * 6 * t * (m + n) <= MEMORY:
        t *= 2
    v = v or 2 * t
    if method != "dense":
        t, v = min(t, n), min(v, m)
        if min(t, v) < k:
            raise ValueError(
                f"sketch_size=({t}, {v}) must be at least n_components={k}. Got {min(t, v)}."
            )
    return method, t, v


def make_layout(estimator, shape, unit):
    """Choose what is released, and refuse what has no bound."""
    method, t, v = sizes(estimator, shape, stream=unit.stream)
    random = estimator.sensitivity_mode != "worst_case" and method != "dense"
    if random:
        _check_random(estimator, unit)
    return Layout(method, tuple(shape), t, v, unit, random, int(estimator.n_components))


def budget_kinds(estimator):
    """Return the kinds of budgets that fits may have, by their shape; "sketch" of random ones.

    Fits that share a secret sketch share random bits, so their losses do not add up.
    """
    secret = estimator.sensitivity_mode != "worst_case" and estimator.sketch == "gaussian"
    sketches = "sketch" if secret else "gaussian"
    whole = "pure" if offers_pure_dp(estimator) else "gaussian"
    ways = {"dense": {whole}, "auto": {whole, sketches}}
    return tuple(sorted(ways.get(estimator.method, {sketches})))


def offers_pure_dp(estimator):
    """Whether a fit may release all entries with Laplace noise, as one of them changes.

    Its variance is 2 / epsilon^2, where Gaussian noise has 8 to 14 times as much at delta=1e-6.
    """
    return estimator._protects.bound is INTERVAL and estimator.method in ("auto", "dense")


def _check_random(estimator, unit):
    """Refuse units for which a random sketch has no bound."""
    kind = estimator.sketch
    reason = unit.refusal(kind)
    if reason is not None:
        raise ValueError(
            f"sensitivity_mode={estimator.sensitivity_mode!r} has no bound for sketch={kind!r} and "
            f"privacy_unit={unit.name!r}: {reason}. Use sketch='gaussian', or sensitivity_mode="
            "'worst_case', which takes exact norms."
        )
    if estimator.sensitivity_mode == "oblivious" or kind in ("sparse", "srht"):
        return  # for single entries the norms of rows of the sketch bound the change
    if unit.stream:
        raise ValueError(
            "sensitivity_mode='random' counts the sketch as secret noise, and the data arrive "
            "after it is drawn. Use sensitivity_mode='worst_case' (single entries: with "
            "sketch='sparse' at no cost), or declare with sensitivity_mode='oblivious' that the "
            "data do not depend on the sketch in any way. Got 'random'."
        )


def draw_maps(layout, kind, source, row_offset=0):
    """Draw the sketches of a layout: SketchMaps in the order of the shares.

    Rows of S are drawn for the rows of A that start at `row_offset`: each server has its own.
    """
    ones = IntegerSketch("ones", 1, 1.0, np.ones((layout.shape[0], 1), np.int64))
    sums = [SketchMap("row_sum", layout.shape, ones)] if layout.with_sum else []
    if layout.method == "dense":
        return [SketchMap("full_matrix", layout.shape), *sums]
    m, n = layout.shape
    F = draw_sketch(source, "right", kind, n, layout.sketch_size)
    S = draw_sketch(source, f"left {row_offset}", kind, m, layout.core_size)
    maps = [
        SketchMap("right_sketch", layout.shape, None, F),
        SketchMap("left_sketch", layout.shape, S, None),
    ]
    if layout.method == "three_sketch":
        S = draw_sketch(source, f"core, left {row_offset}", kind, m, layout.core_size, coarse=True)
        T = draw_sketch(source, "core, right", kind, n, min(layout.core_size, n), coarse=True)
        maps.append(SketchMap("core_sketch", layout.shape, S, T))
    return maps + sums


def draw_sketch(source, name, kind, n, size, *, coarse=False):
    """Draw one n x size sketch."""
    if kind == "sparse":
        each = min(_EACH, size)
        positions, signs = source.sparse(name, n, size, each)
        return IntegerSketch(kind, size, math.sqrt(each), None, positions, signs)
    if kind == "srht":
        return IntegerSketch(kind, size, math.sqrt(size), source.hadamard(name, n, size))
    matrix, deviation = source.gaussian(name, (n, size), coarse=coarse)
    if kind == "isometry":
        # A is cut to whole numbers, which both sides of a core multiply: at worst by the units
        # times n, so that longer sides have fewer. Rounding at one unit costs 4% of the norm.
        most = max(0, math.floor(math.log2(_FINE_CORE / n)))
        units = 2 ** min(int(math.log2(_FINE)), most) if coarse else _FINE
        Q = np.linalg.qr(matrix.astype(np.float64))[0]
        matrix = np.rint(units * math.sqrt(n) * Q).astype(np.int64)
        return IntegerSketch(kind, size, units * math.sqrt(size), matrix)
    return IntegerSketch(kind, size, deviation * math.sqrt(size), matrix)


def map_digest(maps, *, left=False):
    """Return a name for the sketches that two states must share: those of the right side.

    `left`: those of both sides, for a state that goes on elsewhere.
    """
    names = hashlib.sha256()
    for sketch in maps:
        names.update(repr((sketch.name, sketch.scale)).encode())
        if sketch.right is not None:
            names.update(np.ascontiguousarray(sketch.right.integers()).tobytes())
        if left and sketch.left is not None:
            names.update(np.ascontiguousarray(sketch.left.integers()).tobytes())
    return names.hexdigest()[:32]


def known_sides(maps_by_rows):
    """Return F and S, and both sides of a core, as floats: none where A itself is released.

    The sketches of the rows of each server come in the order of the rows.
    """
    first = [sketch for sketch in maps_by_rows[0] if sketch.name != "row_sum"]
    right = [sketch.right.real() for sketch in first if sketch.right is not None]
    left = [np.vstack([maps[i].left.real() for maps in maps_by_rows]) for i in range(1, len(first))]
    return tuple(right[:1] + left + right[1:])


# Noisy states of servers: as messages, merged, and what they cost together. All is public.


VERSION = 3
_MAGIC = b"skdp.factorizer\n"


@dataclass(frozen=True, eq=False)
class NoisyState:
    """Noisy sketches of one server: what a message holds. Everything in it is public."""

    method: str
    shape: tuple
    row_offset: int
    digest: str
    steps: list
    variances: list
    arrays: list = field(repr=False)
    n_honest_servers: int | None = None
    receipts: list = field(default_factory=list)

    @property
    def protects(self):
        """The neighbour relation: unit, adjacency, and the caller's bound."""
        receipt = self.receipts[0]
        return receipt["unit"], receipt["adjacency"], receipt["sensitivity"]

    @property
    def forms(self):
        """Shapes of the arrays; the first has a row for each row of A, which is left out."""
        return [array.shape[i == 0 :] for i, array in enumerate(self.arrays)]

    def fingerprint(self):
        """Return a name of the opened numbers (never of a part of the noise)."""
        return hashlib.sha256(b"".join(a.tobytes() for a in self.arrays)).hexdigest()

    def to_bytes(self):
        """Write a message: a magic line, a header, integers, and a checksum."""
        message = _MAGIC + pack(dict(vars(self), version=VERSION))
        return message + hashlib.sha256(message).digest()

    @staticmethod
    def from_bytes(message):
        """Read a message; a damaged or foreign one is a ValueError."""
        message = bytes(message)
        size = hashlib.sha256().digest_size
        body, checksum = message[:-size], message[-size:]
        if not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != checksum:
            raise ValueError("the message is damaged or was not made by DPLowRankFactorizer.")
        header = unpack(body[len(_MAGIC) :])
        known = {field.name for field in fields(NoisyState)}
        if header.pop("version", None) != VERSION or set(header) != known:
            raise ValueError("the message is of another version; use one version on all servers.")
        paid = [receipt["ledger"] for receipt in header["receipts"]]
        if header["n_honest_servers"] is not None or len(paid) != 1 or not paid[0]:
            raise ValueError("the message has no receipt, or only a part of the noise.")
        header["shape"] = tuple(header["shape"])
        state = NoisyState(**header)
        with suppress(AttributeError, TypeError, ValueError):  # of other types
            if _is_sound(state):
                return state
        raise ValueError("the message holds other numbers than a server sends.")


def _is_sound(state):
    """Whether arrays, steps and variances of a message are what can be added and factored.

    A server's own state is opened next to them, so that no later error may come of them: numbers
    are so small that their squares do not overflow.
    """
    first, *_ = arrays = state.arrays
    places = (*state.shape, state.row_offset)
    return (
        len(places) == 3
        and all(type(place) is int and place >= 0 for place in places)
        and len(arrays) == len(state.steps) == len(state.variances)
        and all(0 <= step < 1e100 for step in state.steps)
        and all(0 <= variance < 1e200 for variance in state.variances)
        and all(a.ndim == 2 and bool((np.abs(a) < 1e100).all()) for a in arrays)
        and all(a.dtype.kind == "fi"[step > 0] for a, step in zip(arrays, state.steps, strict=True))
        and len(first) == state.shape[0]
    )


def contract(unit):
    """Return the caller's bound if it is part of the neighbour relation, else None."""
    return unit.sensitivity if unit.kind.contract else None


def header_of(running):
    """Return what others may know before a state is opened: a NoisyState with zeros in it."""
    session, server = running.session, running.server
    receipt = sketches.receipt_state(session.spent(), session.ledger)
    receipt["sensitivity"] = contract(running.layout.unit)
    steps, scales = zip(*running.group.steps(), strict=True)
    return NoisyState(
        running.layout.method, running.layout.shape, server.row_offset, map_digest(running.maps),
        list(steps), [s**2 for s in scales],
        [np.broadcast_to(np.int64(0), sketch.out_shape) for sketch in running.maps],
        server.n_honest_servers, [receipt],
    )  # fmt: skip


def noisy_state(running):
    """Open a state: a NoisyState, all of it public (or one part of a sum)."""
    return replace(header_of(running), arrays=running.group.close())


def check_alike(state, other):
    """Refuse to merge states of other sketches, shapes or noise."""
    for name, remedy in (
        ("method", "one 'method'"),
        ("digest", "for_server() of one factorizer, or one 'sketch_seed'"),
        ("n_honest_servers", "states that are all noisy, or all parts of the noise"),
        ("protects", "one 'privacy_unit', 'adjacency' and 'unit_bound'"),
    ):
        if getattr(state, name) != getattr(other, name):
            raise ValueError(f"states with different {name} cannot be merged; use {remedy}.")
    same_rows = state.row_offset != other.row_offset or state.shape == other.shape
    if state.shape[1] != other.shape[1] or state.forms != other.forms or not same_rows:
        raise ValueError(f"states of shapes {state.shape} and {other.shape} cannot be merged.")


def check_message(state, message, unit):
    """Refuse the header of a state that cannot be added, before that state is opened."""
    own = (unit.name, unit.adjacency, contract(unit))
    for header in (message, *(before for _, before in state.released)):
        if header.protects != own:
            raise ValueError(
                "states with different privacy units or bounds cannot be merged; use one "
                f"'privacy_unit', 'adjacency' and 'unit_bound'. Got {header.protects}, and "
                f"{own} here."
            )
    for other in state.received:
        check_alike(other, message)
    if state.received:
        receipt_of([*state.received, message])


def check_new(states, message):
    """Refuse a message that was merged already: noise never repeats."""
    for state in states:
        same = zip(state.arrays, message.arrays, strict=True)
        if any(state.variances) and all(np.array_equal(a, b) for a, b in same):
            raise ValueError("this state was merged already: its data would count twice.")


def check_complete(states):
    """Refuse states that do not match, or rows that are missing, before anything is opened."""
    for other in states[1:]:
        check_alike(states[0], other)
    rows, place = {state.row_offset: state.shape[0] for state in states}, 0
    for first in sorted(rows):
        if first != place:
            raise ValueError(f"rows {place} to {first - 1} are missing, or at several servers.")
        place += rows[first]


def added(states):
    """Add up states of servers: those of the same rows first, then blocks of rows."""
    blocks = {}
    for state in states:
        values = [a * (step or 1.0) for a, step in zip(state.arrays, state.steps, strict=True)]
        nothing = [0.0] * len(values)
        rows, *before = blocks.get(state.row_offset, (state.shape[0], nothing, nothing))
        both = zip(before, (values, state.variances), strict=True)
        blocks[state.row_offset] = (rows, *([a + b for a, b in zip(*x, strict=True)] for x in both))
    return [(first, *blocks[first]) for first in sorted(blocks)]


def stacked(blocks):
    """Return the released sketches of all rows as answers: the first one has a row for each."""
    out = []
    for i in range(len(blocks[0][2])):
        values, variances = [b[2][i] for b in blocks], [b[3][i] for b in blocks]
        if i == 0:
            mean = np.average(variances, weights=[b[1] for b in blocks])
            out.append(Answer(np.vstack(values), math.sqrt(mean)))
        else:
            out.append(Answer(sum(values), math.sqrt(sum(variances))))
    return out


def receipt_of(states):
    """Return (receipt, ledger) of opened states; PrivacyError where none is known."""
    blocks, end = [], -math.inf
    for state in sorted(states, key=lambda state: state.row_offset):
        if state.row_offset >= end:  # else they may hold parts of one row
            blocks.append([])
        blocks[-1].append(state.receipts)
        end = max(end, state.row_offset + state.shape[0])
    return sketches.merged_receipt(blocks, clipped_rows=unit_named(states[0].protects[0]).by_rows)


def check_parts(states):
    """Refuse headers of states that are no parts of one sum, before any is closed."""
    if not states:
        raise ValueError("a secure sum needs at least one server.")
    first = states[0]
    for other in states[1:]:
        check_alike(first, other)
        same_rows = other.row_offset == first.row_offset
        if other.steps != first.steps or other.shape != first.shape or not same_rows:
            raise ValueError("parts of a secure sum need equal steps and shapes.")
    if first.n_honest_servers is None:
        raise PrivacyError(
            "a secure sum adds parts of the noise: use servers of for_server(n_honest_servers=...)."
        )
    if len(states) < first.n_honest_servers:
        raise PrivacyError("fewer servers than 'n_honest_servers': the sum has too little noise.")
    receipt_of([replace(first, receipts=[r for state in states for r in state.receipts])])


def secure_total(states, aggregator):
    """Add parts through an aggregator: list of equal int64 arrays -> their sum modulo 2**64."""
    first = states[0]
    flat = [np.concatenate([a.reshape(-1) for a in state.arrays]) for state in states]
    total = np.asarray(aggregator(flat))
    if total.dtype != np.int64 or total.shape != flat[0].shape:
        raise ValueError("the aggregator must return an int64 array of the shape of its inputs.")
    parts = np.split(total, np.cumsum([a.size for a in first.arrays])[:-1])
    arrays = [part.reshape(a.shape) for part, a in zip(parts, first.arrays, strict=True)]
    more = len(states) / first.n_honest_servers
    variances = [more * v for v in first.variances]
    receipts = [r for state in states for r in state.receipts]
    return replace(first, arrays=arrays, variances=variances, receipts=receipts)


@dataclass(frozen=True)
class Server:
    """The part of one server among several.

    Attributes
    ----------
    row_offset : int
        Place of its first row among the rows of all.
    n_honest_servers : int or None
        Servers that are sure to add their part of the noise; None: each adds all of it.
    sketch_seed : int or None
        Public seed of the sketches that all share; None: those of `FactorizerState.source`.
    """

    row_offset: int = 0
    n_honest_servers: int | None = None
    sketch_seed: int | None = None


@dataclass(frozen=True, repr=False)
class Running:
    """Sketches that were paid for and take data.

    Attributes
    ----------
    group : NoisyGroup or StreamGroup
        For one release, or for many. Its notes hold the parameters that it was started with, and
        how many rows were added.
    layout : Layout
        What is released.
    maps : list of SketchMap
        The sketches.
    server : Server
        Which part of the matrix, and of the noise, they hold.
    """

    group: sketches.NoisyGroup | StreamGroup
    layout: Layout
    maps: list
    server: Server = field(default_factory=Server)

    @property
    def session(self):
        """Who paid."""
        return self.group.session

    def add(self, query, rows=0):
        """Add the sketches of a query (updates, or a block of so many rows)."""
        answers = {sketch.name: query.answer(sketch) for sketch in self.maps}
        self.group.add(answers, rows_seen=self.group.notes["rows_seen"] + rows)


@dataclass(frozen=True)
class FactorizerState:
    """The state of a factorizer; each verb replaces it by the next.

    Attributes
    ----------
    running : Running or None
        What takes data.
    source : SketchSource or None
        Where the sketches come from, which servers share.
    received : tuple of NoisyState
        Opened states of other servers.
    released : tuple of (str or None, NoisyState)
        Fingerprints and headers of states that were opened: for others, or in earlier releases.
    """

    running: Running | None = field(default=None, repr=False)
    source: sketches.SketchSource | None = field(default=None, repr=False)
    received: tuple = field(default=(), repr=False)
    released: tuple = field(default=(), repr=False)


def begin(estimator, session, shape):
    """Pay for a stream of a matrix of a shape, draw sketches and noise: the first state.

    Nothing is read. `estimator` gives its parameters, and the source of the sketches if it has one.
    """
    layout = make_layout(estimator, shape, estimator._unit(stream=True))
    source, server = shared_source(estimator, session), estimator._server or Server()
    maps = draw_maps(layout, estimator.sketch, source.shared_with(session), server.row_offset)
    bounds = [layout.unit.bound(sketch, random=layout.random) for sketch in maps]
    shares = layout.shares(session.budget)
    if estimator.max_releases > 1:  # all are paid for now
        notes = {
            "sketches": source.secret(), "rows_seen": 0, "start": random_start(session, layout),
            "digest": map_digest(maps, left=True),
            "names": list(getattr(estimator, "feature_names_in_", ())),
        }  # fmt: skip
        options = {"mechanism": estimator.mechanism, "window": estimator.window}
        group = estimator._start_stream(session, bounds, shares, notes, **options)
    else:
        grants = sketches.grant_sketches(
            session, bounds, shares,
            parties=server.n_honest_servers or 0, shared=estimator._server is not None,
            note=", noise first",
        )  # fmt: skip
        notes = {"rows_seen": 0, "params": estimator._plain_params()}
        group = sketches.NoisyGroup(session, grants, notes)
    return replace(estimator._state, running=Running(group, layout, maps, server), source=source)


def shared_source(estimator, session):
    """Return where the sketches come from: of another server, of a public seed, or a new secret."""
    server = estimator._server or Server()
    return estimator._state.source or sketches.SketchSource.of(session, server.sketch_seed)


def resumed(estimator, group):
    """Return what runs on a stream of many releases: its sketches are drawn again.

    Sketches other than the charged ones are refused: an isometry is computed in floats, so on
    another machine it may differ, and so may its norms.
    """
    layout = make_layout(estimator, estimator._shape(), estimator._unit(stream=True))
    maps = draw_maps(layout, estimator.sketch, group.sketches())
    if map_digest(maps, left=True) != group.notes["digest"]:
        raise PrivacyError(
            "the sketches of this stream cannot be drawn again here, because this machine or "
            "numerical library rounds differently. Continue on the machine where it began."
        )
    return Running(group, layout, maps)


def last_release(running):
    """Factor the last release of a stream of many: its fitted attributes."""
    group = running.group
    answers = group.answers()
    noisy = [answers[sketch.name] for sketch in running.maps]
    attributes = factored(running.layout, noisy, [running.maps], group.notes["start"])
    attributes["state_bytes_"] = sum(stream.state_bytes for stream in group.streams.values())
    return attributes | {"n_stream_releases_": group.steps}


def merged(estimator, session, noisy):
    """Factor opened states, each of some rows, of one server or of several: fitted attributes."""
    n, blocks = noisy[0].shape[1], added(noisy)
    unit = estimator._unit(stream=True)
    source = shared_source(estimator, session).shared_with(session)
    maps = [
        draw_maps(make_layout(estimator, (m, n), unit), estimator.sketch, source, first)
        for first, m, *_ in blocks
    ]
    if map_digest(maps[0]) != noisy[0].digest:
        raise ValueError(
            "the messages come from other sketches; use the servers' 'method', 'sketch' and "
            "'sketch_size', and for_server() with their 'sketch_seed'."
        )
    layout = make_layout(estimator, (sum(block[1] for block in blocks), n), unit)
    answers = stacked(blocks)
    attributes = factored(layout, answers, maps, random_start(session, layout))
    return attributes | {
        "server_privacy_spent_": tuple(r for state in noisy for r in state.receipts)
    }


def random_start(session, layout):
    """Return the public random start of a factorisation."""
    n = layout.shape[1]
    return session.random_signs((n, min(n, layout.n_components + 10)))


def factored(layout, noisy, maps_by_rows, start):
    """Factor released sketches: the fitted attributes, by post-processing."""
    sides = known_sides(maps_by_rows)
    factors = factorize(noisy, sides, layout.n_components, start, layout.most)
    left, components = with_signs(factors.left, factors.right.T)
    dense = layout.method == "dense"
    t, v = layout.shape[::-1] if dense else (layout.sketch_size, layout.core_size)
    return {
        "left_singular_vectors_": left,
        "singular_values_": factors.values,
        "components_": components,
        "rank_": factors.rank,
        "method_": layout.method,
        "sketch_size_": t,
        "core_size_": v,
        "state_bytes_": 8 * sum(answer.value.size for answer in noisy),
    }


OTHER_BLOCKS = (
    "or a memory map, or (for fit) a list of files: a sketch has a row for each row of X. For "
    "other blocks set 'matrix_shape', call partial_fit with each block in order, then release()"
)


def _has_shape(estimator):
    if estimator.matrix_shape is None:
        raise AttributeError("a stream needs 'matrix_shape', the public shape of the matrix")
    return True
