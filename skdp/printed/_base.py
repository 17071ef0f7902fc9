"""What the printed algorithms share: their fit and their plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

from skdp.base import BaseDPEstimator, atomic
from skdp.decomposition._base import as_input_dtype
from skdp.theory import Expectation, FitPlan, check_counts, constant_error, rehearse, zero_rows


class Printed(BaseDPEstimator, ABC):
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
        self._checked_session()  # what is wrong with the budget is said before the shape
        X = self._checked_matrix(X)
        self._check_shape(X.shape)
        session = self._open_session()
        attributes = self._fit_session(session, X)
        return self._close_session(session, as_input_dtype(attributes, X.dtype))

    @abstractmethod
    def _checked_matrix(self, X):
        """Return X as the algorithm takes it, or say what is wrong with it."""

    @abstractmethod
    def _check_shape(self, shape):
        """Refuse a shape that does not go with the parameters."""

    def plan(self, n_samples: int, n_features: Any = None, *, signal: Any = None) -> FitPlan:
        """Say what a fit would release; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone. There is no expected error; see
        the bounds of `skdp.theory`.

        Parameters
        ----------
        n_samples : int
            Number of rows; of nodes, for a graph.
        n_features : int or None, default=None
            Number of columns; None is `n_samples`.
        signal : None
            Not used.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.releases`` are numbers.
        """
        m, n = n_samples, n_samples if n_features is None else n_features
        check_counts(self, n_samples=m, n_features=n)
        self._check_parameters()
        self._check_shape((m, n))
        rehearsal = rehearse(self, m, zero_rows(m, n, sparse=True))
        products = [line for line in rehearsal.lines if line.name != "length"]
        edge = products[-1].noise_scale * (math.sqrt(n) + math.sqrt(self.n_components))
        expected = Expectation(
            error=constant_error,
            meaning="not known: printed algorithms have bounds, in skdp.theory",
            found=edge,
            signal="singular value above the edge of the noise of the last release",
            assumptions=("none",),
            scales=False,
        )
        return rehearsal.plan(m, n, expected)
