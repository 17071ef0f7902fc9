"""Plans of score plots: a rehearsed fit, and how clear its picture will be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from skdp.data.blocks import row_source
from skdp.data.places import Placed
from skdp.solvers.density import cell_edge, cell_error, least_class
from skdp.theory import Expectation, FitPlan, check_counts, rehearse, searched_error, zero_rows

_DEVIATIONS = 3.0


class ScorePlansMixin:
    """The method `plan` of score plots."""

    def plan(self, n_samples: int, n_features: int) -> FitPlan:
        """Say what a fit would release, and how clear the picture will be; no data is touched.

        Costs nothing: the fit is rehearsed on the shape alone. Pass a guess for a number of samples
        that is private. Classes are taken to be equally large.

        Parameters
        ----------
        n_samples, n_features : int
            Shape of the data.

        Returns
        -------
        plan : FitPlan
            ``print(plan)`` shows it; ``plan.error`` and ``plan.releases`` are numbers.
        """
        check_counts(self, n_samples=n_samples, n_features=n_features)
        self._check_parameters()
        groups = max(1, len(self._classes()))
        rows = n_samples if self.adjacency == "replace" else 1  # the other way nobody asks for it
        X = zero_rows(rows, n_features)
        if self.classes is not None:
            X = Placed(row_source(X), {"y": np.full(rows, self._classes()[0])})
        rehearsal = rehearse(self, n_samples, X, class_counts=partial(equal_classes, groups=groups))
        expected = self._expected(rehearsal, groups)
        ranks = [line.noise_scale for line in rehearsal.named("column_ranks")]
        if ranks:
            facts = {"error": expected.error, "nothing": 1.0, "noise_scale": max(ranks)}
            expected = replace(expected, error=partial(searched_error, **facts))
        return rehearsal.plan(n_samples, n_features, expected)

    def _expected(self, rehearsal, groups):
        last = rehearsal.lines[-1]
        if last.name == "class_moments":
            return Expectation(
                error=partial(mean_error, noise=last.noise_scale, groups=groups),
                meaning="error of the mean of a class, in its standard deviations",
                found=least_class(last.noise_scale),
                signal="rows of a class that is shown",
                assumptions=(f"{groups} equally large class(es), shown as ellipses",),
                goal=0.5,
            )
        side = round(((last.size - 1) / groups) ** 0.5)
        return Expectation(
            error=partial(density_error, side=side, noise=last.noise_scale, groups=groups),
            meaning="noise of a cell where rows crowd, as a share of what it holds",
            found=cell_edge(last.size, last.noise_scale),
            signal="rows in one cell, smoothed",
            assumptions=(f"{groups} equally large class(es), {side} x {side} cells",),
            goal=0.5,
        )


def equal_classes(n, _noise, groups):
    """Return what classes of one size answer when they are counted."""
    return np.full(groups, n / groups)


def mean_error(n, noise, groups):
    """Return the error of a released class mean, in standard deviations of the class."""
    return _DEVIATIONS * noise * groups / n


def density_error(n, side, noise, groups):
    """Return the relative noise of a cell where the rows of one class crowd."""
    return cell_error(n / groups, side, noise)
