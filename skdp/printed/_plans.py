"""Plans of the printed algorithms: their releases, without an expected error."""

from __future__ import annotations

import math
from typing import Any

from skdp.theory import Expectation, FitPlan, check_counts, constant_error, rehearse, zero_rows


class PrintedPlanMixin:
    """The method `plan` of the printed algorithms."""

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
