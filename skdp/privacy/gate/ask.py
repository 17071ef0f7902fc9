"""The public face of a query, which is all that a solver sees of private data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bounded, PrivateQuery

Path: TypeAlias = "tuple[tuple[str, tuple[Any, ...]], ...]"


class _Answers(Protocol):
    """Who pays, reads and adds noise for an `Ask`: a session, here or elsewhere."""

    def answer(self, path: Path, bounded: Bounded, share: float) -> Any: ...

    def forfeit(self, share: float) -> None: ...

    def turn(self, kind: str) -> None: ...


class Ask:
    """The public face of a query: every method is one release, or a narrowed `Ask`.

    Solvers get an `Ask` and see public answers only: ``ask.gram(share=1.0)`` pays, reads, adds
    noise and returns an `Answer`; ``ask.clipped(2.0)`` narrows the query and returns another `Ask`.
    `path` are the methods and public arguments that led here.
    """

    def __init__(self, session: _Answers, query: object, path: Path = ()) -> None:
        self._session = session
        self._query = query
        self._path = path

    def forfeit(self, share: float) -> None:
        """Pay a share and release nothing for it."""
        self._session.forfeit(share)

    def turn(self, kind: str) -> None:
        """End the first stage of a staged budget: what follows is "pure" or "gaussian"."""
        self._session.turn(kind)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(type(self._query), name, None)):
            raise AttributeError(f"a query has no release named {name!r}")
        method = getattr(self._query, name)

        def ask(*public: Any, share: float | None = None) -> Any:
            out, path = method(*public), (*self._path, (name, public))
            if isinstance(out, PrivateQuery):
                return Ask(self._session, out, path)
            if not isinstance(out, Bounded):
                raise PrivacyError(f"{name} is neither a release nor a narrowed query")
            if share is None:
                raise TypeError(f"{name} is a release: it needs a share of the budget")
            return self._session.answer(path, out, share)

        return ask
