"""What stands behind a federated `Ask`: a release is paid on the server and read on the clients.

Bounds come from a query over no rows; what travels is the public request, and what comes back is
the secure sum of the clients' noisy integers. Solvers cannot tell it from a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.federated._requests import Argument, Call, Facts, Request
from skdp.federated.noise_parts import NoiseParts, distribute
from skdp.privacy.gate.ask import Ask, Path
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.gate.session import PrivacySession

Words = NDArray[np.uint64]
IntArray = NDArray[np.int64]


class Opened(Protocol):
    """An opened total: the sum modulo 2**64 of the contributions that arrived."""

    @property
    def total(self) -> Words:
        """The sum, flat."""
        ...

    @property
    def n_survivors(self) -> int:
        """How many clients are in it."""
        ...


Aggregate = Callable[[bytes, int], Opened]


def _upper(order: int) -> IntArray:
    """Flat positions of the upper triangle of a square matrix, the diagonal included."""
    rows, columns = np.triu_indices(order)
    return np.asarray(rows * order + columns, np.int64)


def packed_size(bound: Bound) -> int:
    """Return how many 64-bit words an answer takes on its way."""
    if not bound.symmetric:
        return bound.size
    return bound.shape[0] * (bound.shape[0] + 1) // 2


def pack(noisy: IntArray, bound: Bound) -> Words:
    """Flatten a noisy integer answer for the sum; of a symmetric one, M + M' above the diagonal.

    Only (M + M')/2 is ever used of a symmetric answer, so half of the words suffice.
    """
    words = noisy.reshape(bound.shape).view(np.uint64)
    if not bound.symmetric:
        return words.ravel()
    doubled = words + words.T
    np.fill_diagonal(doubled, np.diagonal(words))
    return np.asarray(doubled.ravel()[_upper(len(doubled))])


def unpack(total: Words, bound: Bound) -> IntArray:
    """Return the integer answer of which `Grant.finish` takes the symmetric part."""
    flat = np.ascontiguousarray(total, np.uint64).view(np.int64)
    if not bound.symmetric:
        return flat.reshape(bound.shape)
    square = np.zeros(bound.size, np.int64)
    square[_upper(bound.shape[0])] = flat
    return square.reshape(bound.shape)


class Federation:
    """One federated fit on the server: its session, its clients' total, its public facts.

    Parameters
    ----------
    session : PrivacySession
        Pays for the releases; it never reads.
    aggregate : callable
        ``aggregate(request, size)`` returns the opened total (see `Opened`).
    facts : Facts
        What the clients must agree on.
    """

    def __init__(self, session: PrivacySession, aggregate: Aggregate, facts: Facts) -> None:
        self.session = session
        self.facts = facts
        self.parts = NoiseParts(facts.n_clients, facts.n_colluders, facts.n_dropouts)
        self._aggregate = aggregate
        self._serial = 0

    def forfeit(self, share: float) -> None:
        """Pay a share and release nothing for it."""
        self.session.forfeit(share)

    def turn(self, kind: str) -> None:
        """Begin another stage of the budget; no fit over clients has any."""
        self.session.turn(kind)

    def answer(self, path: Path, bounded: Bounded, share: float) -> Answer:
        """Pay, ask the clients, and turn their total into the public answer."""
        bound = bounded.bound
        calls = tuple(Call(name, tuple(map(_plain, public))) for name, public in path)
        if bound.linf is not None:
            raise PrivacyError(f"{bound.name!r} is a private choice, which no sum can make")
        grant = distribute(self.session, bound, share, self.parts)
        request = Request(self._serial, self.facts, grant.share, grant.step, calls)
        self._serial += 1
        opened = self._opened(request.encode(), packed_size(bound))
        answer = grant.close(unpack(opened.total, bound), opened.n_survivors)
        if bounded.decode is None:
            return answer
        return answer._replace(value=bounded.decode(answer.value, grant.step))

    def _opened(self, request: bytes, size: int) -> Opened:
        """Return the total. An abort ends the fit: the aggregator alone may retry."""
        opened = self._aggregate(request, size)
        needed = self.facts.n_clients - self.facts.n_dropouts
        if not needed <= opened.n_survivors <= self.facts.n_clients:
            raise PrivacyError(
                f"{opened.n_survivors} of {self.facts.n_clients} clients are in the total; the "
                f"noise was sized for at least {needed}. The fit was given up."
            )
        return opened


def _plain(value: Any) -> Argument:
    return value if value is None or isinstance(value, np.ndarray) else float(value)


class FederatedSession:
    """What a solver shell sees of a session whose data lie elsewhere: the same public numbers."""

    holds_rows = False

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._session = federation.session

    def ask(self, query: object) -> Ask:
        """Return the federated face of a query; the query itself is never read."""
        return Ask(self._federation, query)

    @property
    def noise_multiplier(self) -> float:
        """Noise scale of a release of sensitivity 1 if all clients answer."""
        return self._session.noise_multiplier * self._federation.parts.excess

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
