"""The public face of a query, which is all that a solver sees of private data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bounded, PrivateQuery

__all__ = ["Ask"]


class Verbs(Protocol):
    """What an `Ask` needs of a session: pay, read, add noise."""

    def release(self, bounded: Bounded, share: float) -> Answer: ...

    def choose(self, bounded: Bounded, share: float) -> int: ...

    def forfeit(self, share: float) -> None: ...


class Ask:
    """The public face of a query: every method is one release, or a narrowed `Ask`.

    Solvers get an `Ask` and see public answers only: ``ask.gram(share=1.0)`` pays, reads, adds
    noise and returns an `Answer`; ``ask.clipped(2.0)`` narrows the query and returns another `Ask`.
    """

    def __init__(self, session: Verbs, query: object) -> None:
        self._session = session
        self._query = query

    def forfeit(self, share: float) -> None:
        """Pay a share and release nothing for it."""
        self._session.forfeit(share)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(type(self._query), name, None)):
            raise AttributeError(f"a query has no release named {name!r}")
        method = getattr(self._query, name)

        def ask(*public: Any, share: float | None = None) -> Any:
            out = method(*public)
            if isinstance(out, PrivateQuery):
                return Ask(self._session, out)
            if not isinstance(out, Bounded):
                raise PrivacyError(f"{name} is neither a release nor a narrowed query")
            if share is None:
                raise TypeError(f"{name} is a release: it needs a share of the budget")
            verb = self._session.release if out.bound.linf is None else self._session.choose
            return verb(out, share)

        return ask
