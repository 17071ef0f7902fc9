"""The client's side: its own session, its own ledger, and what it accepts to be asked.

A client trusts no number of the server. It recomputes every bound from its own query at the public
arguments, and refuses a step at which its own budget does not cover them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.federated._ask import Words, pack, packed_size
from skdp.federated._errors import MessageRefused
from skdp.federated._requests import Argument, Call, Facts, Question, Request
from skdp.federated.config import AggregationConfig
from skdp.federated.noise_parts import NoiseParts, PartGrant, distribute, forfeit_rest
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.privacy.gate.budget import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import SystemSource

_SMALLEST = 1e-100
_PUBLIC_ERRORS = (PrivacyError, ValueError, TypeError, ArithmeticError, IndexError)

Check = Callable[[Any, Argument], bool]  # (query, argument) -> acceptable
Signatures = dict[str, tuple[Check, ...]]


def is_number(_: Any, value: Argument) -> bool:
    """Any number but NaN."""
    return isinstance(value, float) and not math.isnan(value)


def is_positive(_: Any, value: Argument) -> bool:
    """A positive number, or infinity."""
    return isinstance(value, float) and value > 0


def is_scale(_: Any, value: Argument) -> bool:
    """Infinity, or a number whose square and small parts are ordinary floats."""
    return isinstance(value, float) and (_SMALLEST < value < 1 / _SMALLEST or value == math.inf)


def is_matrix(query: Any, value: Argument) -> bool:
    """A finite matrix with one row for each feature, and no more columns than rows.

    Bounds are computed from its norms: squares of its largest entry must neither overflow nor
    vanish, whatever they are multiplied with. The matrices of solvers are near 1.
    """
    return (
        _is_floats(value, 2)
        and len(value) == query.n_features
        and 1 <= value.shape[1] <= query.n_features
        and _SMALLEST < float(np.abs(value).max()) < 1 / _SMALLEST
    )


def is_left_matrix(query: Any, value: Argument) -> bool:
    """A finite matrix with one row for each row of the client's matrix, as in `is_matrix`."""
    rows, columns = query.shape
    return (
        _is_floats(value, 2)
        and len(value) == rows
        and 1 <= value.shape[1] <= columns
        and _SMALLEST < float(np.abs(value).max()) < 1 / _SMALLEST
    )


def is_subspace(query: Any, value: Argument) -> bool:
    """Such a matrix beside clipped rows: sizes are measured in units of the clip norm."""
    return math.isfinite(query.clip_norm) and is_matrix(query, value)


def is_components(query: Any, value: Argument) -> bool:
    """The transpose of such a matrix."""
    return _is_floats(value, 2) and is_matrix(query, value.T)


def is_center(query: Any, value: Argument) -> bool:
    """One finite number for each feature."""
    return _is_floats(value, 1) and len(value) == query.n_features


def is_weights(_: Any, value: Argument) -> bool:
    """None, or finite numbers."""
    return value is None or _is_floats(value, 1)


def is_factor(_: Any, value: Argument) -> bool:
    """A finite matrix: whether it fits the others is for the query to say."""
    return _is_floats(value, 2)


def is_selection(query: Any, value: Argument) -> bool:
    """Different column numbers: a repeated column would count twice in a row."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind == "i"
        and value.ndim == 1
        and 1 <= value.size <= query.n_features
        and int(value.min()) >= 0
        and int(value.max()) < query.n_features
        and np.unique(value).size == value.size
    )


def _is_floats(value: Any, ndim: int) -> TypeGuard[NDArray[np.float64]]:
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind == "f"
        and value.ndim == ndim
        and bool(np.isfinite(value).all())
    )


def narrowed(query: Any, call: Call, signatures: dict[type, Signatures]) -> Any:
    """Apply one call to a query, if the method is listed for it and its arguments are sound."""
    checks = signatures.get(type(query), {}).get(call.method)
    if checks is None or len(checks) != len(call.arguments):
        raise PrivacyError(f"this client does not answer {call.method!r}.")
    if not all(check(query, value) for check, value in zip(checks, call.arguments, strict=True)):
        raise PrivacyError(f"the arguments of {call.method!r} are not sound; nothing was sent.")
    return getattr(query, call.method)(*call.arguments)


@lru_cache(maxsize=16)
def finite_budget(epsilon: float, delta: float) -> PrivacyBudget:
    """Return a budget; thousands of simulated clients have the same one, which never changes."""
    budget = PrivacyBudget(epsilon, delta)
    if budget.exact or budget.pure:
        raise ValueError(
            "a federated fit needs a finite 'epsilon' and a 'delta' above 0. Got "
            f"epsilon={epsilon!r}, delta={delta!r}."
        )
    return budget


def check_count(name: str, value: Any) -> int:
    """Return an int of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name!r} must be an int of at least 0. Got {value!r} instead.")
    return value


class _Paid(NamedTuple):
    """The release that was answered last, kept for a retry after an abort."""

    request: bytes
    bounded: Bounded
    grant: PartGrant

    def again(self, request: bytes) -> bool:
        """Whether a request is the same one in another attempt of the same step.

        In another step it is a further release, even if this client saw no sum of the first.
        """
        old = self.request
        if not (isinstance(request, Question) and isinstance(old, Question)):
            return False  # outside a secure sum nobody knows what was opened
        return request == old and request.step == old.step


class FederatedClient:
    """One client: answers requests through its own gate until its own budget is spent.

    Parameters
    ----------
    query : PrivateQuery
        Owns the client's rows.
    config : AggregationConfig
        Public counts of clients, colluders and drop-outs.
    signatures : dict
        For each class of query, the methods that may be asked and the checks of their arguments.
    epsilon, delta : float
        What this client spends at most.
    adjacency, unit : str
        What the guarantee protects.
    n_features : int
        Number of features, which the server must know.
    n_retries : int
        How often the same request is answered again in the same step of a secure sum, each time
        with fresh noise.
    trial : PrivateQuery or None
        A query of the same kind over public units: a request is tried on it before it is paid for.
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
        n_retries: int = 0,
        trial: PrivateQuery | None = None,
    ) -> None:
        parts = NoiseParts.of(config)
        self._query, self._trial = query, trial
        self._signatures = signatures
        self._parts = parts
        self._facts = Facts(unit, adjacency, n_features, *parts.counts)
        self._session = PrivacySession(
            finite_budget(float(epsilon), float(delta)),
            source=SystemSource(),
            adjacency=adjacency,
            unit=unit,
        )
        self._n_retries = check_count("n_retries", n_retries)
        self._serial = -1
        self._waiting: _Paid | None = None

    def respond(self, request: bytes) -> Words:
        """Return this client's noisy integers for one step: for a secure sum only.

        Parameters
        ----------
        request : bytes
            The public request of the server.

        Returns
        -------
        words : ndarray of uint64
            The contribution modulo 2**64. Alone it holds one part of the noise, too little.

        Raises
        ------
        MessageRefused
            If the request is malformed, unsound, repeated, or beyond this client's budget.
        """
        try:
            with self._session.lock:
                paid = self._waiting
                if paid is None or not paid.again(request):
                    paid = self._pay(request)
        except _PUBLIC_ERRORS as error:
            raise MessageRefused(str(error)) from None
        self._waiting = paid if self._n_retries else None  # it holds public matrices: let go
        try:
            noisy = paid.grant.contribute(paid.bounded.answer)
        except PrivacyError:
            raise MessageRefused("this request was answered already.") from None
        return pack(noisy, paid.bounded.bound)

    def _pay(self, request: bytes) -> _Paid:
        """Check everything, then pay; no private number is touched here."""
        agreed = self._parts.counts
        if isinstance(request, Question) and request.counts != agreed:
            raise PrivacyError(
                f"the secure sum has (clients, colluders, drop-outs) = {request.counts}; the noise "
                f"of this client is sized for {agreed}."
            )
        parsed = Request.decode(request)
        if parsed.facts != self._facts:
            raise PrivacyError(
                f"the server asks under {parsed.facts}; this client agreed to {self._facts}."
            )
        if parsed.serial <= self._serial:
            raise PrivacyError(f"release {parsed.serial} is not new; nothing was sent.")
        bounded = self._asked(self._query, parsed.calls)
        if self._trial is not None:
            tried = self._asked(self._trial, parsed.calls)
            if np.shape(tried.answer(0.0)) != bounded.bound.shape:
                raise PrivacyError("the request does not fit users' rows; nothing was sent.")
        size = packed_size(bounded.bound)
        if isinstance(request, Question) and request.size != size:
            raise PrivacyError(f"the secure sum adds {request.size} words, the answer has {size}.")
        grant = distribute(
            self._session, bounded.bound, parsed.share, self._parts,
            step=parsed.step, openings=1 + self._n_retries,
        )  # fmt: skip
        self._serial = parsed.serial
        return _Paid(request, bounded, grant)

    def _asked(self, query: Any, calls: tuple[Call, ...]) -> Bounded:
        for call in calls:
            query = narrowed(query, call, self._signatures)
        if not isinstance(query, Bounded):
            raise PrivacyError("the request names no release; nothing was sent.")
        return query

    @property
    def privacy_spent_(self) -> PrivacySpent:
        """The receipt of everything that this client answered."""
        return self._session.spent()

    @property
    def ledger_(self) -> tuple[LedgerEntry, ...]:
        """Each answer with its sensitivity and the noise that protects it."""
        return self._session.ledger

    def close(self) -> PrivacySpent:
        """Give up what is left of the budget and return the final receipt.

        How much a fit releases may follow from what it released before. A receipt that always
        states the whole budget does not depend on it.
        """
        self._waiting = None
        forfeit_rest(self._session)
        return self._session.spent()
