"""Products with the sensitivities that papers print, where these are larger than the exact ones.

A query that is asked for products X -> A X has the exact bound of its own; a printed one that is
larger is a bound as well, so that the noise it asks for protects at least as much. A printed bound
that is smaller than the exact one never counts. X is n x p and public.

| rule | bound of one interaction or pair that changes by 1 | from |
|---|---|---|
| "rows" | sqrt(2) times the largest length of a row of X | Nicolas et al. 2024, lemma 6.1 |
| "prior" | sqrt(2 p) times the largest entry of X | Hardt, Price 2014 |
| "width" | sqrt(2 p) | FedPower (Guo et al. 2024), as read by Nicolas et al. |
| "independent" | sqrt(2): rows of an orthonormal X have length 1 at most | theorem 4.1 |
| a number C | sqrt(2 C/n), for X with entries of at most sqrt(C/n) | Hardt, Roth 2013 |
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.queries.entries import EntryQuery, rounded_release
from skdp.queries.interactions import InteractionQuery

FloatArray = NDArray[np.float64]
_ULP = 2.0**-52
RULES = ("rows", "prior", "width", "independent")


def printed_bound(rule: str | float, X: FloatArray) -> float:
    """Return the printed bound for a public X: see the table of the module."""
    if not isinstance(rule, str):
        return math.sqrt(2 * rule / len(X))
    largest = 1.0
    if rule == "rows":
        largest = float(np.linalg.norm(X, axis=1).max())
    elif rule != "independent":
        largest = math.sqrt(X.shape[1]) * (float(np.abs(X).max()) if rule == "prior" else 1.0)
    return math.sqrt(2) * largest


class PrintedQuery(PrivateQuery):
    """Products of a private symmetric matrix, with a printed sensitivity if it is larger.

    Parameters
    ----------
    query : EntryQuery or InteractionQuery
        Of the edge unit, or of one interaction.
    rule : {"rows", "prior", "width", "independent"} or float
        Which sensitivity.
    n_parties : int, default=1
        Parties of which each adds all of the noise: the sum has its root times as much.
    """

    def __init__(
        self, query: EntryQuery | InteractionQuery, rule: str | float, n_parties: int = 1
    ) -> None:
        if isinstance(query, EntryQuery) and not query.symmetric:
            raise PrivacyError("printed sensitivities are for symmetric pairs or interactions.")
        self._query, self._rule, self._more = query, rule, math.sqrt(n_parties)
        self._alpha = self._largest = 1.0
        if isinstance(query, EntryQuery):
            self._alpha, unit = query.unit.alpha, query.unit
            self._largest = max(abs(unit.low), abs(unit.high))
        else:  # R'R of rows of norm 1 at most
            self._largest = float(query.shape[0])

    def right(self, X: FloatArray) -> Bounded:
        """Return A X (for interactions R'R X)."""
        own = self._query.right(X)
        return replace(own, bound=replace(own.bound, l2=self._l2(own, X)))

    def _l2(self, own: Bounded, X: FloatArray) -> float:
        printed = self._alpha * printed_bound(self._rule, np.asarray(X))
        return self._more * max(own.bound.l2, printed)

    def length(self, x: FloatArray, removed: FloatArray) -> Bounded:
        """Return ||A x - removed|| for public vectors: it moves by at most as much as A x does.

        The float error of the norm is relative, and its size at most n max|A| ||x||: public.
        """
        x = np.reshape(x, (-1, 1))
        own = self._query.right(x)
        n, terms = len(removed), sum(self._query.shape)
        reach = self._largest * n * float(np.linalg.norm(x)) + float(np.linalg.norm(removed))

        def compute() -> Any:
            return np.linalg.norm(own.answer(0.0)[:, 0] - removed)

        error = 2 * (terms + 4) * _ULP * reach
        return rounded_release("length", (), self._l2(own, x), error, compute)
