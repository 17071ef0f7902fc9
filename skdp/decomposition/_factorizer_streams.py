"""Methods of a factorizer for streams and servers; a `FactorizerState` is kept between calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array

from skdp._inputs import advised, checked, checked_updates, public_units, refuse_blocks
from skdp._validation import check_int
from skdp.base import atomic
from skdp.decomposition import _factorizer_state as states
from skdp.decomposition._base import found_of, warn_of_verdict
from skdp.decomposition._streaming import StreamingMixin
from skdp.exceptions import PrivacyError
from skdp.privacy.ledger.routes import charge_parts
from skdp.queries.sketches import Updates, Whole

stream_method = available_if(states._has_shape)


class FactorizerStreams(StreamingMixin):
    """Updates to a matrix of known shape, one release or many, one server or many."""

    _state = states.FactorizerState()
    _server: states.Server | None = None  # of several; set by `for_server`, and no clone has it
    _secrets = (*StreamingMixin._secrets, "_state")

    # -- adding data ----------------------------------------------------------------------------
    @stream_method
    def update(self, rows: Any, columns: Any, deltas: Any) -> Self:
        """Add ``A[rows, columns] += deltas``: any order, repeats and negative numbers.

        Parameters
        ----------
        rows, columns : array-like of int
            Row and column numbers.
        deltas : array-like of float
            What is added there. Each is truncated toward zero to a public step.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_rows("update")
        checked = checked_updates(rows, columns, deltas, self._shape())
        return self._add(Updates, *checked)

    @stream_method
    def update_matrix(self, D: Any) -> Self:
        """Add a matrix of updates, dense or sparse: each entry is one update.

        Let each update belong to one unit. A unit that is a part of a larger update may count one
        rounding step more.

        Parameters
        ----------
        D : {array-like, sparse matrix} of shape `matrix_shape`
            What is added.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_rows("update_matrix")
        refuse_blocks(self, D, states.OTHER_BLOCKS)
        D = advised(self, check_array, D, accept_sparse="coo", dtype=np.float64)
        if D.shape != self._shape():
            raise ValueError(f"D must have the shape {self._shape()}. Got {D.shape} instead.")
        if not sp.issparse(D):
            return self._add(Whole, D)
        rows, columns = (np.asarray(part, np.int64) for part in (D.row, D.col))
        return self._add(Updates, rows, columns, D.data)

    @stream_method
    def partial_fit(self, X: Any, y: Any = None) -> Self:
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
        X, seen = self._next_rows(X)
        return self._add(Whole, X, first=seen, rows=X.shape[0])

    @atomic
    def _next_rows(self, X):
        """Return the checked rows and the number before them; the first call pays."""
        m, n = self._shape()
        before = self._checked_running()
        refuse_blocks(self, X, states.OTHER_BLOCKS)
        X = checked(self, X, accept_sparse="csr", reset=before is None)
        if X.shape[1] != n:
            raise ValueError(f"X must have {n} columns, as matrix_shape says. Got {X.shape[1]}.")
        seen = 0 if before is None else before.group.notes["rows_seen"]
        if seen + X.shape[0] > m:
            raise ValueError(
                f"matrix_shape has {m} rows, and {seen} were added. Got {X.shape[0]} more."
            )
        self._running()
        return X, seen

    def _add(self, query, *data, rows=0, **options):
        running = self._running()
        running.add(query(*data, running.layout.unit, **options), rows)
        if self.max_releases > 1:
            self._acknowledged = running.group.acts
        return self

    def _refuse_rows(self, name):
        if self._protects.by_rows:
            raise ValueError(
                f"privacy_unit='row' clips whole rows, but {name} adds entries; use partial_fit."
            )

    # -- the state ------------------------------------------------------------------------------
    def _shape(self):
        return tuple(int(side) for side in self.matrix_shape)

    def _keep(self, **changes):
        self._state = replace(self._state, **changes)

    def _checked_running(self):
        """Return what runs, if anything: its parameters unchanged, later ledgers charged."""
        group, running = self._running_stream(), self._state.running
        if group is None:
            if running is not None:
                self._check_stream(running.session, running.group.notes["params"])
        elif running is None:  # after a restore
            self._keep(running=states.resumed(self, group))
        return self._state.running

    def _running(self):
        """Return what runs; the first call pays and draws sketches and noise."""
        if self._checked_running() is None:
            self._start()
        return self._state.running

    @atomic
    def _start(self):
        if self._state.running is not None:
            return  # another thread came first; two states would be two budgets
        if hasattr(self, "privacy_spent_"):
            raise PrivacyError(
                "this factorizer has released its state for the last time. Use a larger "
                "'max_releases', or sklearn.base.clone for new data, with a budget of its own."
            )
        self._check_parameters()
        shape = self._shape()
        # What has no layout is refused before it is charged.
        states.make_layout(self, shape, self._unit(stream=True))
        session = self._open_session()
        self._warn_of_delta(*public_units(self, shape, session))
        self._state = states.begin(self, session, shape)
        if self.max_releases > 1:
            self._private = self._state.running.group
        self.n_features_in_ = shape[1]

    def _holds(self):
        return super()._holds() or self._state.running is not None

    def __getstate__(self):
        if self._state.running is not None:
            raise PrivacyError(
                "a running stream cannot be copied or pickled: two copies of one noisy state would "
                "be two releases. Call release() first; for another server use for_server()."
            )
        return {name: value for name, value in super().__getstate__().items() if name != "_state"}

    # -- many releases --------------------------------------------------------------------------
    @atomic
    def _release_step(self):
        """Close the step, and factor the sum of all steps so far (or of the window)."""
        group = self._state.running.group
        group.open()
        return self._keep_stream(group)

    def _drop_stream(self):
        super()._drop_stream()
        self._keep(running=None, source=None)

    def _set_last_release(self, group):
        """Set the attributes of the last release."""
        running = states.resumed(self, group)
        self._name_features(group.notes["names"], running.layout.shape[1])
        self._close_session(group.session, states.last_release(running))

    # -- the release ----------------------------------------------------------------------------
    @stream_method
    def release(self) -> Self:
        """Release the state, add what was merged, and factor it. Later updates raise an error.

        With `max_releases` beyond 1: close the step and factor the matrix so far (or what the last
        `window` steps added); updates may go on until the last release.

        Returns
        -------
        self : DPLowRankFactorizer
            Fitted.
        """
        if self.max_releases > 1:
            self._running()
            self._release_step()
            warn_of_verdict(self, *found_of(self.singular_values_))
            return self
        running, received = self._checked_running(), self._state.received
        if running is not None:
            self._refuse_part("release")
        elif not received:
            raise PrivacyError("nothing was added: update, or merge, before release.")
        headers = [states.header_of(running), *received] if running is not None else received
        states.check_complete(headers)
        known = {state.fingerprint() for state in received}
        before = [(name, state) for name, state in self._state.released if name not in known]
        spent, lines = states.receipt_of([*headers, *(state for _, state in before)])
        noisy = [states.noisy_state(running), *received] if running is not None else received
        session = self._open_session() if running is None else running.session
        attributes = states.merged(self, session, noisy)
        now = [(state.fingerprint(), replace(state, arrays=[])) for state in noisy]
        self._state = states.FactorizerState(released=(*before, *now))  # the sketch may be known
        self.n_features_in_ = noisy[0].shape[1]
        self._close_session(session, attributes)
        self.privacy_spent_, self.releases_ = spent, lines  # of all servers, not of this one alone
        warn_of_verdict(self, *found_of(self.singular_values_))
        return self

    # -- servers --------------------------------------------------------------------------------
    def for_server(
        self,
        *,
        matrix_shape: Any = None,
        row_offset: Any = 0,
        n_honest_servers: Any = None,
        sketch_seed: Any = None,
    ) -> Any:
        """Return an empty factorizer for one of several servers, with noise of its own.

        Parameters
        ----------
        matrix_shape : tuple of int or None, default=None
            Shape of this server's matrix, if servers hold ranges of rows.
        row_offset : int, default=0
            Number of its first row among all rows, from 0.
        n_honest_servers : int or None, default=None
            Under a secure sum: number of servers, other than a curious one, that are sure to add
            their part of the noise: at most all but one. None: each server adds all of it.
        sketch_seed : int or None, default=None
            Public seed of the sketches: factorizers that are made elsewhere with the same one have
            the same sketches. None shares the sketches of this one, which are secret.

        Returns
        -------
        other : DPLowRankFactorizer
        """
        self._refuse_servers("for_server")
        if self.random_state is not None:
            raise ValueError(
                "for_server needs random_state=None: servers with one seed would draw the same "
                f"noise, and the difference of two would be exact. Got {self.random_state!r}."
            )
        if sketch_seed is None and self._server is not None:
            sketch_seed = self._server.sketch_seed
        server = states.Server(row_offset, n_honest_servers, sketch_seed)
        check_int(server, "row_offset", 0)
        check_int(server, "n_honest_servers", 1, none=True)
        check_int(server, "sketch_seed", 0, none=True)
        if sketch_seed is None and self._state.source is None:
            self._running()
        other = self._twin()
        if matrix_shape is not None:
            other.set_params(matrix_shape=matrix_shape)
        other._server = server
        if sketch_seed is None:
            other._keep(source=self._state.source)
        return other

    def state_message(self) -> Any:
        """Return the noisy state as bytes for another server: this is its single release.

        Returns
        -------
        message : bytes
            With a version and a checksum. The sketches are not in it.
        """
        self._refuse_part("state_message")
        return self._sent().to_bytes()

    def _refuse_servers(self, name):
        if self.max_releases > 1:
            raise PrivacyError(f"{name} releases a state only once; it needs max_releases=1.")

    def _refuse_part(self, name):
        if (self._server or states.Server()).n_honest_servers is not None:
            raise PrivacyError(
                f"with n_honest_servers, this server adds only a part of the noise, which is too "
                f"little for {name}. Use merge_secure."
            )

    def _sent(self, receipts=()):
        """Close the running state; what was spent stands in the receipt.

        A part of a secure sum is opened with others, which have `receipts`.
        """
        self._refuse_servers("A message to another server")
        running = self._running()
        noisy = states.noisy_state(running)
        name = noisy.fingerprint() if running.server.n_honest_servers is None else None
        header = replace(noisy, arrays=[], receipts=list(receipts) or noisy.receipts)
        self._keep(running=None, released=((name, header),))  # nothing was released before
        self._close_session(running.session, {})
        return noisy

    def _check_message(self, message):
        if hasattr(self, "privacy_spent_") and not self._state.released:
            raise PrivacyError(
                "this factorizer was fitted, or is a copy of a fitted one, and the receipt of a "
                "merge would not include that fit. Use sklearn.base.clone."
            )
        states.check_message(self._state, message, self._unit(stream=True))

    def merge(self, other: Any) -> Self:
        """Add the state of another server: a message, or a factorizer (whose state it releases).

        Parameters
        ----------
        other : bytes or DPLowRankFactorizer
            It must share the sketches of this one.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_part("merge")
        self._refuse_servers("merge")
        apart = isinstance(other, type(self))
        if apart:
            other._refuse_part("merge")
            other._refuse_servers("A message to another server")
            message = states.header_of(other._running())
        else:
            message = states.NoisyState.from_bytes(other)
        self._check_message(message)
        message = other._sent() if apart else message
        states.check_new(self._state.received, message)
        self._keep(received=(*self._state.received, message))
        return self

    def merge_secure(self, servers: Any, aggregator: Any) -> Self:
        """Add the states of servers under a secure sum, which reveals nothing but the total.

        Parameters
        ----------
        servers : sequence of DPLowRankFactorizer
            Factorizers of ``for_server(n_honest_servers=...)``, one of which may be this one. Each
            draws a part of the noise; together `n_honest_servers` of them draw all of it.
        aggregator : callable
            Takes a list of equally shaped int64 arrays and returns their sum modulo 2**64.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_servers("merge_secure")
        servers = list(servers)
        if len(set(map(id, servers))) < len(servers):
            raise ValueError("a server comes twice: its data would count twice.")
        for server in servers:
            server._refuse_servers("merge_secure")
        headers = [states.header_of(server._running()) for server in servers]
        states.check_parts(headers)
        self._check_message(headers[0])
        if len(servers) > 1 and self._protects.by_rows:  # each clips its part of a row
            charge_parts([server._state.running.session for server in servers])
        receipts = [receipt for header in headers for receipt in header.receipts]
        total = states.secure_total([server._sent(receipts) for server in servers], aggregator)
        self._keep(received=(*self._state.received, total))
        if any(server is self for server in servers):
            self._keep(released=())  # the receipt of the total counts it
        return self
