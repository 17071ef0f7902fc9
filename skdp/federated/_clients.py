"""The base of federated fits: releases over clients, client sessions, and sums of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skdp._limits import IntArray
from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.federated._messages import Argument, Call, Facts, Question, Request
from skdp.federated.aggregation import Aggregator, Respond
from skdp.federated.config import AggregationConfig, InvalidMessageError
from skdp.federated.noise_parts import PartGrant, distribute
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.bounds import (
    Ask,
    Bound,
    Bounded,
    Path,
    PrivacyBudget,
    PrivateQuery,
    check_later_releases,
)
from skdp.privacy.gate.session import PrivacySession, answered
from skdp.privacy.ledger import routes
from skdp.privacy.noise.words import SystemSource, WordArray

# The server's side of a release: the server charges it, and the clients read their data.
#
# The server computes bounds from a query over no rows. It sends a public request to the clients,
# and receives the secure sum of their noisy integers. Solvers use it like any session.


def n_words(bound: Bound) -> int:
    """Return the number of 64-bit words in the message of an answer."""
    return bound.shape[0] * (bound.shape[0] + 1) // 2 if bound.symmetric else bound.size


def as_words(noisy: IntArray, bound: Bound) -> WordArray:
    """Flatten a noisy integer answer for the sum; of a symmetric one, M + M' above the diagonal.

    Only (M + M')/2 is ever used of a symmetric answer, so half of the words suffice.
    """
    words = noisy.reshape(bound.shape).view(np.uint64)
    if not bound.symmetric:
        return words.ravel()
    doubled = words + words.T
    np.fill_diagonal(doubled, np.diagonal(words))
    return np.asarray(doubled[np.triu_indices(len(doubled))])


def from_words(total: WordArray, bound: Bound) -> IntArray:
    """Return the integer answer of which `Grant.finish` takes the symmetric part."""
    flat = np.ascontiguousarray(total, np.uint64).view(np.int64)
    if not bound.symmetric:
        return flat.reshape(bound.shape)
    square = np.zeros(bound.shape, np.int64)
    square[np.triu_indices(bound.shape[0])] = flat
    return square


# What solvers may use of the server's session: public numbers, and starts. It releases nothing.
_SHARED = (
    "adjacency unit budget law ledger mu observer open remaining "
    "random_number random_signs random_start"
)


class FederatedSession:
    """A session for solvers whose data are on clients; it has the same public attributes.

    Parameters
    ----------
    session : PrivacySession
        Pays for the releases; it never reads.
    aggregate : callable
        ``aggregate(request, size)`` returns the opened total (see `AggregationResult`).
    config : AggregationConfig
        How many clients there are, and how many may collude or drop out.
    n_features : int
        Number of features.
    """

    def __init__(
        self,
        session: PrivacySession,
        aggregate: Aggregator,
        config: AggregationConfig,
        n_features: int,
    ) -> None:
        self._session = session
        self._facts = Facts(session.unit, session.adjacency, n_features, *config.counts)
        self._parts = config
        self._aggregate = aggregate
        self._serial = 0

    def ask(self, query: object) -> Ask:
        """Return the `Ask` that sends a query to the clients; the query itself is never read."""
        if not self.ledger:
            check_later_releases(query, self.budget, self.open, self._parts.effective_sigma)
        return Ask(self, query)

    @property
    def noise_multiplier(self) -> float:
        """Noise scale of a release of sensitivity 1 if all clients answer."""
        return self._session.noise_multiplier * self._parts.excess

    def __getattr__(self, name: str) -> Any:
        if name not in _SHARED.split():  # a release without the clients would be one of zeros
            raise AttributeError(f"a fit to clients has no {name!r}")
        return getattr(self._session, name)

    def answer(self, path: Path, bounded: Bounded, share: float) -> Answer:
        """Pay, ask the clients, and turn their total into the public answer."""
        bound = bounded.bound
        if bound.linf is not None:
            raise PrivacyError(f"{bound.name!r} is a private selection, which a sum cannot make")
        grant = distribute(self._session, bound, share, self._parts)
        calls = tuple(Call(*call) for call in path)
        request = Request(self._serial, self._facts, grant.share, grant.step, calls)
        self._serial += 1
        opened = self._aggregate(request.encode(), n_words(bound))  # an abort ends the fit
        needed, every = self._parts.fewest_survivors, self._parts.n_clients
        if not needed <= opened.n_survivors <= every:
            raise PrivacyError(
                f"{opened.n_survivors} of {every} clients are in the total; the "
                f"noise was sized for at least {needed}. The fit was ended."
            )
        answer = grant.close(from_words(opened.total, bound), opened.n_survivors)
        return bounded.decoded(answer, grant.step)


# The client's side: its own session, its own ledger, and the requests that it accepts.
#
# Its whole budget is charged to the ledgers that are open when it is made, since `close` charges
# the unused rest too. Ledgers that are opened later are charged when it answers inside them.
#
# A client trusts no number of the server. It recomputes every bound from its own query at the
# public arguments, and refuses a step that its own budget does not cover.


TINY = 1e-100

Answers = Callable[[float], NDArray[Any]]
Check = Callable[[Any, Argument], bool]  # (query, argument) -> acceptable
Signatures = dict[str, tuple[Check, ...]]


def is_number(_: Any, value: Argument) -> bool:
    """Any number but NaN."""
    return isinstance(value, float) and not math.isnan(value)


def is_positive(_: Any, value: Argument) -> bool:
    """A positive number, or infinity."""
    return isinstance(value, float) and value > 0


def is_scale(_: Any, value: Argument) -> bool:
    """Infinity, or a number whose square and small fractions are normal floats."""
    return isinstance(value, float) and (TINY < value < 1 / TINY or value == math.inf)


def is_matrix(query: Any, value: Argument) -> bool:
    """A finite matrix with one row for each feature, and no more columns than rows.

    Bounds are computed from its norms: squares of its largest entry must neither overflow nor
    underflow in any product. The matrices of solvers have norms near 1.
    """
    return _is_ordinary(value, query.n_features, query.n_features)


def is_left_matrix(query: Any, value: Argument) -> bool:
    """A finite matrix with one row for each row of the client's matrix, as in `is_matrix`."""
    return _is_ordinary(value, *query.shape)


def _is_ordinary(value: Argument, n: int, most: int) -> bool:
    return (
        is_floats(value, 2)
        and len(value) == n
        and 1 <= value.shape[1] <= most
        and TINY < float(np.abs(value).max()) < 1 / TINY
    )


def is_subspace(query: Any, value: Argument) -> bool:
    """Such a matrix next to clipped rows: sizes are measured in units of the clip norm."""
    return math.isfinite(query.clip_norm) and is_matrix(query, value)


def is_center(query: Any, value: Argument) -> bool:
    """One finite number for each feature."""
    return is_floats(value, 1) and len(value) == query.n_features


def is_direction(_: Any, value: Argument) -> bool:
    """A vector of finite numbers."""
    return is_floats(value, 1)


def is_selection(query: Any, value: Argument) -> bool:
    """Different column numbers: a repeated column would count twice in a row."""
    return (
        is_array(value, 1, "i")
        and 1 <= value.size <= query.n_features
        and int(value.min()) >= 0
        and int(value.max()) < query.n_features
        and np.unique(value).size == value.size
    )


def is_array(value: Any, ndim: int, kind: str = "f") -> TypeGuard[NDArray[Any]]:
    """Floats (or numbers of another kind), with so many dimensions."""
    return isinstance(value, np.ndarray) and value.dtype.kind == kind and value.ndim == ndim


def is_floats(value: Any, ndim: int) -> TypeGuard[NDArray[np.float64]]:
    """Finite floats, with so many dimensions."""
    return is_array(value, ndim) and bool(np.isfinite(value).all())


def checked_call(query: Any, call: Call, signatures: dict[type, Signatures]) -> Any:
    """Apply one call to a query, if its method is listed and its arguments are valid."""
    checks = signatures.get(type(query), {}).get(call.method)
    if checks is None or len(checks) != len(call.arguments):
        raise PrivacyError(f"this client does not answer {call.method!r}.")
    sound = all(check(query, value) for check, value in zip(checks, call.arguments, strict=True))
    together = getattr(query, "sound_together", None)
    if not sound or (together is not None and not together(call.method, call.arguments)):
        raise PrivacyError(f"the arguments of {call.method!r} are not valid; nothing was sent.")
    return getattr(query, call.method)(*call.arguments)


@lru_cache(maxsize=16)
def finite_budget(epsilon: float, delta: float) -> PrivacyBudget:
    """Return a budget, cached because thousands of simulated clients have the same one."""
    budget = PrivacyBudget(epsilon, delta)
    if budget.exact or budget.pure:
        raise ValueError(
            "A federated fit needs a finite 'epsilon' and a 'delta' above 0: noise parts are "
            f"Gaussian. Got epsilon={epsilon!r}, delta={delta!r}."
        )
    return budget


def or_nothing(answer: Answers, grant: PartGrant) -> Answers:
    """Return an answer that cannot fail: if the computation fails, the client sends noise alone.

    Whether it failed would depend on private data, so no client may reveal it to the server.
    """

    def run(step: float) -> NDArray[Any]:
        try:
            found = answered(answer, step, grant.bound.name)
        except PrivacyError:
            return grant.nothing()
        return found if grant.fits(found) else grant.nothing()

    return run


class FederatedClient:
    """One client: answers requests through its own gate until its own budget is spent.

    Parameters
    ----------
    query : PrivateQuery
        Owns the client's rows.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    signatures : dict
        For each class of query, the methods that it accepts and the checks of their arguments.
    epsilon, delta : float
        What this client spends at most.
    adjacency, unit : str
        What the guarantee protects.
    n_features : int
        Number of features, which the server must know.
    trial : PrivateQuery or None
        A query of the same kind over public units: each request runs on it before the charge.
    sensitivity : float or None
        For units of a bounded norm: a part of their name in a ledger.
    """

    def __init__(
        self,
        query: PrivateQuery,
        config: AggregationConfig,
        signatures: dict[type, Signatures],
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        unit: str,
        n_features: int,
        trial: PrivateQuery | None = None,
        sensitivity: float | None = None,
    ) -> None:
        if not isinstance(config, AggregationConfig):
            name = type(config).__name__  # and no value: it may be the rows
            raise TypeError(f"'config' must be an AggregationConfig. Got a value of type {name}.")
        self._query, self._trial = query, trial
        self._signatures = signatures
        self._parts = config
        self._facts = Facts(unit, adjacency, n_features, *config.counts)
        self._session = PrivacySession(
            finite_budget(float(epsilon), float(delta)),
            source=SystemSource(),
            adjacency=adjacency,
            unit=unit,
            observer=routes.Account(),
        )
        self._serial = -1
        self._sensitivity = sensitivity
        self._charge()

    def _charge(self) -> None:
        """Charge the whole budget to the ledgers that are open, once each, or refuse."""
        name = type(self).__name__
        routes.charge(self._session, name, sensitivity=self._sensitivity, in_any_part=True)

    def respond(self, request: bytes) -> WordArray:
        """Return this client's noisy integers for one step: for a secure sum only.

        Parameters
        ----------
        request : bytes
            The public request of the server.

        Returns
        -------
        words : ndarray of uint64
            The contribution modulo 2**64. It has only one part of the noise, which protects nothing
            outside of the sum.

        Raises
        ------
        InvalidMessageError
            If the request is malformed, unsound, repeated, or beyond this client's budget.
        """
        try:
            with self._session.lock:
                bounded, grant = self._pay(request)
        except Exception as error:  # any error: no private number was read before it
            raise InvalidMessageError(str(error)) from None
        return as_words(grant.noised(or_nothing(bounded.answer, grant)), bounded.bound)

    def _pay(self, request: bytes) -> tuple[Bounded, PartGrant]:
        """Check everything, then charge; no private number is read here."""
        agreed = self._parts.counts
        if isinstance(request, Question) and request.counts != agreed:
            raise PrivacyError(
                f"the secure sum has (clients, colluders, drop-outs) = {request.counts}; the noise "
                f"of this client is sized for {agreed}."
            )
        parsed = Request.decode(request)
        if parsed.facts != self._facts:
            both = zip(parsed.facts._fields, parsed.facts, self._facts, strict=True)
            other = (f"{name}={asked!r}, not {own!r}" for name, asked, own in both if asked != own)
            raise PrivacyError(f"the server has other settings: {', '.join(other)}.")
        if parsed.serial <= self._serial:
            raise PrivacyError(f"release {parsed.serial} is not new; nothing was sent.")
        bounded = self._asked(self._query, parsed.calls)
        if self._trial is not None:
            tried = self._asked(self._trial, parsed.calls)
            if np.shape(tried.answer(0.0)) != bounded.bound.shape:
                raise PrivacyError("the request does not fit users' rows; nothing was sent.")
        try:
            self._charge()
        except Exception:  # the ledger keeps the reason, which the server must not learn
            raise PrivacyError("a PrivacyLedger has too little left; nothing was sent.") from None
        size = n_words(bounded.bound)
        if isinstance(request, Question) and request.size != size:
            raise PrivacyError(f"the sum has {request.size} integers, and the contribution {size}.")
        grant = distribute(
            self._session, bounded.bound, parsed.share, self._parts, step=parsed.step
        )
        self._serial = parsed.serial
        return bounded, grant

    def _asked(self, query: Any, calls: tuple[Call, ...]) -> Bounded:
        for call in calls:
            query = checked_call(query, call, self._signatures)
        if not isinstance(query, Bounded):
            raise PrivacyError("the request names no release; nothing was sent.")
        return query

    @property
    def privacy_spent_(self) -> PrivacySpent:
        """The receipt of everything that this client answered."""
        return self._session.spent()

    @property
    def releases_(self) -> tuple[LedgerEntry, ...]:
        """Each answer with its sensitivity and the noise that protects it."""
        return self._session.ledger

    def close(self) -> PrivacySpent:
        """Charge the rest of the budget and return the final receipt.

        The number of releases of a fit may depend on what it released before. A receipt that always
        states the whole budget does not reveal it.
        """
        self._session.charge_unused()
        routes.settle(self._session)
        return self._session.spent()


# Sums of integer states of several servers, through the same aggregation.


_REQUEST = b"skdp states 1\n"


class StateSum:
    """Add noisy int64 states modulo 2**64 by an aggregation: used to merge sketches.

    Each state already holds the noise of its own server. Nothing is released here but the sum, if
    the aggregation is a secure one.

    Parameters
    ----------
    connect : callable
        ``connect(callbacks)`` returns the aggregator of these clients, for example
        ``lambda callbacks: simulated_aggregator(callbacks, config)`` or `UnmaskedAggregator`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.federated import UnmaskedAggregator, StateSum
    >>> add = StateSum(UnmaskedAggregator)
    >>> add([np.array([1, -2]), np.array([3, 4])])
    array([4, 2])
    """

    def __init__(self, connect: Callable[[list[Respond]], Aggregator]) -> None:
        self._connect = connect

    def __call__(self, states: Sequence[IntArray]) -> IntArray:
        """Return the sum; a missing state is an error: its data and noise would be missing."""
        if not states:
            raise ValueError("there is no state to add")
        first = states[0]
        for state in states:
            if state.dtype != np.int64 or state.shape != first.shape:
                raise ValueError("states must be int64 arrays of one shape.")
        aggregate = self._connect([_held(state) for state in states])
        if getattr(getattr(aggregate, "config", None), "n_dropouts", 0):
            raise PrivacyError(
                "the aggregation would open a sum from which states are missing, and their noise "
                "with them; use n_dropouts=0."
            )
        opened = aggregate(_REQUEST, first.size)
        if opened.n_survivors != len(states):
            raise PrivacyError(f"{opened.n_survivors} of {len(states)} states arrived.")
        total = np.ascontiguousarray(opened.total, np.uint64)
        return total.view(np.int64).reshape(first.shape)


def _held(state: IntArray) -> Respond:
    words = np.ascontiguousarray(state).view(np.uint64).reshape(-1)
    return lambda request: words.copy()
