"""Linear sketches: proved norms are attained and not exceeded, and streams are exact."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2

from skdp._limits import EXACT
from skdp.data.products import SketchMap
from skdp.decomposition._factorizer_state import Layout, draw_maps
from skdp.privacy import PrivacyBudget
from skdp.privacy.gate.bounds import gaussian_step, laplace_step
from skdp.privacy.noise.words import SeededSource
from skdp.privacy.streams.sketches import SketchSource
from skdp.queries.sketches import SketchUnit, Updates, Whole
from tools.gate import new_session

KINDS = ("gaussian", "srht", "sparse", "isometry")
UNITS = {
    "frobenius": ("add_remove",),
    "rank_one": ("add_remove",),
    "row": ("zero_out", "replace"),
    "entry": ("add_remove", "replace"),
}
CASES = [
    (unit, adjacency, kind)
    for unit, adjacencies in UNITS.items()
    for adjacency, kind in itertools.product(adjacencies, KINDS)
]
SHAPE = (7, 6)
LOW, HIGH = -0.5, 2.0


def maps_of(kind, method="three_sketch", shape=SHAPE, t=3, v=5, seed=0, unit="entry"):
    gate = new_session(source=SeededSource(seed))
    plan = Layout(method, shape, t, v, SketchUnit(unit), False, 2)
    return draw_maps(plan, kind, SketchSource.of(gate, seed))


def unit_of(name, adjacency, stream=False):
    return SketchUnit(name, adjacency, LOW, HIGH, 1.7, stream=stream, clip_norm=1.7)


def neighbours(unit, adjacency, sketch, rng):
    """Yield pairs of matrices: random, spikes, and along the worst directions of the sketch."""
    m, n = SHAPE
    F = np.eye(n) if sketch.right is None else sketch.right.real()
    S = np.eye(m) if sketch.left is None else sketch.left.real()
    v = np.linalg.svd(F)[0][:, 0]
    u = np.linalg.svd(S)[0][:, 0]
    i, j = (int(np.argmax((M**2).sum(axis=1))) for M in (S, F))
    for scale in (1e-12, 1e-3, 1.0, 1e6, 1e12):
        base = scale * rng.standard_normal(SHAPE)
        if unit == "entry":
            for old, new in ((0.0, HIGH), (0.0, LOW), (LOW, HIGH), (-1e12, 1e12), (0.0, np.nan)):
                if adjacency == "add_remove" and old:
                    continue
                first, second = base.copy(), base.copy()
                first[i, j], second[i, j] = old, new
                yield first, second
        elif unit == "row":
            for line in (v, np.eye(n)[j], rng.standard_normal(n), np.ones(n)):
                for size in (1.7, 1e12, 1e-6):
                    first, second = base.copy(), base.copy()
                    first[i] = size * line / np.linalg.norm(line)
                    second[i] = 0.0 if adjacency == "zero_out" else -first[i]
                    yield first, second
        else:
            changes = [np.outer(u, v), np.outer(np.eye(m)[i], np.eye(n)[j])]
            changes += [rng.standard_normal(SHAPE)] if unit == "frobenius" else []
            for E in changes:
                yield base, base + 1.7 * (1 - 1e-9) * E / np.linalg.norm(E)


def largest_ratio(unit, sketch, pairs, mu=0.2):
    """Largest change of the integers over what the bound claims."""
    bound = unit.bound(sketch, random=False)
    laws = [(gaussian_step(bound, mu), bound.l2_steps, 2)]
    laws += [(laplace_step(bound, mu), bound.l1_steps, 1)] if bound.l1 is not None else []
    out = 0.0
    for first, second in pairs:
        if unit.name in ("frobenius", "rank_one") and np.abs(first).max() > 1e9:
            continue  # 1.7 next to 1e12 is lost in the rounding of the floats themselves
        for step, most, order in laws:
            answers = [Whole(A, unit).answer(sketch)(step) for A in (first, second)]
            change = (answers[1] - answers[0]).astype(float).ravel()
            out = max(out, float(np.linalg.norm(change, order)) / most(step))
    return out


@pytest.mark.parametrize(
    ("name", "adjacency", "kind"),
    [
        pytest.param(*case, marks=[pytest.mark.deep] * (case[0] == "row" and case[2] in KINDS[1:3]))
        for case in CASES
    ],
)
def test_exact_norms_of_a_matrix_hold_and_are_reached(name, adjacency, kind):
    unit, rng = unit_of(name, adjacency), np.random.default_rng(0)
    for sketch in maps_of(kind) + maps_of(kind, "dense", unit=name):
        ratio = largest_ratio(unit, sketch, neighbours(name, adjacency, sketch, rng))
        assert ratio <= 1 + 1e-9
        assert ratio > 0.97, sketch.name
        if name == "row":  # it comes whole in a stream, too
            stream = unit_of(name, adjacency, stream=True)
            assert stream.bound(sketch, random=False) == unit.bound(sketch, random=False)


def test_truncated_entries_are_stretched_like_the_change():
    unit = unit_of("frobenius", "add_remove")
    for sketch in maps_of("gaussian"):
        bound = unit.bound(sketch, random=False)
        norm = math.sqrt(math.prod(SHAPE)) * sketch.scale  # of an array of steps
        assert bound.slack > norm * bound.l2 / unit.change
    free = SketchUnit("frobenius", low=-math.inf, high=math.inf)
    values = np.array([math.nan, 1e308, -math.inf, 0.75])
    assert free.contributions(values, 2.0**-9).tolist() == [0.0, EXACT, -EXACT, 384.0]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "adjacency"), [("frobenius", "add_remove"), ("entry", "replace")])
def test_the_sum_of_a_units_updates_is_bounded(name, adjacency, kind):
    """Many updates of less than a unit, at one place or spread: truncation never adds to them."""
    unit, rng = unit_of(name, adjacency, stream=True), np.random.default_rng(1)
    most = unit.change
    for sketch in maps_of(kind, "two_sketch"):
        bound = unit.bound(sketch, random=False)
        step = gaussian_step(bound, 0.2)
        best, side = 0.0, sketch.right or sketch.left
        place = int(np.argmax((side.integers() ** 2).sum(axis=1)))
        for count in (1, 2, 3, 1000):
            for spread in (False, True):
                sizes = rng.dirichlet(np.ones(count)) * most * (1 - 1e-12)
                signs = rng.choice([-1, 1], count) if spread else np.ones(count)
                deltas = np.clip(sizes, 0, HIGH) * signs
                rows = rng.integers(0, 7, count) if spread else np.full(count, place % 7)
                columns = rng.integers(0, 6, count) if spread else np.full(count, place % 6)
                z = Updates(rows, columns, deltas, unit).answer(sketch)(step)
                best = max(best, np.linalg.norm(z.astype(float)) / bound.l2_steps(step))
        assert 0.6 < best <= 1 + 1e-9


def test_rounding_to_nearest_would_break_the_contract():
    unit = unit_of("frobenius", "add_remove", stream=True)
    small = np.full(10, 0.6)
    assert np.abs(unit.contributions(small, 1.0)).sum() == 0 < np.abs(np.rint(small)).sum()
    x = np.random.default_rng(0).standard_normal(1000) * 50
    np.testing.assert_array_equal(unit.contributions(-x, 1.0), -unit.contributions(x, 1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("v", ["spike", "flat", "random"])
def test_the_law_of_a_gaussian_sketch(v, rng):
    """|v'F|^2 over fresh sketches: mean at most one, and the tails of chi2_t / t."""
    n, t, count = 12, 5, 4000
    line = {"spike": np.eye(n)[0], "flat": np.ones(n), "random": rng.standard_normal(n)}[v]
    line = line / np.linalg.norm(line)
    F = maps_of("gaussian", "two_sketch", (3, n * count), t=t)[0].right.real()
    x = np.einsum("j,cjt->ct", line, F.reshape(count, n, t))
    x = (x**2).sum(axis=1)
    assert abs(x.mean() - 1) < 6 * math.sqrt(2 / t / count) + 1e-3
    for q in (0.01, 0.5, 0.99):
        p = np.mean(x > chi2.isf(q, t) / t)
        assert abs(p - q) < 6 * math.sqrt(q * (1 - q) / count) + 0.002


@pytest.mark.parametrize("place", range(3))
def test_the_claimed_law_of_each_sketch_is_the_law_of_its_change(place, rng):
    """One entry changes: the squared norm over the bound, by simulation, against the degrees.

    A sketch from both sides multiplies it by two independent chi-squares.
    """
    count = 4000
    sketch = maps_of("gaussian", "three_sketch", (count, count), t=5, v=4)[place]
    bound = SketchUnit("frobenius", "add_remove", sensitivity=1.0).bound(sketch, random=True)
    sides = [side.real() for side in (sketch.left, sketch.right) if side is not None]
    squares = np.prod([(side**2).sum(axis=1) for side in sides], axis=0) / bound.l2**2
    law = np.prod([rng.chisquare(d, 10**6) / d for d in bound.law.degrees], axis=0)
    for q in (0.01, 0.5, 0.99):
        p = np.mean(squares > np.quantile(law, 1 - q))
        assert abs(p - q) < 6 * math.sqrt(q * (1 - q) / count) + 0.003, q


def test_structural_norms():
    for kind in ("sparse", "srht"):
        right = maps_of(kind, shape=(40, 50), t=12, v=20)[0].right
        np.testing.assert_allclose((right.real() ** 2).sum(axis=1), 1.0)
        assert right.largest_row() == pytest.approx(1.0, abs=1e-8)
    sparse = maps_of("sparse", shape=(40, 50), t=12, v=20)[0].right
    assert all(len(set(row)) == 8 for row in sparse.positions)  # drawn without replacement
    for kind in KINDS:
        right = maps_of(kind, shape=(40, 50), t=12, v=20)[0].right
        exact = np.linalg.norm(right.real(), 2)
        assert exact <= right.spectral() <= exact * (1 + 1e-8)
    isometry = maps_of("isometry", shape=(40, 50), t=12, v=20)[0].right
    assert isometry.spectral() == pytest.approx(math.sqrt(50 / 12), rel=1e-2)


# -- truncation of large floats, and updates that move in time ------------------------------------

LARGE = (532, 532)


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
    sketch, mu, side = SketchMap("matrix", LARGE), PrivacyBudget(1e-6, 1e-6).mu, LARGE[0]
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
    A, B = np.full(LARGE, x), np.full(LARGE, y)
    assert np.linalg.norm(B - A) <= unit.change * (1 + 1e-12)
    change = Whole(B, unit).answer(sketch)(step) - Whole(A, unit).answer(sketch)(step)
    assert 0.8 * allowed < np.linalg.norm(change.astype(np.float64)) <= allowed


def test_updates_of_a_replaced_entry_may_come_at_other_times():
    """1 in the first step against 1 in the second: the changes of the steps sum to 2."""
    unit = SketchUnit("entry", "replace", stream=True, low=0.0, high=1.0)
    first, second = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert np.abs(first - second).sum() <= unit.change
    assert SketchUnit("entry", "replace", low=0.0, high=1.0).change == 1.0


# -- streams are exact -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_state_of_one_batch(kind, rng):
    """Any order, repeats, signs, batches, dense or sparse: equal integers, also if they wrap."""
    unit = unit_of("frobenius", "add_remove", stream=True)
    step = 2.0**-30
    rows, columns = rng.integers(0, 7, 500), rng.integers(0, 6, 500)
    for scale in (1.0, 1e9):
        for sketch in (*maps_of(kind), *maps_of(kind, "dense")):
            size = step * sketch.scale
            z = rng.integers(-50, 50, 500) * scale
            deltas = size * np.sign(z) * (np.abs(z) + 0.5)
            total = np.zeros(SHAPE)
            np.add.at(total, (rows, columns), z)
            whole, again, blocks, state = np.zeros((4, *sketch.out_shape), np.int64)
            sketch.add_matrix(whole, total)
            order = rng.permutation(500)
            for part in np.array_split(order, 7):
                batch = Updates(rows[part], columns[part], deltas[part], unit)
                state += batch.answer(sketch)(step)
            np.testing.assert_array_equal(state, whole)
            sketch.add_matrix(again, sp.csr_array(total))
            np.testing.assert_array_equal(again, whole)
            for a in (0, 3, 6):
                sketch.add_matrix(blocks, total[a : a + 3], a)
            np.testing.assert_array_equal(blocks, whole)


def test_duplicate_entries_are_summed_before_they_are_clipped():
    unit = unit_of("entry", "add_remove")
    sketch = maps_of("sparse", "two_sketch")[0]
    doubled = sp.coo_array((np.full(9, 2.0), (np.zeros(9, int), np.zeros(9, int))), shape=SHAPE)
    plain = sp.csr_array(([2.0], ([0], [0])), shape=SHAPE)
    step = gaussian_step(unit.bound(sketch, random=False), 0.2)
    X = sp.csr_array((doubled.data, doubled.coords[1], [0, 9, 9, 9, 9, 9, 9, 9]), shape=SHAPE)
    a, b = (Whole(M, unit).answer(sketch)(step) for M in (X, plain))
    np.testing.assert_array_equal(a, b)


def test_dense_rows_of_any_budget_keep_their_noise():
    """For a fine step, rows use a multiple of their finest unit, and not more noise."""
    unit = unit_of("row", "zero_out")
    sketch = maps_of("gaussian", "dense")[0]
    bound = unit.bound(sketch, random=False)
    x = np.random.default_rng(0).standard_normal((7, 6))
    for mu in (0.01, 0.2, 6.0):
        step = gaussian_step(bound, mu)
        z = Whole(x, unit).answer(sketch)(step) * step
        clipped = x * np.minimum(1, 1.7 / np.linalg.norm(x, axis=1))[:, None]
        np.testing.assert_allclose(z, clipped, atol=1e-5)
        assert step == pytest.approx(1.7 / mu / 1012522500.75, rel=1e-6, abs=0)
