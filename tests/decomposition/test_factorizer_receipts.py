"""DPLowRankFactorizer: for every kind of release, the receipt covers what was opened."""

import hashlib
import math
import pickle
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from skdp import DPLowRankFactorizer, PrivacyLedger
from skdp.decomposition import LocalAggregator, randomize_row
from skdp.decomposition._factorizer_state import NoisyState
from skdp.exceptions import BudgetExceededError, PrivacyError, PrivacyWarning
from skdp.federated import AggregationConfig, StateSum, UnmaskedAggregator, simulated_aggregator
from skdp.privacy.accounting.plain_data import pack
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.testing import seeded_entropy
from tools.outcomes import refuses

# Most streams here are short, and noise: other tests cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

SHAPE = (20, 12)
COMMON = {"matrix_shape": SHAPE, "method": "two_sketch", "sketch_size": (6, 8),
          "sensitivity_mode": "oblivious"}  # fmt: skip
DATA = np.arange(240.0).reshape(SHAPE)


def server(epsilon=1.0, *, data=DATA, **params):
    """A factorizer with data, not yet released."""
    model = coordinator(epsilon=epsilon, **params)
    if model.privacy_unit == "row":
        return model.partial_fit(data)
    return model.update_matrix(data)


def coordinator(*, row_offset=0, n_honest_servers=None, **params):
    model = DPLowRankFactorizer(2, **COMMON | params)
    part = {"row_offset": row_offset, "n_honest_servers": n_honest_servers}
    return model.for_server(sketch_seed=7, **part)


def shares(count=3, **params):
    return [server(n_honest_servers=2, **params) for _ in range(count)]


def secure(model=None, servers=None, *, count=3, connect=UnmaskedAggregator, **params):
    """Add up servers, each with its share of the noise, in a coordinator."""
    model = coordinator(**params) if model is None else model
    servers = shares(count, **params) if servers is None else servers
    return model.merge_secure(servers, StateSum(connect))


def blocks_of_rows():
    lower = server(1.0, row_offset=20, matrix_shape=(10, 12), data=DATA[:10])
    return server(0.5).merge(lower).release()


def secure_sum_of_itself_too():
    servers = shares()
    return secure(servers[0], servers).release()


def sent_then_coordinator():
    model = server(1.0)
    model.state_message()
    return model.merge(server(0.5).state_message()).release()


def stream():
    return DPLowRankFactorizer(
        2, matrix_shape=SHAPE, max_releases=3, privacy_unit="entry", sketch="sparse"
    ).update_matrix(DATA)


def restored(act=lambda model: model):
    """Act on a stream that is kept in a file, and restore it."""
    model = stream()
    with TemporaryDirectory() as folder:
        model.checkpoint(f"{folder}/kept")
        act(model)
        model._drop_stream()
        again = DPLowRankFactorizer.restore(f"{folder}/kept")
        again = again if hasattr(again, "left_singular_vectors_") else again.release()
        again._drop_stream()
    return again


ROUTES = {
    "own update": lambda: server().release(),
    "one message": lambda: coordinator().merge(server().state_message()).release(),
    "own and a message": lambda: server(0.5).merge(server(1.0).state_message()).release(),
    "two budgets": lambda: coordinator().merge(server(0.5)).merge(server(1.0)).release(),
    "blocks of rows": blocks_of_rows,
    "secure sum": lambda: secure().release(),
    "secure sum of itself too": secure_sum_of_itself_too,
    "sent, then coordinator": sent_then_coordinator,
    "coordinator of a smaller budget": lambda: secure(coordinator(epsilon=0.1)).release(),
    "restored": lambda: restored(DPLowRankFactorizer.release),
    "restored and released": restored,
    "public part": lambda: stream().release().public_copy(),
    "pickled": lambda: pickle.loads(pickle.dumps(secure().release())),
}
TWO = ("own and a message", "two budgets", "blocks of rows", "sent, then coordinator")  # states


@pytest.mark.thorough("route")
@pytest.mark.parametrize("mode", ["oblivious", "worst_case"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_receipt_claims_what_was_opened(route, mode, monkeypatch):
    """In each route the largest budget of a server is epsilon=1, and all of it is spent."""
    monkeypatch.setitem(COMMON, "sensitivity_mode", mode)
    model = ROUTES[route]()
    spent = model.privacy_spent_
    assert 1.0 <= spent.epsilon < 1.05  # above 1: random sketches of blocks of several heights
    assert spent.epsilon == 1.0 or (route, mode) == ("blocks of rows", "oblivious")
    assert spent.delta == 1e-6 and not spent.seeded
    (own,) = server().release().privacy_spent_.losses
    assert float(spent.losses[0].value) >= float(own.value)  # of the budget that is largest
    assert spent.sampler_tv_distance == (1 + (route in TWO)) * SAMPLER_DISTANCE
    assert spent.unit == model.privacy_unit and spent.adjacency == model.adjacency
    assert model.releases_ and all(line.noise_scale > 0 for line in model.releases_)
    assert model.releases_[0].name in str(model.privacy_report())


def test_a_server_without_noise_or_with_a_seed_shows():
    other = coordinator().set_params(random_state=0)
    with pytest.warns(PrivacyWarning, match="random_state"):
        message = other.update_matrix(DATA).state_message()
    assert coordinator().merge(message).release().privacy_spent_.seeded
    with pytest.warns(PrivacyWarning, match="no noise"):
        message, same = (server(math.inf).state_message() for _ in range(2))
    spent = server(1.0).merge(message).merge(same).release().privacy_spent_
    assert spent.epsilon == math.inf
    assert "NOT PRIVATE" in spent.statement()


ROWS = {"privacy_unit": "row", "adjacency": "zero_out", "method": "dense"}


@pytest.mark.parametrize("way", ["messages", "secure"])
def test_parts_of_a_row_on_several_servers(way):
    """Each server clips its part on its own: the receipt covers the whole row all the same."""
    p = 4
    small = np.zeros(SHAPE)
    small[3, 0] = 9.0  # clipped to 1 on each server

    model = coordinator(**ROWS)
    honest = p if way == "secure" else None
    servers = [server(n_honest_servers=honest, data=small, **ROWS) for _ in range(p)]
    if way == "secure":
        secure(model, servers)
    else:
        for other in servers:
            model.merge(other.state_message())
    model.release()
    one = servers[0].privacy_spent_.mu
    noise = np.array([line.noise_scale for line in servers[0].releases_])
    noise *= 1 if way == "secure" else math.sqrt(p)
    attained = np.linalg.norm(p * 1.0 / noise)  # the row's own change in both sums, over the noise
    claimed = model.privacy_spent_.mu
    assert claimed == pytest.approx(p * one if way == "secure" else math.sqrt(p) * one)
    assert 0.98 * claimed < attained <= claimed
    assert model.privacy_spent_.epsilon > servers[0].privacy_spent_.epsilon


@pytest.mark.parametrize("inside", ["one ledger", "nested", "later"])
def test_a_ledger_is_charged_what_a_secure_sum_of_parts_of_rows_costs(inside):
    """A ledger adds up squares of the shares; parts of one row add up themselves: p mu."""
    p = 2 if inside == "nested" else 3
    with PrivacyLedger(50.0, 1e-5) as ledger:
        if inside == "nested":
            first = shares(1, **ROWS)
            with PrivacyLedger(50.0, 1e-5) as inner:
                servers = [*first, *shares(p - 1, **ROWS)]
                secure(coordinator(**ROWS), servers)
            assert inner.spent.mu == pytest.approx(p * servers[0].privacy_spent_.mu)
        else:
            servers = shares(p, **ROWS)
            model = secure(coordinator(**ROWS), servers)
            if inside == "later":
                model.release()
    assert ledger.spent.mu == pytest.approx(p * servers[0].privacy_spent_.mu)


@pytest.mark.parametrize("least", [1.8, 2.5])
def test_a_ledger_that_cannot_pay_a_secure_sum_opens_nothing(least):
    """The charge of the first share fits into the budget, or no charge does."""
    mu = server(1.0, **ROWS)._state.running.session.spent().mu
    servers, ledger = [], PrivacyLedger(mu=least * mu)

    def in_the_ledger():
        with ledger:
            servers.extend(shares(**ROWS))
            secure(coordinator(**ROWS), servers)

    refuses(BudgetExceededError, "secure sum", in_the_ledger)
    assert all(share._state.running is not None for share in servers)
    assert ledger.spent.mu == pytest.approx(math.sqrt(3) * mu)  # as before it was asked
    with PrivacyLedger(2.0, 1e-6):  # the caller's contract holds parts together
        secure(sensitivity_mode="worst_case")


def test_a_share_counts_with_the_shares_that_it_was_opened_with():
    """A server whose share went into one sum coordinates another of the same rows."""
    model, *others = shares(**ROWS)
    whole, share = (s._state.running.session.draws for s in (server(**ROWS), model))
    assert whole < share  # all parts are drawn for it
    secure(coordinator(**ROWS), [model, *others])
    assert model._state.released[0][0] is None  # a part of the noise has no fingerprint
    mu = model.privacy_spent_.mu
    secure(model, shares(2, **ROWS)).release()
    assert model.privacy_spent_.mu == pytest.approx(math.hypot(3, 2) * mu)


@pytest.mark.parametrize(("start", "states"), [(0, 4), (10, 3)])
def test_states_of_overlapping_rows_count_together(start, states):
    """Rows 10 to 20 lie in the state that was sent and in messages that begin at 10 and 20."""
    halves = {"matrix_shape": (10, 12), "data": DATA[:10]}
    model = server(1.0, row_offset=start, **ROWS | halves | {"matrix_shape": (21 - start, 12)})
    model.state_message()
    one = model.privacy_spent_.mu
    for first in (0, 10, 20):
        model.merge(server(1.0, row_offset=first, **ROWS | halves).state_message())
    model.release()
    assert model.privacy_spent_.mu == pytest.approx(math.sqrt(states) * one)
    model = server(0.5, **ROWS)
    model.state_message()
    model.merge(server(0.5, **ROWS | halves).state_message())
    model.merge(server(1.0, row_offset=10, **ROWS | halves).state_message())
    with pytest.raises(PrivacyError, match="no receipt of their sum is known"):
        model.release()  # it claimed the mu of the last message alone


@pytest.mark.parametrize(
    "first", [server, lambda **rows: coordinator(**rows).merge(server(**rows))]
)
def test_a_second_release_adds_up_with_the_first(first):
    """Of its own state, and of a merged one; what is merged again counts once."""
    model, message = first(**ROWS).release(), server(**ROWS).state_message()
    one, lines = model.privacy_spent_.mu, len(model.releases_)
    for _ in range(2):
        model.merge(message).release()
        assert model.privacy_spent_.mu == pytest.approx(math.sqrt(2) * one)
        assert len(model.releases_) == 2 * lines
    sent = server(**ROWS)
    assert sent.merge(sent.state_message()).release().privacy_spent_.mu == one  # nothing twice
    for copy in (pickle.loads(pickle.dumps(model)), model.public_copy()):
        refuses(PrivacyError, "Use sklearn.base.clone", copy.merge, message)
    entry = {"privacy_unit": "entry", "adjacency": "add_remove", "method": "dense"}
    other = server(**entry)
    refuses(ValueError, "different privacy units or bounds", model.set_params(**entry).merge, other)


@pytest.mark.parametrize("claim", ["a share", "no receipt", "no line"])
def test_a_message_without_a_receipt_of_its_noise_is_refused(claim):
    """Else it would count as nothing spent, or a part of the noise as all of it."""
    state = NoisyState.from_bytes(server().state_message())
    changes = {
        "a share": {"n_honest_servers": 3},
        "no receipt": {"receipts": []},
        "no line": {"receipts": [{**state.receipts[0], "ledger": []}]},
    }[claim]
    message = replace(state, **changes).to_bytes()
    refuses(ValueError, "no receipt, or only a part of the noise", coordinator().merge, message)


def test_a_forged_message_is_refused_before_the_own_state_is_opened():
    """Its checksum is right, but its numbers cannot be added, or factored."""
    own, good = server(), NoisyState.from_bytes(server().state_message())
    first, *others = good.arrays
    for changes in (
        {"arrays": []}, {"arrays": [first.ravel(), *others]}, {"arrays": [first * 1.0, *others]},
        {"arrays": [first[1:], *others]}, {"arrays": ["a", *others]}, {"row_offset": 0.0},
        {"steps": [math.nan, *good.steps[1:]]}, {"steps": [1e300, *good.steps[1:]]},
        {"steps": good.steps[1:]}, {"variances": [-1.0, *good.variances[1:]]},
        {"variances": None}, {"shape": (len(first), 1.5)}, {"shape": (len(first),)},
    ):  # fmt: skip
        message = replace(good, **changes).to_bytes()
        refuses(ValueError, "other numbers than a server sends", own.merge, message)
    own.merge(replace(good, arrays=[first[:, 1:], *others]).to_bytes())
    refuses(ValueError, "states of shapes", own.release)
    assert own._state.running is not None


@pytest.mark.parametrize("header", [{}, {"version": 2}, {"version": 3}, {"version": 3, "more": 1}])
def test_a_message_of_another_version_is_refused(header):
    body = b"skdp.factorizer\n" + pack(header)
    with pytest.raises(ValueError, match="another version"):
        coordinator().merge(body + hashlib.sha256(body).digest())


@pytest.mark.parametrize(
    ("common", "unlike"), [(ROWS, {"epsilon": 0.5}), ({}, {"sensitivity_mode": "worst_case"})]
)
def test_no_receipt_is_known_of_unlike_parts(common, unlike):
    """Of rows that are split between budgets, and of exact next to random sketches."""
    model = coordinator(**common).merge(server(1.0, **common).state_message())
    other = server(**common | unlike)
    own = server(**common | unlike).merge(server(1.0, **common).state_message())
    refuses(PrivacyError, "no receipt", own.release)
    assert own._state.running is not None
    refuses(PrivacyError, "no receipt of their sum is known", model.merge, other)
    assert other._state.running is not None  # nothing was opened
    assert not hasattr(other, "privacy_spent_")


@pytest.mark.parametrize(
    "params",
    [
        {"unit_bound": 0.1},
        {"privacy_unit": "rank_one"},
        {"privacy_unit": "entry", "sketch": "gaussian"},
    ],
)
def test_other_contracts_are_refused_before_anything_is_opened(params):
    other = server(**params)
    refuses(ValueError, "one 'privacy_unit', 'adjacency' and 'unit_bound'", server().merge, other)
    assert other._state.running is not None
    others = shares(2, **params)
    refuses(ValueError, "one 'privacy_unit', 'adjacency' and 'unit_bound'", secure, servers=others)
    mixed = [server(n_honest_servers=2), others[0]]
    refuses(ValueError, "cannot be merged", secure, servers=mixed)
    assert all(share._state.running is not None for share in (*others, mixed[0]))


def test_too_few_shares_are_refused_before_they_are_closed():
    alone = shares(1)
    refuses(PrivacyError, "too little noise", secure, servers=alone)
    refuses(ValueError, "a server comes twice", secure, servers=alone * 3)
    assert alone[0]._state.running is not None
    refuses(ValueError, "at least one server", secure, servers=[])
    half = {"matrix_shape": (10, 12), "data": DATA[:10]}
    for unlike, what in (
        ({"row_offset": 20}, "equal steps"), ({"epsilon": 0.5}, "equal steps"), (half, "cannot be"),
        ({"n_honest_servers": 20}, "n_honest_servers"),  # a twentieth part of the noise
    ):  # fmt: skip
        servers = [*shares(1), server(**{"n_honest_servers": 2} | unlike)]
        refuses(ValueError, what, secure, servers=servers)
        assert servers[0]._state.running is not None
    refuses(ValueError, "int64", coordinator().merge_secure, shares(), lambda parts: 1.0 * parts[0])
    one, total = (secure(count=count)._state.received[0].variances for count in (2, 3))
    assert total == [1.5 * variance for variance in one]  # a third part of two halves
    assert len(secure(secure())._state.received) == 2
    servers, model = shares(), coordinator().merge(server())
    refuses(ValueError, "n_honest_servers", secure, model, servers)
    assert servers[0]._state.running is not None


def test_a_secure_sum_of_whole_noises_is_refused():
    """Each could be opened alone; their receipts would count one noise for all."""
    whole = [server(), server()]
    refuses(PrivacyError, "use servers of for_server", secure, servers=whole)
    assert all(model._state.running is not None for model in whole)


def test_the_aggregate_of_local_reports_has_the_receipt_of_the_reports():
    with seeded_entropy(0):
        rows = np.ones((4, 3))
        reports = [randomize_row(x, clip_norm=1.0, epsilon=2.0, delta=1e-6) for x in rows]
    spent = LocalAggregator(1).add(reports).privacy_spent_
    assert spent.epsilon == 2.0 and spent.unit == "row" and spent.adjacency == "replace"
    with pytest.warns(PrivacyWarning, match="random_state"):
        seeded = randomize_row(rows[0], clip_norm=1.0, epsilon=2.0, delta=1e-6, random_state=0)
    assert LocalAggregator(1).add([*reports, seeded]).privacy_spent_.seeded
    longer = randomize_row(rows[0], clip_norm=2.0, epsilon=4.0, delta=1e-6)
    likely = randomize_row(rows[0], clip_norm=1.0, epsilon=1.9, delta=1e-5)
    for worst in (longer, likely):
        worst = replace(worst, noise_scale=reports[0].noise_scale)  # of a clip norm that fits
        for unlike in ([*reports, worst], [worst, *reports]):
            assert LocalAggregator(1).add(unlike).privacy_spent_ == worst.privacy_spent
    many = [replace(reports[0], values=10 * reports[0].noise_scale * np.ones(3))] * 3
    found = LocalAggregator(1).add(many).explained_variance_
    assert found == pytest.approx(299 * reports[0].noise_scale ** 2)
    with pytest.raises(ValueError, match="no report"):
        LocalAggregator(1).privacy_spent_  # noqa: B018


# -- the real secure sum ---------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dense", "two_sketch", "three_sketch"])
def test_servers_under_the_real_secure_sum_equal_the_plain_sum(method):
    """Masked, sent as messages, unmasked: bit for bit what adding in the clear gives."""
    config = AggregationConfig(5, n_colluders=1)
    seen = []

    def masked(callbacks):
        def remember(callback):
            return lambda request: seen.append(callback(request)) or seen[-1]

        return simulated_aggregator([remember(c) for c in callbacks], config)

    def model(connect):
        seen.clear()
        with seeded_entropy(3):
            return secure(count=5, connect=connect, method=method).release()

    hidden = model(masked)
    assert len(seen) == 5  # each server's state went through the protocol
    plain = model(UnmaskedAggregator)
    for name in ("left_singular_vectors_", "singular_values_", "components_"):
        assert np.array_equal(getattr(hidden, name), getattr(plain, name)), name
    assert hidden.privacy_spent_ == plain.privacy_spent_
    assert hidden.privacy_spent_.epsilon == 1.0 and len(hidden.server_privacy_spent_) == 5
