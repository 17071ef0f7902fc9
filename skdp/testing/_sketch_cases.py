"""Data, neighbours and worst-case pairs of `DPLowRankFactorizer`."""

import numpy as np

from skdp.decomposition import DPLowRankFactorizer
from skdp.testing._data import CONTRASTS, FitData, register_data, settings_of
from skdp.testing._neighbours import register_neighbours, unit_vector
from skdp.testing._norm_neighbours import FrobeniusNeighbours
from skdp.testing._pairs import CANDIDATES, register_pairs


@register_data("rank_one")
def _rank_one_data(estimator, rng):
    return CONTRASTS["frobenius"](estimator, rng)


@register_neighbours("rank_one")
class RankOneNeighbours(FrobeniusNeighbours):
    """A change of rank one and of norm `scale`."""

    def _scaled(self, change):
        left, values, right = np.linalg.svd(change)
        return self.scale * (1 - 1e-12) * np.outer(left[:, 0], right[0]) * (values[0] > 0)


@register_pairs(DPLowRankFactorizer)
def _factorizer_pairs(estimator):
    """A row against zeros or its opposite, an entry, or a change of rank one and full norm."""
    settings = settings_of(estimator)
    if settings.unit == "entry":
        yield from CANDIDATES["entry"](estimator)
        return
    if settings.unit != "row":
        d, n = settings.n_features, settings.n_rows
        size = estimator.sensitivity * (1 - 1e-12)
        spike, flat = np.zeros((n, d)), np.full((n, d), size / np.sqrt(n * d))
        spike[0, 0] = size
        for name, change in (("one entry", spike), ("flat", flat)):
            yield name, FitData(np.zeros((n, d))), FitData(change)
        return
    rng = np.random.default_rng(0)
    d = settings.n_features
    base = rng.standard_normal((settings.n_rows, d))
    lines = {"spike": np.eye(d)[0], "flat": np.ones(d), "random": rng.standard_normal(d)}
    for name, line in lines.items():
        row = 1e15 * unit_vector(line)
        other = -row if settings.adjacency == "replace" else 0 * row
        pair = [np.vstack([base, x]) for x in (row, other)]
        yield f"a huge {name} row", FitData(pair[0]), FitData(pair[1])
