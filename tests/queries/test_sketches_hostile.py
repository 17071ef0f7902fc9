"""Bounds of sketches where they are met: truncation of large floats, updates that move in time."""

import numpy as np

from skdp.data.products import SketchMap
from skdp.privacy.gate.bounds import PrivacyBudget, gaussian_step
from skdp.queries.sketches import SketchUnit, Whole

SHAPE = (532, 532)


def best_pair(unit, u, largest):
    """Return floats x < y near 2**51 units, at most `largest` apart, whose integers jump most."""
    x = 2.0**51 * u * (1 + 2.0**-52 * np.arange(-40, 41))
    y = (x + largest)[:, None] + np.spacing(x[:1]) * np.arange(-6, 2)
    jump = unit.contributions(y, u) - unit.contributions(x, u)[:, None]
    jump[y - x[:, None] > largest] = 0
    i, j = np.unravel_index(np.argmax(jump), jump.shape)
    return jump[i, j], x[i], y[i, j]


def test_truncation_of_large_entries_stays_in_the_bound():
    """Near 2**51 units a float product moves the steps of the truncation: 1.015 of the bound."""
    sketch, mu, side = SketchMap("matrix", SHAPE), PrivacyBudget(1e-6, 1e-6).mu, SHAPE[0]
    worst = 0.0
    for D in np.linspace(1.0, 2.0, 1000):
        unit = SketchUnit("frobenius", sensitivity=D)
        bound = unit.bound(sketch, random=False)
        step = gaussian_step(bound, mu)
        jump, x, y = best_pair(unit, step, D / side)
        ratio = jump * side / bound.l2_steps(step)
        if ratio > worst:
            worst, pair = ratio, (unit, step, x, y, bound.l2_steps(step))
    unit, step, x, y, allowed = pair
    A, B = np.full(SHAPE, x), np.full(SHAPE, y)
    assert np.linalg.norm(B - A) <= unit.change * (1 + 1e-12)
    change = Whole(B, unit).answer(sketch)(step) - Whole(A, unit).answer(sketch)(step)
    assert 0.8 * allowed < np.linalg.norm(change.astype(np.float64)) <= allowed


def test_updates_of_a_replaced_entry_may_come_at_other_times():
    """1 in the first step against 1 in the second: the changes of the steps sum to 2."""
    unit = SketchUnit("entry", "replace", stream=True, low=0.0, high=1.0)
    first, second = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert np.abs(first - second).sum() <= unit.change
    assert SketchUnit("entry", "replace", low=0.0, high=1.0).change == 1.0
