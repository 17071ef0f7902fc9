"""Every request that a client answers, on rows with entries whose products over- or underflow."""

import warnings
from functools import partial

import numpy as np
import pytest

from skdp import DPPersonalizedRegressor, federated
from skdp.exceptions import PrivacyError
from skdp.federated._clients import as_words, checked_call
from skdp.federated._messages import Call, Request
from skdp.privacy.gate.bounds import Bounded
from skdp.testing.sensitivity import mixed_sizes
from tools.federation import asked, noise_of, request_of

D = 6
CONFIG = federated.AggregationConfig(4, 1, 1)
RNG = np.random.default_rng(0)
X, Y, USERS = RNG.standard_normal((2 * D, D)), RNG.standard_normal(2 * D), np.arange(2 * D) % 3
MIXED, ZERO, ONE, KEPT = mixed_sizes(D, D), np.zeros(D), np.ones(D), np.arange(3)
V = np.linalg.qr(RNG.standard_normal((D, 2)))[0]
LEVEL, LINE = np.zeros(1), V[:, :1]
VIEW = (np.eye(D), np.full((D, 1), 0.3), LEVEL)
RULES = np.array([[0.0, 1, np.inf, 1, 1], [1, 0.1, np.inf, 1, 1], [0, np.inf, 0, 4, 1]])
GRID = np.array([[-1.0, 0.5, 2.0]] * D)
PUBLIC = {  # method -> public arguments, of which those are sent that it takes
    "clipped": [(1.5,)], "columns": [(), (KEPT,)], "centered": [(ONE,)], "recentered": [(ONE,)],
    "negative": [()],
    "tangent": [(V,)], "kept_below": [(0.5,)], "norms_above": [(0.5,)],
    "moment": [(0.85,), (KEPT, 1.0, np.zeros(3))], "projected_gram": [(V,)],
    "gram_product": [(V,)], "sizes_above": [(1.0,)], "product": [(1.0,)], "right": [(V,)],
    "left": [(V,)], "core": [(V, V)], "ritz": [(V,)],
    "targets": [()], "target_means": [()], "scaled": [(ZERO, ONE, 9 * ONE)],
    "pooled_regression_moments": [(ONE, LEVEL, 1.0)],
    "user_direction_gram": [(), VIEW],
    "head_rule_votes": [(*VIEW, LINE, RULES)],
    "grid": [(GRID,)],
    "distances": [(ZERO, GRID)], "ranks": [(np.ones(D, np.intp),), (np.ones(1, np.intp),)],
}  # fmt: skip


def personal(make_model, rows):
    """Rows beyond X are one more user, with targets of all sizes."""
    more = len(rows) - len(X)
    y = np.append(Y, mixed_sizes(more, 2)[:, 1])
    return federated.PersonalizedClient(
        make_model(), rows, y, CONFIG, groups=np.append(USERS, np.full(more, 7))
    )


def device(rows):
    """All rows are those of one user, whom another one replaces."""
    model = DPPersonalizedRegressor(1, adjacency="replace")
    return federated.PersonalizedClient(model, rows, rows[:, 0], CONFIG)


def more_rows(*numbers):
    """Neighbours in a row, or in all rows of one user."""
    return [(X, np.vstack([X, mixed_sizes(first + n, D)[first:]])) for first, n in numbers]


def other_rows():
    return [(np.vstack([X, row]), np.vstack([X, MIXED[:1]])) for row in MIXED[1::2]]


def entries(*values, symmetric=False, before=0.0):
    pairs = []
    for base in (X[:D], MIXED):
        base = np.triu(base) + np.triu(base).T if symmetric else base
        for value in values:
            pair = np.array(base), np.array(base)
            for matrix, entry in zip(pair, (before, value), strict=True):
                matrix[1, 2] = entry
                matrix[2, 1] = entry if symmetric else matrix[2, 1]
            pairs.append(pair)
    return pairs


def of(unit, **options):
    return partial(federated.PowerMethodClient, config=CONFIG, privacy_unit=unit, **options)


SIZES = (1e-154, 1e154, 5e-324, 1.7e308)
ROWS = more_rows(*((first, 1) for first in (0, 3, 7)))
USER = more_rows((0, 3), (3, 6), (5, 1))
CLIENTS = {  # name -> (rows -> client, neighbours)
    "rows": (of("row"), ROWS), "other rows": (of("row", adjacency="replace"), other_rows()),
    "interactions": (of("interaction"), entries(1.0, *SIZES[1:3])),
    "other interactions": (
        of("interaction", adjacency="replace"), [(np.eye(2, D)[[0]], np.eye(2, D)[[1]])],
    ),
    "entries": (of("entry"), entries(*SIZES)),
    "other entries": (
        of("entry", adjacency="replace", unit_bound=(-1.0, 1.0)), entries(1.0, before=-1.0),
    ),
    "edges": (of("edge"), entries(*SIZES, symmetric=True)),
    "changes": (of("entry_change"), entries(1.0, 5e-324)),
    "larger changes": (of("entry_change", unit_bound=3.0), entries(3.0)),
    "changed edges": (of("edge_change"), entries(1.0, 5e-324, symmetric=True)),
    "histories": (partial(federated.RecommenderClient, config=CONFIG), ROWS),
    "rated histories": (
        partial(federated.RecommenderClient, config=CONFIG, value_cap=2.0, adjacency="replace"),
        other_rows(),
    ),
    "first fit": (partial(personal, partial(DPPersonalizedRegressor, 1)), USER),
    "device": (device, [(X, -X[:5])]),
}  # fmt: skip


def calls_of(client):
    """Return all requests: the calls to each release, through each narrower query once."""
    found, narrow = [], set()
    paths = [(client._query, ())]
    for query, path in paths:
        for method in client._signatures.get(type(query), {}):
            for arguments in PUBLIC.get(method, [()]):
                calls = (*path, Call(method, arguments))
                try:
                    further = checked_call(query, calls[-1], client._signatures)
                except (PrivacyError, ValueError):
                    continue  # needs a narrower query, or other arguments
                if isinstance(further, Bounded) and 0 < further.bound.l2 < np.inf:
                    found.append(calls)
                elif not isinstance(further, Bounded) and (type(further), method) not in narrow:
                    narrow.add((type(further), method))
                    paths.append((further, calls))
    return found


def bounded_of(client, calls):
    return asked(client._query, calls, client._signatures)


@pytest.mark.parametrize("name", CLIENTS)
def test_answers_follow_no_sizes_of_entries(name):
    """No error, no warning; one unit changes integers within the bound; replies have one form."""
    client_of, pairs = CLIENTS[name]
    client = client_of(pairs[0][0])
    requests = calls_of(client)
    methods = {call.method for calls in requests for call in calls}
    public = {"count", "targets", "target_means"} if client._facts.adjacency == "replace" else set()
    assert methods >= set(client._signatures[type(client._query)]) - public
    for calls in requests:
        bound, request = bounded_of(client, calls).bound, request_of(client, *calls)
        step, replies = Request.decode(request).step, {}
        for pair in pairs:
            exact = []
            for rows in pair:
                one = client_of(rows)
                with warnings.catch_warnings(action="error"):
                    exact.append(bounded_of(one, calls).answer(step))
                with noise_of(0):
                    words = one.respond(request)
                assert np.array_equal(words, as_words(exact[-1], bound)), bound.name
                replies.setdefault((words.shape, one.releases_))
            moved = np.subtract(*exact).astype(float)
            assert np.linalg.norm(moved) <= bound.l2_steps(step), bound.name
        assert len(replies) == 1
