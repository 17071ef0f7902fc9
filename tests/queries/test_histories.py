"""Histories: the bounds of both units by force, what is hidden, and rows by themselves."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.blocks import SparseRows
from skdp.data.histories import binary_rows, hidden_cells
from skdp.queries.interactions import InteractionHistories, RowHistories, VoteQuery
from skdp.solvers.item_filter import ItemFilter
from skdp.testing import check_sensitivity
from tools.fit_checks import check_order_invariance

RNG = np.random.default_rng(0)
BLENDS = (0.25, 1.0, 4.0)
LIST = 10  # of 40 items
KEPT = np.array([0, 2, 3, 5])
POPULAR = np.array([0.8, 0.5, 0.3, 0.0])  # of the kept items
# 41 meet all four partners of a replaced row: one start in 12 would meet one of them alone
SMALL = {"max_starts": 41, "n_climb": 6, "budgets": (0.3,)}  # one step: rounding is that of rows
BINARY = [(RNG.random((8, 6)) < p).astype(float) for p in (0.0, 0.4, 1.0)]


def random_filter(n=40, rank=2, seed=0, size=30.0):
    rng = np.random.default_rng(seed)
    kept = np.arange(n)
    inward = np.column_stack([np.ones(n), rng.standard_normal((n, rank))])
    outward = size * rng.standard_normal((rank, n))
    return ItemFilter(kept, 1 + rng.random(n), inward, outward, 1.0)


def judge(tastes, judged=1.0):
    """What a query is asked for the votes on all blends."""
    return (*tastes.arrays(), np.outer(BLENDS, np.ones(tastes.rank)), judged)


def rows(adjacency, cap=None, **options):
    return lambda X: RowHistories(
        SparseRows(sp.csr_array(X)), adjacency=adjacency, cap=cap, **options
    )


def interactions(adjacency):
    return lambda R: InteractionHistories(R, adjacency=adjacency)


@pytest.mark.deep
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("release", ["counts", "counts for pure noise", "moment"])
def test_row_bounds_hold_and_are_tight(release, adjacency, cap):
    name, _, pure = release.partition(" for ")
    public = (np.arange(4), 1, 0.5, 0.2, POPULAR) if name == "moment" else ()
    make = rows(adjacency, cap, pure=bool(pure))
    report = check_sensitivity(make, name, *public, adjacency=adjacency, **SMALL)
    assert report.ratio > 0.98
    assert not pure or report.ratios["l1"] > 0.98


@pytest.mark.parametrize("step", [1.0, 1e-3, 2.0**-20, 2.0**-40, 0.0])
def test_a_history_adds_no_more_than_one_to_counts_for_pure_noise(step):
    """In whole units, however its numbers round; nearly all of it where units are small."""
    rng = np.random.default_rng(0)
    cases = [np.ones(d) for d in (1, 3, 49, 10_000)]
    cases += [rng.exponential(size=500), 5e-324 * np.ones(7), 1e300 * np.ones(3)]
    cases += [np.array([1.0, 1e-300]), -np.ones(4), np.array([np.nan, 1.0])]
    for x, cap in [(x, cap) for x in cases for cap in (None, 3.0)]:
        added = rows("add_remove", cap, pure=True)(x[None]).counts().answer(step)
        total = float(added.sum()) * (step or 1.0)
        assert added.min() >= 0
        assert total <= (1.0 if step else 1 + 1e-12)
        if np.isfinite(x).all() and x.max() >= 0.01 and step < 1e-6:
            assert total > 0.97


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize(
    ("release", "public"),
    [("counts", ()), ("moment", (KEPT, 1, 0.5, 0.2, POPULAR)),
     ("moment", (KEPT, 2, 0.5, 0.1, POPULAR)),
     ("moment", (np.arange(6), 3, 0.0, 0.2, np.zeros(6)))],
)  # fmt: skip
def test_interaction_bounds_hold_and_are_tight(release, public, adjacency):
    report = check_sensitivity(
        interactions(adjacency), release, *public, unit="interaction", adjacency=adjacency,
        bases=BINARY, **SMALL,
    )  # fmt: skip
    assert report.ratio > 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_one_interaction_moves_so_many_cells(adjacency):
    rng, most, bound = np.random.default_rng(1), 0, None
    for _ in range(300):
        R = (rng.random((5, 6)) < 0.5).astype(float)
        S = R.copy()
        u, i = rng.integers(5), rng.integers(6)
        if adjacency == "add_remove":
            S[u, i] = 1 - S[u, i]
        else:
            ones, zeros = np.flatnonzero(R[u]), np.flatnonzero(R[u] == 0)
            if not len(ones) or not len(zeros):
                continue
            S[u, rng.choice(ones)], S[u, rng.choice(zeros)] = 0, 1
        first, second = (interactions(adjacency)(A).cells(KEPT, 0.5) for A in (R, S))
        bound = first.bound.cells
        most = max(most, np.setxor1d(first.answer(1.0), second.answer(1.0)).size)
    assert most == bound


# -- votes -----------------------------------------------------------------------------------------


def histories(rng, n_users=4, n_items=40):
    density = rng.choice([0.05, 0.2, 0.5, 0.9], n_users)[:, None]
    return (rng.random((n_users, n_items)) < density).astype(float)


def changes(make, neighbour, n_trials, seed):
    """Largest change over the bound, for the vector of votes and for the range of a choice."""
    rng, worst, widest = np.random.default_rng(seed), 0.0, 0.0
    step = 1e-6
    for trial in range(n_trials):
        R = histories(rng)
        tastes = random_filter(seed=trial % 7, size=rng.choice([0.3, 3.0, 30.0, 1e6]))
        first, second = make(R, tastes), make(neighbour(R, rng), tastes)
        change = (first.answer(step) - second.answer(step)).astype(float)
        bound = first.bound
        worst = max(worst, np.linalg.norm(change) / bound.l2_steps(step))
        assert np.abs(change).sum() <= bound.l1_steps(step) * (1 + 1e-9)
        widest = max(widest, (change.max() - change.min()) * step)
    return worst, widest


def drop_row(R, rng):
    return np.delete(R, rng.integers(len(R)), axis=0)


def other_row(R, rng):
    S = R.copy()
    S[rng.integers(len(R))] = histories(rng, 1)[0]
    return S


def flip_cell(R, rng):
    S = R.copy()
    u, i = rng.integers(S.shape[0]), rng.integers(S.shape[1])
    S[u, i] = 1 - S[u, i]
    return S


@pytest.mark.deep
@pytest.mark.parametrize(
    ("make", "neighbour"),
    [
        (lambda R, f: rows("add_remove")(R).judge(*judge(f)).votes(), drop_row),
        (lambda R, f: rows("replace")(R).judge(*judge(f)).votes(), other_row),
        (
            lambda R, f: rows("add_remove", 2.0)(5 * R).judge(*judge(f)).votes(),
            drop_row,
        ),
        (
            lambda R, f: interactions("add_remove")(R).judge(*judge(f)).votes(),
            flip_cell,
        ),
    ],
    ids=["row", "row replaced", "row of values", "interaction"],
)
def test_votes_move_by_no_more_than_claimed(make, neighbour):
    worst, _ = changes(make, neighbour, 160, 0)
    # One known item rarely moves popularity's own list besides: see the next test.
    assert (0.49 if neighbour is flip_cell else 0.98) < worst <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_one_interaction_turns_all_votes(adjacency):
    """Popularity finds the hidden item if an item of its list is known, all others if it is not."""
    n, rng = 40, np.random.default_rng(0)
    popularity = 1 + rng.random(n)
    order = np.argsort(-popularity, kind="stable")
    hidden = hidden_cells(binary_rows(np.ones((200, n))), 1.0, by_cell=True).reshape(200, n)
    wanted, usual = order[LIST], order[LIST + 1]  # next beside the list, and one beyond
    here = hidden[:, wanted] & ~hidden[:, order[0]] & ~hidden[:, [usual, order[-1]]].any(axis=1)
    user = int(np.flatnonzero(here)[0])
    inward, outward = np.zeros((n, 2)), np.zeros((1, n))
    inward[:, 0], inward[usual, 1], inward[order[0], 1], outward[0, wanted] = 1, 1, -9, 100
    tastes = ItemFilter(np.arange(n), popularity, inward, outward, 1.0)
    first = np.zeros((user + 1, n))
    first[user, [wanted, usual, order[-1]]] = 1
    second = first.copy()
    second[user, order[0]] = 1
    if adjacency == "replace":
        second[user, order[-1]] = 0
    judged = [interactions(adjacency)(R).judge(*judge(tastes)).votes() for R in (first, second)]
    change, bound = judged[1].answer(0.0) - judged[0].answer(0.0), judged[0].bound
    np.testing.assert_array_equal(change, -2.0)
    assert np.linalg.norm(change) == pytest.approx(bound.l2, rel=1e-12)
    assert -change.sum() == pytest.approx(bound.l1, rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "neighbour", "claimed"),
    [(rows("add_remove"), drop_row, 2.0), (rows("replace"), other_row, 4.0),
     (interactions("add_remove"), flip_cell, 4.0)],
    ids=["row", "row replaced", "interaction"],
)  # fmt: skip
def test_the_range_of_a_choice_is_claimed(make, neighbour, claimed):
    """Popularity has no votes; the widest change is from one filter to the opposite one."""
    rng, step, widest = np.random.default_rng(1), 1e-6, 0.0
    for trial in range(300):
        R = histories(rng, 2)
        tastes = random_filter(rank=1, seed=trial, size=3.0)
        public = (*tastes.arrays(), np.array([[4.0], [-4.0]]), 1.0)
        bounded = [make(A).judge(*public).best(np.zeros(3)) for A in (R, neighbour(R, rng))]
        change = (bounded[0].answer(step) - bounded[1].answer(step)) * step
        assert bounded[0].bound.linf == claimed
        assert change[0] == 0.0
        widest = max(widest, float(np.ptp(change)))
    assert 0.98 * claimed < widest <= claimed + 1e-6


def brute_recall(known, hidden, tastes, blend):
    """Recall of one user by the definition: at most four hidden items, lists of a quarter."""
    row = sp.csr_array(known[None])
    scores = tastes.blended(blend).scores(row)[0]
    scores[known > 0] = -np.inf
    best = np.lexsort((np.arange(len(scores)), -scores))[:LIST]
    wanted = np.flatnonzero(hidden)[:4]
    return np.isin(wanted, best).mean()


def brute_votes(known, hidden, tastes):
    found = np.array([brute_recall(known, hidden, tastes, b) for b in (0.0, *BLENDS)])
    return np.sign(found[1:] - found[0])


@pytest.mark.parametrize("cap", [None, 3.0])
def test_votes_are_those_of_the_definition(cap):
    """The judge sees the values of known items, capped as in the moment."""
    rng, tastes = np.random.default_rng(2), random_filter(seed=3, size=1.0)
    R = histories(rng, 30) * (rng.integers(1, 6, (30, 40)) if cap else 1)
    block = binary_rows(R)
    block.data = hidden_cells(block, 1.0, by_cell=False).astype(float)
    expected = np.zeros(3)
    for row, mask in zip(
        np.minimum(R, cap or 1.0) / (cap or 1.0), block.toarray() > 0, strict=True
    ):
        known = np.where(mask, 0.0, row)
        if known.any() and mask.any():
            expected += brute_votes(known, mask, tastes)
    found = rows("add_remove", cap)(R).judge(*judge(tastes)).votes().answer(0.0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("cap", [None, 2.0])
def test_rows_count_by_themselves(cap):
    """The same bits in every order of the rows and in every company."""
    public = judge(random_filter(seed=4, size=3.0), 0.7)
    R = histories(np.random.default_rng(3), 60)
    R = R * np.random.default_rng(4).gamma(0.3, size=R.shape) if cap else R

    def votes(query):
        return query.judge(*public).votes()

    for release in ("counts", lambda q: q.moment(KEPT, 1, 0.7, 0.2, POPULAR), votes):
        check_order_invariance(rows("add_remove", cap), release, data=R)
    whole, *alone = (votes(rows("add_remove", cap)(part)).answer(0.0) for part in (R, *R[:, None]))
    np.testing.assert_array_equal(whole, sum(alone))


# -- what is hidden --------------------------------------------------------------------------------


def test_hidden_items_depend_on_the_row_or_on_the_cell_alone():
    R = binary_rows(histories(np.random.default_rng(5), 200))
    by_row, by_cell = (hidden_cells(R, 0.5, by_cell=flag) for flag in (False, True))
    order = np.random.default_rng(6).permutation(200)
    moved = hidden_cells(binary_rows(R[order]), 0.5, by_cell=False)
    hidden = R.copy()
    hidden.data = by_row.astype(float)
    again = R[order].copy()
    again.sort_indices()
    again.data = moved.astype(float)
    np.testing.assert_array_equal(hidden.toarray()[order], again.toarray())
    for share in (by_row.mean(), by_cell.mean()):
        assert 0.05 < share < 0.15  # a fifth of the items of half of the rows
    fewer = R.toarray()
    fewer[3, np.flatnonzero(fewer[3])[0]] = 0
    S = binary_rows(fewer)
    cell = {c: h for *c, h in zip(*R.nonzero(), by_cell, strict=True) for c in [tuple(c)]}
    other = hidden_cells(S, 0.5, by_cell=True)
    assert all(cell[c] == h for *c, h in zip(*S.nonzero(), other, strict=True) for c in [tuple(c)])


def test_what_is_hidden_at_a_small_share_is_hidden_at_a_larger_one():
    R = binary_rows(histories(np.random.default_rng(7), 100))
    for flag in (False, True):
        few, small, large = (
            hidden_cells(R, *shares, by_cell=flag) for shares in ((0.2, 0.1), (0.2,), (0.6,))
        )
        assert 0 < few.sum() < small.sum() < large.sum()
        assert np.all(small[few]) and np.all(large[small])


def test_only_positive_entries_are_interactions():
    """In the counts as in the moment and in the flipped cells."""
    R = np.array([[2.0, -1.0, np.nan], [np.inf, 0.5, -np.inf], [0.0, 1e-300, 1.0]])
    query = InteractionHistories(sp.csr_array(R), adjacency="add_remove")
    np.testing.assert_array_equal(query.counts().answer(0.0), [1, 2, 1])
    np.testing.assert_array_equal(query.cells(np.arange(3), 0.0, 0.2).answer(1.0), [0, 4, 7, 8])
    moment = query.moment(np.arange(3), 2, 0.0, 0.2, np.zeros(3)).answer(0.0)
    np.testing.assert_allclose(np.diag(moment), [0.5, 1, 0.5], atol=1e-12)


def test_judging_needs_something_known_and_something_hidden():
    tastes = random_filter(5, 1)
    block = sp.csr_array(np.array([[1.0, 1, 1, 1, 1], [-1, -1, -1, -1, -1], [0, 0, 0, 0, 0]]))
    query = VoteQuery(SparseRows(block), tastes, judge(tastes)[-2], adjacency="add_remove")
    np.testing.assert_array_equal(query.votes().answer(0.0), 0.0)
