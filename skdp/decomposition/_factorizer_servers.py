"""States of servers: messages, and sums that are merged into a factorizer."""

from dataclasses import replace

from sklearn.utils.metaestimators import available_if

from skdp.decomposition._factorizer_state import (
    NoisyState,
    check_alike,
    check_new,
    check_shares,
    contract,
    receipt_of,
    secure_total,
)
from skdp.exceptions import PrivacyError
from skdp.privacy.ledger.routes import charge_parts


def _has_shape(estimator):
    if estimator.matrix_shape is None:
        raise AttributeError("a stream needs 'matrix_shape', the public shape of the matrix")
    return True


stream_method = available_if(_has_shape)


class ServersMixin:
    """What a factorizer sends to others, and takes from them."""

    def for_server(self, *, matrix_shape=None, first_row=None):
        """Return an empty factorizer that shares the sketches of this one, with its own noise.

        Parameters
        ----------
        matrix_shape : tuple of int or None
            Shape of the other server's matrix (for a partition of the rows).
        first_row : int or None
            Place of its first row among all rows.

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
        if self._source is None:
            self._running()
        other = self._twin()
        if matrix_shape is not None:
            other.set_params(matrix_shape=matrix_shape)
        if first_row is not None:
            other.set_params(first_row=first_row)
        other._source = self._source
        return other

    def state_message(self):
        """Open the noisy state as bytes for another server: this is its single release.

        Returns
        -------
        message : bytes
            With a version and a checksum. The sketches are not in it.
        """
        self._refuse_share("state_message")
        return self._sent().to_bytes()

    def _refuse_share(self, name):
        if self.honest_servers is not None:
            raise PrivacyError(
                f"{name} would show a share of the noise, which protects nothing alone; with "
                "honest_servers use merge_secure."
            )

    def _sent(self, receipts=()):
        """Close the running state; what was spent stands in the receipt.

        A share of a secure sum is opened with others, which have `receipts`.
        """
        self._refuse_servers("A message to another server")
        state = self._running()
        noisy = state.close(self.honest_servers)
        self._state = None
        self._close_session(state.session, {})
        name = noisy.fingerprint() if self.honest_servers is None else None
        header = replace(noisy, arrays=[], receipts=list(receipts) or noisy.receipts)
        self._sent_alone = (*self._sent_alone, (name, header))
        return noisy

    def merge(self, other):
        """Add the state of another server: a message, or a factorizer (whose state it opens).

        Parameters
        ----------
        other : bytes or DPLowRankFactorizer
            It must share the sketches of this one.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_share("merge")
        self._refuse_servers("merge")
        apart = isinstance(other, type(self))
        if apart:
            other._refuse_share("merge")
            other._refuse_servers("A message to another server")
            message = other._running().header()
        else:
            message = NoisyState.from_bytes(other)
        self._check_message(message)
        message = other._sent() if apart else message
        check_new(self._messages, message)
        self._messages = (*self._messages, message)
        return self

    def _check_message(self, message):
        """Refuse the header of a state that cannot be added, before that state is opened."""
        unit = self._unit(stream=True)
        own = (unit.name, self.adjacency, contract(unit))
        if message.protects != own:
            raise ValueError(
                "states with different protects cannot be merged; use one 'privacy_unit', "
                f"'adjacency' and 'sensitivity'. Got {message.protects}, and {own} here."
            )
        if self._messages:
            check_alike(self._messages[0], message)
            receipt_of([*self._messages, message])

    def merge_secure(self, servers, aggregator):
        """Add the states of servers under a secure sum, which shows nothing but the total.

        Parameters
        ----------
        servers : sequence of DPLowRankFactorizer
            Factorizers with `honest_servers`, one of which may be this one. Each draws a share of
            the noise; together `honest_servers` of them draw all of it.
        aggregator : callable
            Takes a list of equally shaped int64 arrays and returns their sum modulo 2**64.

        Returns
        -------
        self : DPLowRankFactorizer
        """
        self._refuse_servers("merge_secure")
        servers = list(servers)
        for server in servers:
            server._refuse_servers("merge_secure")
        headers = [server._running().header(server.honest_servers) for server in servers]
        check_shares(headers)
        self._check_message(headers[0])
        if headers[0].protects[0] == "row" and len(servers) > 1:  # each clips its part of a row
            charge_parts([server._state.session for server in servers])
        receipts = [receipt for header in headers for receipt in header.receipts]
        total = secure_total([server._sent(receipts) for server in servers], aggregator)
        self._messages = (*self._messages, total)
        if any(server is self for server in servers):
            self._sent_alone = ()  # the receipt of the total counts it
        return self
