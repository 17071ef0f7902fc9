"""The algorithms as published: what the modules of single papers share."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from skdp._limits import FloatArray
from skdp.base import BaseDPEstimator, as_input_dtype, atomic
from skdp.decomposition._planning import DecompositionPlans
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.queries.entries import EntryQuery, rounded_release
from skdp.queries.interactions import InteractionQuery

# What the printed algorithms share: their fit.


class Published(DecompositionPlans, BaseDPEstimator, ABC):
    """A printed algorithm: checks, one session, releases."""

    @atomic
    def fit(self, X: Any, y: Any = None) -> Self:
        """Run the algorithm; spends (`epsilon`, `delta`), or less with printed constants.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The private matrix: users x items, of which non-zeros count as 1, or the adjacency
            matrix of a graph, of which the upper triangle counts, or any matrix to be factored.
        y : Ignored
            Not used.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        self._checked_session()  # errors about the budget come before those about the shape
        X = self._checked_matrix(X)
        session = self._open_session()
        attributes = self._fit_session(session, X)
        return self._close_session(session, as_input_dtype(attributes, X.dtype))

    @abstractmethod
    def _checked_matrix(self, X):
        """Return X as the algorithm takes it, or say what is wrong with it, or with its shape."""


# Products with the sensitivities that papers print, where these are larger than the exact ones.
#
# A query that is asked for products X -> A X has the exact bound of its own; a printed one that is
# larger is a bound as well, so that the noise it asks for protects at least as much. A printed
# bound that is smaller than the exact one never counts. X is n x p and public.
#
# | rule | bound of one interaction or pair that changes by 1 | from |
# |---|---|---|
# | "rows" | sqrt(2) times the largest length of a row of X | Nicolas et al. 2024, lemma 6.1 |
# | "prior" | sqrt(2 p) times the largest entry of X | Hardt, Price 2014 |
# | "width" | sqrt(2 p) | FedPower (Guo et al. 2024), as read by Nicolas et al. |
# | "independent" | sqrt(2): rows of an orthonormal X have length 1 at most | theorem 4.1 |
# | a number C | sqrt(2 C/n), for X with entries of at most sqrt(C/n) | Hardt, Roth 2013 |


RULES = ("rows", "prior", "width", "independent")


def published_bound(rule: str | float, X: FloatArray) -> float:
    """Return the printed bound for a public X: see the table of the module."""
    if not isinstance(rule, str):
        return math.sqrt(2 * rule / len(X))
    largest = 1.0
    if rule == "rows":
        largest = float(np.linalg.norm(X, axis=1).max())
    elif rule != "independent":
        largest = math.sqrt(X.shape[1]) * (float(np.abs(X).max()) if rule == "prior" else 1.0)
    return math.sqrt(2) * largest


class PublishedQuery(PrivateQuery):
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
        self._alpha, self._largest = 1.0, float(query.shape[0])  # R'R of rows of norm 1 at most
        if isinstance(query, EntryQuery):
            self._alpha, self._largest = query.unit.alpha, query.unit.largest

    def right(self, X: FloatArray) -> Bounded:
        """Return A X (for interactions R'R X)."""
        own = self._query.right(X)
        return own._replace(bound=own.bound._replace(l2=self._l2(own, X)))

    def _l2(self, own: Bounded, X: FloatArray) -> float:
        printed = self._alpha * published_bound(self._rule, np.asarray(X))
        return self._more * max(own.bound.l2, printed)

    def length(self, x: FloatArray, removed: FloatArray) -> Bounded:
        """Return ||A x - removed|| for public vectors: it moves by at most as much as A x does.

        The float error of the norm is relative, and its size at most n max|A| ||x||: public.
        """
        x = np.reshape(x, (-1, 1))
        own = self._query.right(x)
        n, terms = len(removed), sum(self._query.shape)
        radius = self._largest * n * float(np.linalg.norm(x)) + float(np.linalg.norm(removed))

        def compute() -> Any:
            return np.linalg.norm(own.answer(0.0)[:, 0] - removed)

        error = 2 * (terms + 4) * sys.float_info.epsilon * radius
        return rounded_release("vector_norm", (), self._l2(own, x), error, compute)


_VALUES = 0.1  # budget for the eigenvalues, relative to the steps: the paper does not charge them


def step_share(session, multiplier, n_steps):
    """Return the share of each of several steps whose noise is `multiplier` sensitivities.

    A share of mu squared that is fixed before the first step; more than there is, is refused.
    """
    share, needed = 1 / (multiplier * session.budget.mu) ** 2, math.sqrt(n_steps)
    if share * n_steps > 1 + 1e-9:
        raise ValueError(
            "calibration='printed' protects less than it says at this 'epsilon' and 'delta': its "
            f"noise multiplier {multiplier:.3g} is below {needed / session.budget.mu:.3g}. Use "
            "calibration='exact', or a smaller 'epsilon'."
        )
    return share


def check_square(estimator, shape):
    """Refuse what is no adjacency matrix."""
    if shape[0] != shape[1]:
        raise ValueError(
            f"{type(estimator).__name__} needs the square adjacency matrix of a graph for edges. "
            f"Got shape {tuple(shape)} instead."
        )
