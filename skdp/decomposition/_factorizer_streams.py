"""Streams of updates, and the single release of a factorizer."""

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_array, validate_data

from skdp._inputs import refuse_blocks
from skdp._validation import FLOATS
from skdp.base import atomic
from skdp.decomposition._factorizer_layout import draw_maps, make_layout
from skdp.decomposition._factorizer_releases import ReleasesMixin
from skdp.decomposition._factorizer_servers import ServersMixin, stream_method
from skdp.decomposition._factorizer_state import (
    RunningState,
    added,
    check_complete,
    factorize,
    map_digest,
    receipt_of,
    stacked,
)
from skdp.exceptions import PrivacyError
from skdp.privacy.streams.sketch_draws import SketchSource
from skdp.privacy.streams.sketches import accumulate_sketches
from skdp.queries.sketches import Updates, Whole

OTHER_BLOCKS = (
    "or a memory map, or (for fit) a list of files: a sketch has a row for each row of X. For "
    "other blocks set 'matrix_shape', call partial_fit with each block in the order of the rows, "
    "then release()"
)


class StreamMixin(ServersMixin, ReleasesMixin):
    """Updates to a matrix of known shape, in a state that is noisy from its birth.

    `_state` holds the running state, `_messages` the states of other servers, `_source` the source
    of the sketches. None of them is ever pickled, copied or shown.
    """

    _state = None
    _messages = ()
    _source = None
    _sent_alone = ()  # headers of states that others were given

    # -- adding data ----------------------------------------------------------------------------
    @stream_method
    def update(self, rows, columns, deltas):
        """Add ``A[rows, columns] += deltas``: any order, repeats and negative numbers.

        Parameters
        ----------
        rows, columns : array-like of int
            Places in the matrix.
        deltas : array-like of float
            What is added there. Each is truncated toward zero to a public step.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_rows("update")
        m, n = self._shape()
        i, j = _indices("rows", rows, m), _indices("columns", columns, n)
        deltas = check_array(deltas, dtype=np.float64, ensure_2d=False, ensure_min_samples=0)
        deltas = np.atleast_1d(deltas)
        if not i.shape == j.shape == deltas.shape or deltas.ndim != 1:
            raise ValueError(
                "rows, columns and deltas must be one-dimensional and equally long. Got shapes "
                f"{i.shape}, {j.shape} and {deltas.shape}."
            )
        state = self._running()
        return self._add(state, Updates(i, j, deltas, state.layout.unit))

    @stream_method
    def update_matrix(self, D):
        """Add a matrix of updates, dense or sparse: each entry is one update.

        Parameters
        ----------
        D : {array-like, sparse matrix} of shape `matrix_shape`
            What is added.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_rows("update_matrix")
        refuse_blocks(self, D, OTHER_BLOCKS)
        D = check_array(D, accept_sparse="coo", dtype=np.float64)
        if D.shape != self._shape():
            raise ValueError(f"D must have the shape {self._shape()}. Got {D.shape} instead.")
        state = self._running()
        if not sp.issparse(D):
            return self._add(state, Whole(D, state.layout.unit))
        rows, columns = (np.asarray(part, np.int64) for part in (D.row, D.col))
        return self._add(state, Updates(rows, columns, D.data, state.layout.unit))

    @stream_method
    def partial_fit(self, X, y=None):
        """Add the next rows of the matrix.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_rows, n_features)
            Rows that follow those of earlier calls.
        y : Ignored
            Not used.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        m, n = self._shape()
        running = self._checked_state()
        first = running is None
        refuse_blocks(self, X, OTHER_BLOCKS)
        X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=first)
        if X.shape[1] != n:
            raise ValueError(f"X must have {n} columns, as matrix_shape says. Got {X.shape[1]}.")
        seen = 0 if first else running.rows_seen
        if seen + X.shape[0] > m:
            raise ValueError(
                f"matrix_shape={self.matrix_shape} has {m} rows, and {seen} were added. Got "
                f"{X.shape[0]} more."
            )
        state = self._running()
        return self._add(state, Whole(X, state.layout.unit, seen), X.shape[0])

    def _add(self, state, query, rows=0):
        state.add(query, rows)
        if self.max_releases > 1:
            self._acknowledged = state.group.acts
        return self

    def _refuse_rows(self, name):
        if self.privacy_unit == "row":
            raise ValueError(
                f"privacy_unit='row' clips whole rows, which {name} does not see; use partial_fit."
            )

    def _shape(self):
        return tuple(int(side) for side in self.matrix_shape)

    # -- the state ------------------------------------------------------------------------------
    def _checked_state(self):
        """Return the running state, if any: its parameters unchanged, later ledgers charged.

        `honest_servers` says how much of the noise it drew, `privacy_unit` how data are bounded.
        """
        if self._stream_state() is None and self._state is not None:
            self._check_stream(self._state.session, self._state.params)
        return self._state

    def _running(self):
        """Return the running state; the first call pays and draws sketches and noise."""
        if self._checked_state() is None:
            if hasattr(self, "privacy_spent_"):
                raise PrivacyError(
                    "this factorizer has released its state: one noisy state is released at most "
                    "once. Use sklearn.base.clone for new data, with a budget of its own."
                )
            self._start()
        return self._state

    @atomic
    def _start(self):
        self._check_parameters()
        self._pay_stream(self._open_session(), self._shape())

    def _pay_stream(self, session, shape):
        """Pay for a stream of a matrix of a shape, and draw sketches and noise."""
        layout = make_layout(self, shape, self._unit(stream=True))
        shared = self._source is not None or self.sketch_seed is not None
        if self._source is None:
            self._source = SketchSource.of(session, self.sketch_seed)
        maps = draw_maps(layout, self.sketch, self._source.shared_with(session), self.first_row)
        self.n_features_in_ = shape[1]
        if self.max_releases > 1:
            self._start_releases(session, layout, maps)
            return
        bounds = [layout.unit.bound(sketch, random=layout.random) for sketch in maps]
        parties = self.honest_servers or 0
        accumulators = self._accumulators(
            session, bounds, layout.shares, parties=parties, shared=shared
        )
        self._state = RunningState(
            session, layout, maps, accumulators, self.first_row, self._plain_params()
        )

    def _accumulators(self, session, bounds, shares, *, parties, shared):
        """Return objects with read, take and close, one for each bound."""
        return accumulate_sketches(session, bounds, shares, parties=parties, shared=shared)

    def __getstate__(self):
        if self._state is not None:
            raise PrivacyError(
                "a running stream cannot be copied or pickled: two copies of one noisy state would "
                "be two releases. Call release() first; for another server use for_server()."
            )
        state = super().__getstate__()
        return {key: value for key, value in state.items() if key not in ("_source", "_messages")}

    # -- the release ----------------------------------------------------------------------------
    @stream_method
    def release(self):
        """Open the state, add what was merged, and factor it. Later updates raise.

        With `max_releases` beyond 1: close the step and factor the matrix so far (or what the last
        `window` steps added); updates may go on until the last release.

        Returns
        -------
        self : DPLowRankFactorizer
            Fitted.
        """
        if self.max_releases > 1:
            self._running()
            return self._release_step()
        own = self._checked_state() is not None
        if own:
            self._refuse_share("release")
        state, messages = self._state, self._messages
        session = state.session if own else None
        if not own and not messages:
            raise PrivacyError("nothing was added: update, or merge, before release.")
        headers = [*([state.header()] if own else []), *messages]
        check_complete(headers)
        spent, lines = self._all_spent(headers)
        noisy = ([state.close()] if own else []) + list(messages)
        blocks = added(noisy)
        if session is None:
            session = self._coordinator_session()
        attributes = self._released(session, noisy[0], blocks)
        attributes["server_receipts_"] = tuple(r for part in noisy for r in part.receipts)
        self._state, self._messages, self._source = None, (), None  # the sketch may be known now
        self.n_features_in_ = noisy[0].shape[1]
        self._close_session(session, attributes)
        self.privacy_spent_, self.ledger_ = spent, lines  # of all servers, not of this one alone
        return self

    def _all_spent(self, headers):
        """Return the receipt of what is opened here, and of what this one opened for others."""
        known = {state.fingerprint() for state in self._messages if state.honest_servers is None}
        others = [state for name, state in self._sent_alone if name not in known]
        return receipt_of([*headers, *others])

    def _coordinator_session(self):
        """Open the session of a coordinator, which reads no data: it only draws public starts."""
        session = self._open_session()
        if self._source is None:
            self._source = SketchSource.of(session, self.sketch_seed)
        return session

    def _released(self, session, first, blocks):
        n = first.shape[1]
        layout = make_layout(self, (sum(b[1] for b in blocks), n), self._unit(stream=True))
        parts = [self._block_maps(session, block, n) for block in blocks]
        if map_digest(parts[0]) != first.digest:
            raise ValueError(
                "the messages come from other sketches; use the servers' 'method', 'sketch', "
                "'sketch_size', 'core_size' and 'sketch_seed', or for_server()."
            )
        noisy = stacked(first.method, blocks)
        start = session.random_signs((n, min(n, self.n_components + 10)))
        factors = factorize(noisy, parts, self.n_components, start)
        return self._attributes(layout, factors)

    def _block_maps(self, session, block, n):
        """Return the sketches of one server's rows."""
        layout = make_layout(self, (block[1], n), self._unit(stream=True))
        return draw_maps(layout, self.sketch, self._source.shared_with(session), block[0])


def _indices(name, values, limit):
    """Return public places as int64; anything but integers in range is a ValueError."""
    index = np.atleast_1d(np.asarray(values))
    if index.size == 0:
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers. Got dtype {index.dtype}.")
    if index.size and not (index.min() >= 0 and index.max() < limit):
        raise ValueError(f"{name} must lie in [0, {limit}).")
    return index.astype(np.int64)
