"""What is kept for units between passes: within a public limit, and without a trace in results."""

import numpy as np
import pytest

from skdp.data import units, views
from skdp.data.units import UserRows
from skdp.data.views import Memory
from skdp.queries.users import UserQuery
from skdp.solvers.personalization import GlobalModel, Shared, View
from skdp.solvers.shared_subspace import UserDirections
from skdp.solvers.user_heads import Heads, HeadVotes, all_rules


def test_what_does_not_fit_is_made_again(monkeypatch):
    monkeypatch.setattr(views, "_STORED_BYTES", 100)
    made = []

    def make(n):
        made.append(n)
        return (np.zeros(n),)

    keep = Memory()
    for n in (10, 2, 10, 2, 3, 3, 10):
        assert len(keep(n, lambda n=n: make(n))[0]) == n
    assert made == [10, 2, 3, 3]  # 8 bytes a number: 96 of 100 are taken by the first two


def messages(query):
    """Integers of one message after the other, as the passes of a fit ask for them."""
    rng = np.random.default_rng(2)
    U = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    model = GlobalModel(rng.standard_normal((5, 1)), np.ones(1))
    query = query.scaled(np.ones(5), np.full(5, 2.0), np.ones(5))  # most users have entries beyond
    view = View(rng.standard_normal((5, 5)), True, "squared", model)
    rules = all_rules(Shared(U, 0.1, None), view)
    sent = [
        UserDirections(view, 5).asked(query),
        HeadVotes(Heads(view, U, model), rules).asked(query),
    ]
    return [bounded.answer(1e-9) for bounded in sent]


@pytest.mark.parametrize("m", [3, 9])
def test_no_bit_depends_on_what_is_kept(m, monkeypatch):
    """Users with fewer rows than features, and with more; in any order, on threads."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((8 * m, 5)), rng.standard_normal((8 * m, 1))
    codes = np.repeat(np.arange(8), m)
    y[5] = np.nan
    order = rng.permutation(len(X))
    found = []
    for limit, rows, jobs in ((2**20, order, None), (0, slice(None), None), (700, order, 2)):
        monkeypatch.setattr(views, "_STORED_BYTES", limit)
        users = UserRows(X[rows], y[rows], codes[rows], True)
        found.append(messages(UserQuery(users, adjacency="add_remove", n_jobs=jobs)))
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert all(answer.any() for answer in found[0])


def test_what_one_user_makes_alone_is_not_kept_for_those_beside_it():
    """A batch has the key of its first user: its own company, and nobody's else."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 2)), rng.standard_normal((9, 1))
    batch = units.Batch(UserRows(X, y, np.repeat(np.arange(3), 3), True), np.arange(3))
    made = [
        each.keep("k", lambda n=each.shape[0]: (np.ones(n),)) for each in (batch.alone(0), batch)
    ]
    assert [array.size for (array,) in made] == [1, 3]
