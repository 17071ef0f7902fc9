"""Many releases of a growing matrix: the factorizer on streams that are paid once."""

import numpy as np

from skdp._streaming import StreamingMixin
from skdp._validation import check_int, check_option
from skdp.base import atomic
from skdp.decomposition._factorizer_layout import draw_maps, make_layout
from skdp.decomposition._factorizer_state import factorize, map_digest
from skdp.exceptions import PrivacyError


class StreamState:
    """The running state of many releases, with the interface of `RunningState`."""

    def __init__(self, group, layout, maps):
        self.group, self.layout, self.maps = group, layout, maps

    @property
    def rows_seen(self):
        return self.group.notes["rows_seen"]

    def add(self, query, rows=0):
        """Add the sketches of a query to the open step."""
        answers = {sketch.name: query.answer(sketch) for sketch in self.maps}
        self.group.add(answers, rows_seen=self.rows_seen + rows)


class ReleasesMixin(StreamingMixin):
    """`release` many times: correlated noise, checkpoints."""

    _secrets = ("_private", "_acknowledged", "_state", "_source", "_messages")

    def _check_releases(self):
        horizon = check_int(self, "max_releases", 1)
        mechanism = check_option(self, "mechanism", ("auto", "sqrt", "tree"))
        window = check_int(self, "window", 1, none=True)
        if window is not None and (window > horizon or mechanism == "sqrt"):
            raise ValueError(
                "'window' must be at most 'max_releases', and needs mechanism='tree' or 'auto'. "
                f"Got window={window!r}, max_releases={horizon!r}, mechanism={mechanism!r}."
            )
        if horizon > 1 and self.honest_servers is not None:
            raise ValueError("'honest_servers' is for a single release; use max_releases=1.")

    def _refuse_servers(self, name):
        if self.max_releases > 1:
            raise PrivacyError(f"{name} opens a state once for all; it needs max_releases=1.")

    def _stream_state(self):
        """Return the state of a stream of many releases, if one runs."""
        group = self._running_stream()
        if group is None:
            return None
        if self._state is None or self._state.group is not group:  # after a restore
            self._state = StreamState(group, *self._drawn_again(group))
        return self._state

    def _drawn_again(self, group):
        """Return layout and sketches of a stream; others than those it was paid for are refused.

        An isometry is made of floats: on another machine it may differ, and its norms with it.
        """
        layout = make_layout(self, self._shape(), self._unit(stream=True))
        maps = draw_maps(layout, self.sketch, group.sketches(), self.first_row)
        if map_digest(maps, left=True) != group.notes["digest"]:
            raise PrivacyError(
                "the sketches of this stream cannot be drawn again here: another machine or "
                "numerical library rounds otherwise. Go on where it began."
            )
        return layout, maps

    def _start_releases(self, session, layout, maps):
        """Pay for all releases; nothing is read."""
        bounds = [layout.unit.bound(sketch, random=layout.random) for sketch in maps]
        if self.sketch_seed is not None and any(bound.law is not None for bound in bounds):
            raise ValueError(
                "many releases of a random sketch need one of their own; use sketch_seed=None, or "
                f"sensitivity_mode='worst_case'. Got sketch_seed={self.sketch_seed!r} instead."
            )
        n = layout.shape[1]
        start = session.random_signs((n, min(n, self.n_components + 10)))
        notes = {"sketches": self._source.secret(), "rows_seen": 0, "start": start}
        notes["digest"] = map_digest(maps, left=True)
        notes["names"] = list(getattr(self, "feature_names_in_", ()))
        group = self._start_stream(session, bounds, layout.shares, notes, mechanism=self.mechanism,
                                   window=self.window)  # fmt: skip
        self._private = group
        self._state = StreamState(group, layout, maps)

    @atomic
    def _release_step(self):
        """Close the step, and factor the sum of all steps so far (or of the window)."""
        group = self._stream_state().group
        group.open()
        return self._keep_stream(group)

    def _drop_stream(self):
        super()._drop_stream()
        self._state = None

    def _publish(self, group):
        """Set the attributes of the last release."""
        layout, maps = self._drawn_again(group)
        answers = group.answers()
        noisy = [answers[sketch.name] for sketch in maps]
        factors = factorize(noisy, [maps], self.n_components, group.notes["start"])
        attributes = self._attributes(layout, factors)
        attributes["state_bytes_"] = sum(s.state_bytes for s in group.streams.values())
        attributes["n_releases_"] = group.steps
        if group.notes["names"] and not hasattr(self, "feature_names_in_"):
            self.feature_names_in_ = np.asarray(group.notes["names"], dtype=object)
        self.n_features_in_ = layout.shape[1]
        self._close_session(group.session, attributes)
