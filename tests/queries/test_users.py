"""Group queries: one user changes a sum by at most its bound, which is attained.

All contributions of the solver are tried, on users of every size and scale.
"""

import functools
import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data import units as grouped_rows
from skdp.data.units import UserRows
from skdp.papers import _jain_2021 as net
from skdp.privacy.gate.session import no_warnings
from skdp.queries.users import UserQuery
from skdp.solvers import personalization as base
from skdp.solvers import personalization as shared
from skdp.solvers import personalization as starts
from skdp.solvers import user_heads
from skdp.solvers.personalization import GlobalModel
from tools.data import hostile_users

D, K = 5, 2
RNG = np.random.default_rng(7)
U = np.linalg.qr(RNG.standard_normal((D, K)))[0]
W = np.diag([1.0, 2.0, 0.5, 1.0, 3.0])


FOUND = np.arange(D) < D - 1  # one of them was not found
SCALE = np.linspace(1.0, 2.0, D)


@functools.cache
def contributions(p):
    """The functions that the solver hands to the query, and how they are summed."""
    loss = "squared" if p == 1 else "softmax"
    view = shared.View(W, True, loss)
    model = GlobalModel(np.ones((D, p)), np.full(p, 0.5))
    heads = user_heads.Heads(view, U, model)
    rules = user_heads.all_rules(shared.Shared(U, 0.1, 1.0), view)[::7]
    return {
        "scaled": lambda q: starts.UserDirections(view, D).asked(
            q.scaled(np.ones(D), SCALE, 9 * SCALE)
        ),
        "votes": starts.UserDirections(view, D).asked,
        "head_votes": user_heads.HeadVotes(heads, rules).asked,
        "pooled_classes": lambda q: base.pooled_classes(Recorder(q), FOUND, p, 1.0, intercept=True),
        "target_ranks": lambda q: (
            q.targets().distances(np.zeros(p), np.ones((p, 1))).ranks(np.zeros(p, int))
        ),
        "target_mean_ranks": lambda q: (
            q.target_means().grid(np.full((p, 1), -0.1)).ranks(np.zeros(p, int))
        ),
        "target_places": lambda q: q.targets().grid(np.full((p, 1), -0.1)).ranks(np.zeros(p, int)),
        "pooled": lambda q: base.pooled_model(
            Recorder(q), FOUND, base.TargetUnit(np.ones(p), 2.0, True), 1.0, intercept=True
        ),
        "column_centered_ranks": lambda q: (
            q.columns().distances(np.ones(D), np.ones((D, 1))).ranks(np.zeros(D, int))
        ),
        "moments": lambda q: q.columns().moments(np.zeros(D), np.ones(D), 1.0),
        "count": lambda q: q.count(),
    }


NAMES = list(contributions(1))


class Asked(Exception):
    """Carries the `Bounded` that a solver requested."""


class Recorder:
    """Replaces `ask`, and returns the first `Bounded`."""

    def __init__(self, query):
        self._query = query

    def __getattr__(self, name):
        def ask(*args, share=None):
            out = getattr(self._query, name)(*args)
            if share is None:
                return Recorder(out)
            raise Asked(out)

        return ask


def bounded(name, query, p=1):
    try:
        return contributions(p)[name](query)
    except Asked as asked:
        return asked.args[0]


def query_of(users, adjacency="add_remove", p=1, **kwargs):
    """A query of a list of (X, Y)."""
    X = np.vstack([np.zeros((0, D)), *(x for x, _ in users)])
    Y = np.vstack([np.zeros((0, p)), *(y for _, y in users)])
    codes = np.repeat(np.arange(len(users)), [len(x) for x, _ in users]).astype(int)
    return UserQuery(UserRows(X, Y, codes, p == 1), adjacency=adjacency, **kwargs)


def opposites(user):
    """Users whose contribution may be the opposite of this one's."""
    X, y = user
    yield X, -y
    yield -X, y
    yield X @ (np.eye(D) - 2 * U @ U.T), y
    yield X @ (np.eye(D) - U @ U.T), (X @ U[:, :1]).repeat(y.shape[1], axis=1)
    yield np.roll(X, 1, axis=1), y


def user_is_tame(user):
    return all(np.isfinite(part).all() and np.abs(part).max(initial=0) < 99 for part in user)


ALL = [pytest.param(p, 1, marks=pytest.mark.deep) for p in (1, 3)]


@pytest.mark.parametrize(("p", "every"), [(1, 3), *ALL])
@pytest.mark.parametrize("name", NAMES)
def test_neighbours_change_at_most_the_bound_and_attain_it(name, p, every):
    """Each user is added, removed, and replaces all users that may contribute the opposite."""
    users = hostile_users(U, p)
    tame = [user for user in users if user_is_tame(user) and len(user[0]) > 2 - (p > 1)]
    users += [other for user in tame for other in opposites(user)]
    users += [(X, 1e3 * y) for X, y in users[:20]]  # bounds hold for targets that are no labels too
    users = users[::every]
    added = [bounded(name, query_of([user], p=p), p) for user in users]
    answers = [one.answer(1e-9).ravel() for one in added]
    adds, pairs = largest_changes(answers)
    l1 = max(np.abs(answer).sum(dtype=float) for answer in answers)
    assert l1 <= added[0].bound.l1_steps(1e-9)
    assert 0.95 <= adds / added[0].bound.l2_steps(1e-9) <= 1.0
    rounded = [one.answer(1e-6) for one in added[::15]]
    assert largest_changes(rounded)[0] <= added[0].bound.l2_steps(1e-6)
    if name == "count":
        return  # public under "replace"
    replaced = [bounded(name, query_of([user], "replace", p), p) for user in users[::15]]
    for one, answer in zip(replaced, answers[::15], strict=True):
        assert np.array_equal(one.answer(1e-9).ravel(), answer)
    assert 0.95 <= pairs / replaced[0].bound.l2_steps(1e-9) <= 1.0
    for ones in (added, replaced):
        assert all(one.bound == ones[0].bound for one in ones)


def largest_changes(answers):
    """Norms of the contribution of each unit, and of the differences of all pairs."""
    answers = np.array([answer.ravel() for answer in answers], np.float64)
    pairs = (np.linalg.norm(answers - answer, axis=1).max() for answer in answers)
    return np.linalg.norm(answers, axis=1).max(), max(pairs)


@pytest.mark.thorough("name")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_user_contributes_zeros(name, bad, rng):
    """Its other rows, columns and targets do not count either."""
    if name == "count":
        pytest.skip("it is there")
    X, y = rng.standard_normal((6, D)), np.abs(rng.standard_normal((6, 1)))
    first, second = X.copy(), y.copy()
    first[4, 2], second[1, 0] = bad, bad
    for user in ((first, y), (X, second)):
        query = query_of([user])
        for step in (0.0, 1e-8):
            assert not bounded(name, query).answer(step).any()
        net_of_axes = net.candidate_scores(
            shared.View(None, False, "squared"), np.eye(D)[:, :, None]
        )
        assert not query.scores("s", net_of_axes, D).answer(2.0**-32).any()
    assert bounded(name, query_of([(X, y)])).answer(1e-8).any()


@pytest.mark.parametrize("kind", ["grams", "sums", "scores"])
def test_a_user_whose_computation_fails_contributes_zeros(kind):
    """A user-defined loss may raise for some rows, which stays private."""
    users = [(np.full((m, D), float(i)), np.ones((m, 1))) for i, m in enumerate([2, 2, 2, 3, 5], 1)]

    def local(batch, bad=(2.0, 4.0)):
        first = np.ldexp(batch.X[:, 0, 0], batch.x_exponent)
        if np.isin(first, bad).any():
            raise Exception(f"rows of {first}")
        warnings.warn(f"rows of {first}", stacklevel=1)
        return {
            "grams": first[:, None, None] * np.ones((1, 2, 3)),
            "sums": first[:, None] * np.ones((1, 3)),
            "scores": np.tile(first[:, None] / 9, 3),
        }[kind]

    def answer(users):
        query = query_of(users)
        asked = {
            "grams": lambda: query.grams("g", local, 3),
            "sums": lambda: query.sums("s", local, (((3,), 2.0),)),
            "scores": lambda: query.scores("c", local, 3),
        }[kind]()
        with no_warnings():
            return asked.answer(1e-6)

    kept = [users[i] for i in (0, 2, 4)]
    assert np.array_equal(answer(users), answer(kept))
    assert answer(kept).any()
    assert not answer([users[1], users[3]]).any()


@pytest.mark.parametrize("p", [1, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_a_user_do_not_depend_on_other_users(name, p, monkeypatch):
    """The sum over all users is the sum of the contributions of each user alone."""
    users = (hostile_users(U, p) + hostile_users(U, p, seed=1))[::5]
    faint = np.geomspace(1, 10**-6.3, D)  # next to the equal rows of another user
    users += [(X * faint, y) for X, y in users if user_is_tame((X, y))]
    alone = sum(bounded(name, query_of([u], p=p), p).answer(1e-8) for u in users)
    for kwargs in ({}, {"n_jobs": 2}):
        together = bounded(name, query_of(users, p=p, **kwargs), p)
        assert np.array_equal(together.answer(1e-8), alone)
    order = np.random.default_rng(3).permutation(len(users))
    monkeypatch.setattr(grouped_rows, "CACHED", 2**7)
    assert np.array_equal(
        bounded(name, query_of([users[i] for i in order], p=p), p).answer(1e-8), alone
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_integer_answers_approach_the_float_ones(name, rng):
    users = [(rng.standard_normal((m, D)), rng.standard_normal((m, 1))) for m in (1, 4, 9) * 40]
    answer = bounded(name, query_of(users)).answer
    exact = answer(0.0)
    assert exact.dtype == np.float64
    assert np.allclose(answer(1e-10) * 1e-10, exact, rtol=2e-4, atol=0.05)


def test_scores_for_the_exponential_mechanism():
    """The change of all scores lies in an interval of the claimed length, and fills it."""
    view = shared.View(None, False, "squared")
    axes = np.eye(D)
    lines = np.concatenate([net.line_net(3, 40), np.zeros((40, 2, 1))], axis=1)
    planes = np.linalg.qr(RNG.standard_normal((6, D, K)))[0]
    for candidates in (
        np.concatenate([lines, axes[:, :, None]]),
        np.concatenate([planes, axes[None, :, :2], axes[None, :, 2:4]]),
    ):
        local = net.candidate_scores(view, candidates)
        users = [*hostile_users(U), (axes, axes[:, :1]), (axes, axes[:, 2:3])]
        for adjacency in ("add_remove", "replace"):
            sent = [query_of([u], adjacency).scores("s", local, len(candidates)) for u in users]
            step = sent[0].bound.linf * 2.0**-32
            answers = np.array([one.answer(step) for one in sent])
            others = answers if adjacency == "replace" else np.zeros((1, len(candidates)), int)
            lengths = [np.ptp(answers - other, axis=1).max() for other in others]
            assert max(lengths) <= 2**32
            assert max(lengths) >= 0.95 * 2**32
    far = [9.0, -9.0]  # beyond what a score may be
    beyond = query_of(users).scores("s", lambda batch: np.tile(far, (batch.shape[0], 1)), 2)
    assert beyond.answer(0.3).max() * 0.3 <= len(users)  # whole steps below a score of 1
    assert 0 <= beyond.answer(step).min() <= beyond.answer(step).max() <= len(users) * 2**32


def test_all_parts_and_the_rounding_of_each_user_that_changes_are_paid_for():
    """No pair attains the largest rounding, so the formula is compared."""
    for adjacency, n in (("add_remove", 1), ("replace", 2)):
        bound = query_of([], adjacency).sums("s", None, (((3,), 2.0), ((2,), 1.0))).bound
        assert (bound.l2, bound.slack) == (pytest.approx(n * 5**0.5), n * 5**0.5 / 2)
        assert (bound.l1, bound.l1_slack) == (pytest.approx(n * 5), n * 5 / 2)


@pytest.mark.parametrize("container", [sp.csr_array, sp.csr_matrix, np.asfortranarray])
def test_containers_and_dtypes_agree(container, rng):
    X = rng.standard_normal((60, D)).astype(np.float32)
    X[X < 0.3] = 0
    y, codes = rng.standard_normal((60, 1)), rng.integers(0, 9, 60)
    users = (UserRows(A, y, codes, True) for A in (X.astype(float), container(X)))
    queries = (UserQuery(each, adjacency="add_remove") for each in users)
    assert np.array_equal(*(bounded("votes", query).answer(1e-9) for query in queries))


def test_no_users_give_zeros():
    for name in NAMES:
        assert not bounded(name, query_of([])).answer(1e-8).any()


def test_what_stays_with_users_is_in_their_order(rng):
    """A user whose computation fails gets NaN, and no other user is affected."""
    users = [(rng.standard_normal((m, D)), rng.standard_normal((m, 1))) for m in (3, 1, 3, 2, 1)]
    query = query_of(users)

    def local(batch):
        if batch.shape[1] == 2:
            raise ZeroDivisionError(f"rows of {batch.X}")
        np.log(-np.ones(1))  # without a warning
        return np.ldexp(batch.Y.sum(axis=1), batch.y_exponent[:, None])

    seen = {}
    for numbers, result in query.cached_local(local, 1):
        seen |= dict(zip(numbers.tolist(), result, strict=True))
    expected = [math.nan if len(y) == 2 else y.sum() for _, y in users]
    np.testing.assert_allclose([float(seen[i][0]) for i in range(5)], expected)
    assert math.isclose(query._source.n_rows(), 5)
