"""What a factorizer keeps between calls, as plain data, and the steps from one state to the next.

None of it is ever pickled, copied or shown. An estimator gives parameters; nothing is set on it.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from skdp.decomposition._factorizer_layout import (
    Layout,
    draw_maps,
    known_sides,
    make_layout,
    map_digest,
)
from skdp.decomposition._factorizer_messages import added, stacked
from skdp.exceptions import PrivacyError
from skdp.privacy.streams.groups import StreamGroup
from skdp.privacy.streams.noise_first import NoisyGroup
from skdp.privacy.streams.sketch_draws import SketchSource
from skdp.privacy.streams.sketches import grant_sketches
from skdp.solvers.linalg import fix_signs
from skdp.solvers.sketching import factorize


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
    """

    group: NoisyGroup | StreamGroup
    layout: Layout
    maps: list

    @property
    def session(self):
        """Who paid."""
        return self.group.session

    @property
    def rows_seen(self):
        """How many rows were added."""
        return self.group.notes["rows_seen"]

    def add(self, query, rows=0):
        """Add the sketches of a query (updates, or a block of so many rows)."""
        answers = {sketch.name: query.answer(sketch) for sketch in self.maps}
        self.group.add(answers, rows_seen=self.rows_seen + rows)


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
    sent : tuple of (str or None, NoisyState)
        Fingerprints and headers of states that were opened for others.
    """

    running: Running | None = field(default=None, repr=False)
    source: SketchSource | None = field(default=None, repr=False)
    received: tuple = field(default=(), repr=False)
    sent: tuple = field(default=(), repr=False)


def begin(estimator, session, shape):
    """Pay for a stream of a matrix of a shape, draw sketches and noise: the first state.

    Nothing is read. `estimator` gives its parameters, and the source of the sketches if it has one.
    """
    layout = make_layout(estimator, shape, estimator._unit(stream=True))
    source = estimator._state.source
    shared = source is not None or estimator.sketch_seed is not None
    source = source or SketchSource.of(session, estimator.sketch_seed)
    maps = draw_maps(layout, estimator.sketch, source.shared_with(session), estimator.first_row)
    bounds = [layout.unit.bound(sketch, random=layout.random) for sketch in maps]
    if estimator.max_releases > 1:
        group = _for_many_releases(estimator, session, layout, maps, bounds, source)
    else:
        parties, note = estimator.honest_servers or 0, ", noise first"
        grants = grant_sketches(
            session, bounds, layout.shares, parties=parties, shared=shared, note=note
        )
        notes = {"rows_seen": 0, "params": estimator._plain_params()}
        group = NoisyGroup(session, grants, notes)
    return replace(estimator._state, running=Running(group, layout, maps), source=source)


def _for_many_releases(estimator, session, layout, maps, bounds, source):
    """Pay for all releases of a stream."""
    if estimator.sketch_seed is not None and any(bound.law is not None for bound in bounds):
        raise ValueError(
            "many releases of a random sketch need one of their own; use sketch_seed=None, or "
            "sensitivity_mode='worst_case'. Got "
            f"sketch_seed={estimator.sketch_seed!r} instead."
        )
    notes = {
        "sketches": source.secret(),
        "rows_seen": 0,
        "start": random_start(session, layout),
        "digest": map_digest(maps, left=True),
        "names": list(getattr(estimator, "feature_names_in_", ())),
    }
    options = {"mechanism": estimator.mechanism, "window": estimator.window}
    return estimator._start_stream(session, bounds, layout.shares, notes, **options)


def resumed(estimator, group):
    """Return what runs on a stream of many releases: its sketches are drawn again.

    Others than those it was paid for are refused: an isometry is made of floats, so that on another
    machine it may differ, and its norms with it.
    """
    layout = make_layout(estimator, estimator._shape(), estimator._unit(stream=True))
    maps = draw_maps(layout, estimator.sketch, group.sketches(), estimator.first_row)
    if map_digest(maps, left=True) != group.notes["digest"]:
        raise PrivacyError(
            "the sketches of this stream cannot be drawn again here: another machine or "
            "numerical library rounds otherwise. Go on where it began."
        )
    return Running(group, layout, maps)


def last_release(running):
    """Factor the last release of a stream of many: its fitted attributes."""
    group = running.group
    answers = group.answers()
    noisy = [answers[sketch.name] for sketch in running.maps]
    attributes = factored(running.layout, noisy, [running.maps], group.notes["start"])
    attributes["state_bytes_"] = sum(stream.state_bytes for stream in group.streams.values())
    return attributes | {"n_releases_": group.steps}


def merged(estimator, session, noisy):
    """Factor opened states, each of some rows, of one server or of several: fitted attributes."""
    n, blocks = noisy[0].shape[1], added(noisy)
    unit = estimator._unit(stream=True)
    source = estimator._state.source or SketchSource.of(session, estimator.sketch_seed)
    source = source.shared_with(session)
    maps = [
        draw_maps(make_layout(estimator, (m, n), unit), estimator.sketch, source, first)
        for first, m, *_ in blocks
    ]
    if map_digest(maps[0]) != noisy[0].digest:
        raise ValueError(
            "the messages come from other sketches; use the servers' 'method', 'sketch', "
            "'sketch_size', 'core_size' and 'sketch_seed', or for_server()."
        )
    layout = make_layout(estimator, (sum(block[1] for block in blocks), n), unit)
    answers = stacked(layout.method, blocks)
    attributes = factored(layout, answers, maps, random_start(session, layout))
    return attributes | {"server_receipts_": tuple(r for state in noisy for r in state.receipts)}


def random_start(session, layout):
    """Return the public random start of a factorisation."""
    n = layout.shape[1]
    return session.random_signs((n, min(n, layout.n_components + 10)))


def factored(layout, noisy, maps_by_rows, start):
    """Factor released sketches: the fitted attributes. All of it is free."""
    factors = factorize(noisy, known_sides(maps_by_rows), layout.n_components, start)
    components = fix_signs(np.ascontiguousarray(factors.right))
    turned = np.einsum("ij,ij->i", components, factors.right) < 0
    dense = layout.method == "dense"
    m, n = layout.shape
    t, v = (n, m) if dense else (layout.sketch_size, layout.core_size)
    entries = m * n if dense else m * t + v * n
    if layout.method == "three_sketch":
        entries += v * min(v, n)
    return {
        "left_": factors.left * np.where(turned, -1.0, 1.0),
        "singular_values_": factors.values,
        "components_": components,
        "rank_": factors.rank,
        "method_": layout.method,
        "sketch_size_": t,
        "core_size_": v,
        "state_bytes_": 8 * entries,
    }
