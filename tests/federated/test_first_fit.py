"""A personalised model over devices: the same fit as in one place, and its charges."""

import math
import warnings
from contextlib import nullcontext, suppress
from functools import cache, partial

import numpy as np
import pytest
from sklearn.base import clone

from skdp import DPPCA, DPPersonalizedClassifier, DPPersonalizedRegressor, PrivacyLedger
from skdp.exceptions import BudgetExceededError, NoSignalWarning, PrivacyError
from skdp.federated import (
    AggregationAbortedError,
    AggregationConfig,
    FederatedRounds,
    InvalidMessageError,
    PersonalizedClient,
    PowerMethodClient,
    RecommenderClient,
    UnmaskedAggregator,
)
from skdp.federated._messages import Call, Question, Request
from skdp.federated.personalized import SIGNATURES, FirstFitUsers
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.queries.users import UserQuery
from skdp.testing import record_transcript, seeded_entropy
from skdp.testing._transcripts import replaced
from skdp.testing.sensitivity import mixed_sizes
from tools.federation import Wire, first_request, noise_of, plain_sum, secure_sum
from tools.gate import change_over_bound
from tools.outcomes import refuses

S, D = 5, 5
CONFIG = AggregationConfig(S, 1, 1)
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


def people(n, seed, m=8):
    """Rows of n users whose models lie on the first axis, about a common one on the second."""
    rng = np.random.default_rng(seed)
    X, users = rng.standard_normal((m * n, D)) * [1, 2, 1, 1, 3], np.repeat(np.arange(n), m)
    factor = rng.standard_normal((n, 1)) * np.eye(D)[0] + 0.5 * np.eye(D)[1]
    return X, np.sum(X * factor[users], axis=1) + 0.1 * rng.standard_normal(m * n) + 3.0, users


def with_sizes_that_products_lose(house):
    """Add three users; one for whom LAPACK fails once ended the fit of all, after the charge."""
    X, y, g = house
    rows = np.vstack([mixed_sizes(3, D), mixed_sizes(12, D)[3:]])
    users = np.append(g, np.repeat([60, 61, 62], [3, 1, 8]))
    return np.vstack([X, rows]), np.append(y, np.abs(rows[:, 1])), users


HOUSES = [people(60, seed) for seed in range(S)]
HOUSES[0] = with_sizes_that_products_lose(HOUSES[0])
N_USERS = 60 * S + 3
CLASSES = ["no", "yes"]


def labels(houses):
    return [(X, np.where(y > 3, "yes", "no"), g) for X, y, g in houses]


def clients_of(estimator, houses=HOUSES, **options):
    if isinstance(estimator, DPPersonalizedClassifier):
        houses = labels(houses)
    options |= {"epsilon": estimator.epsilon, "delta": estimator.delta}
    return [PersonalizedClient(estimator, X, y, CONFIG, groups=g, **options) for X, y, g in houses]


def central(estimator, house):
    if isinstance(estimator, DPPersonalizedClassifier):
        (house,) = labels([house])
    X, y, groups = house
    return estimator.fit(X, y, groups=groups)


def fit(estimator, aggregator=None, clients=None, **options):
    clients = clients or clients_of(estimator)
    if estimator.adjacency == "replace":
        options["n_users"] = N_USERS
    server = FederatedRounds(estimator, CONFIG)
    return server.fit(aggregator or plain_sum(clients), n_features=D, **options), clients, server


WAYS = [
    DPPersonalizedRegressor(1, epsilon=2.0),
    DPPersonalizedRegressor(
        1, epsilon=4.0, adjacency="replace", loss="huber", head_selection="per_user"
    ),
    DPPersonalizedRegressor(1, target_bounds=(-10, 10), head_selection="per_user"),
    DPPersonalizedRegressor(2, whiten=False, fit_intercept=False, loss="absolute"),
    DPPersonalizedClassifier(1, classes=CLASSES, fit_intercept=False),
    DPPersonalizedClassifier("auto", classes=CLASSES),
]


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", WAYS, ids=range(len(WAYS)))
def test_sums_of_clients_are_the_integers_of_the_central_fit(estimator):
    """At every step all bits are equal except for the noise, and so are names, bounds, receipts."""
    house = [np.concatenate(part) for part in zip(*HOUSES, strict=True)]
    house[2] = np.concatenate([100 * i + g for i, (_, _, g) in enumerate(HOUSES)])
    (whole,), clients = clients_of(estimator, [house]), clients_of(estimator)
    wire = Wire(clients)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        alone = central(clone(estimator), house)
        with noise_of(0):
            model, _, server = fit(estimator, wire)
    gaps = list(wire.gaps(whole._query))
    assert [bound.name for bound, _, _ in gaps] == [line.name for line in model.releases_]
    assert not any(distance for _, _, distance in gaps)
    ledgers = [fitted.releases_ for fitted in (alone, model, clients[0])]
    lines, others, mine = ([(line.name, line.sensitivity) for line in ledger] for ledger in ledgers)
    assert lines == others == mine
    losses = [[line.loss.value for line in ledger] for ledger in ledgers]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-6)
    assert server.privacy_spent_ == model.privacy_spent_ == clients[0].close()
    assert (model.privacy_spent_.epsilon, model.privacy_spent_.unit) == (estimator.epsilon, "group")
    assert model.private_state == ""
    assert np.isfinite(model.components_).all()


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.PrivacyWarning")
def test_a_huge_budget_is_not_split_as_parts_of_noise_are_drawn_once():
    model, clients, _ = fit(DPPersonalizedRegressor(1, epsilon=100.0))
    assert model.privacy_spent_.losses == clients[0].close().losses
    with pytest.warns(NoSignalWarning, match="range of the targets: new users"):
        fit(DPPersonalizedRegressor(1, epsilon=0.01, target_bounds=(-10, 10)))


def gap(model):
    """Sine between the shared line and the users', in raw features."""
    direction = model.whitening_ @ model.components_[0]
    return math.sqrt(1 - min(1.0, float(direction[0] / np.linalg.norm(direction)) ** 2))


@pytest.mark.thorough
def test_drop_outs_at_every_step_over_secure_sums():
    """Another client is lost in each step, and the fit is the same fit."""
    houses = [people(300, 10 + seed) for seed in range(S)]
    estimator = DPPersonalizedRegressor(1, epsilon=4.0, target_bounds=(-10, 20))
    clients, asked = clients_of(estimator, houses), []

    def lost(i, kind):
        return i == len(asked) % S

    secure = secure_sum(clients, CONFIG, lost=lost)

    def aggregator(request, size):
        asked.append(request)
        opened = secure(request, size)
        assert opened.n_survivors == S - 1
        return opened

    with seeded_entropy(1):
        model = FederatedRounds(estimator, CONFIG).fit(aggregator, n_features=D)
    assert len(asked) == len(model.releases_) > 5 * S
    assert gap(model) < 0.1
    assert model.privacy_spent_.epsilon == 4.0


STEPS = [
    "count", "column_centered_ranks", "pooled_regression_moments", "user_direction_gram",
    "head_rule_votes",
]  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("step", STEPS)
def test_too_many_drop_outs_at_any_step_end_the_fit_and_are_paid(step):
    """The server pays up to the last of these steps; each client that was asked pays in full."""
    # At this epsilon all fits find the range of the targets: none makes a second search.
    estimator = DPPersonalizedRegressor(1, epsilon=9.0, target_bounds=(-10, 10))
    lines = fit(estimator)[0].releases_
    names = [line.name for line in lines]
    assert set(names) == set(STEPS)
    stop = len(names) - names[::-1].index(step)
    clients, asked = clients_of(estimator), []
    complete, secure = plain_sum(clients), secure_sum(clients, CONFIG, lost=lambda i, kind: i < 2)

    def aggregator(request, size):
        asked.append(request)
        return (secure if len(asked) == stop else complete)(request, size)

    server = FederatedRounds(estimator, CONFIG)
    whole = PrivacyBudget(estimator.epsilon, estimator.delta).mu
    room = math.sqrt(1 + S) * whole * (1 + 1e-9)  # for the server and each client, once
    with PrivacyLedger(mu=room) as ledger, pytest.raises(AggregationAbortedError):
        server.fit(aggregator, n_features=D)
    assert [line.name for line in server.releases_] == names[:stop]
    ours, *theirs = ledger.entries
    assert ours.state == "failed"
    paid = math.hypot(*(line.loss.value for line in lines[:stop]))
    assert [loss.value for loss in ours.losses] == [pytest.approx(paid, rel=1e-9)]
    n_asked = S if stop > 1 else 0  # at the first step no client was asked before it was given up
    assert [entry.state for entry in theirs] == ["open"] * n_asked
    for entry in theirs:
        assert [loss.value for loss in entry.losses] == [pytest.approx(whole, rel=1e-9)]


# -- what clients refuse -----------------------------------------------------------------------


EYE, ONE = np.eye(D), np.ones(D)
LEVEL, COEF, LINE = np.zeros(1), np.zeros((D, 1)), np.eye(D)[:, :1]
RULES = np.array([[0.0, 1, np.inf, 1, 1], [2, 0.1, 1, 1, 1], [0, np.inf, 0, 8, 2]])
SIGHT = (1e3 * EYE[0], ONE + EYE[1], np.append(np.full(D - 2, np.inf), [2.0, 1e5]))
SKEWED = EYE + 1e-13 * np.roll(EYE, 1, axis=1)
SKEWED[3] = SKEWED[2] * (1 + 1e-13)  # two features seen as one
HONEST = {  # of users who are seen
    "user_direction_gram": (EYE, COEF, LEVEL),
    "head_rule_votes": (EYE, COEF, None, LINE, RULES),
    "pooled_regression_moments": (ONE, LEVEL, 1.0),
}
LIES = [
    ("user_direction_gram", (EYE[:2], COEF, LEVEL)),
    ("user_direction_gram", (np.full((D, D), np.nan), COEF, LEVEL)),
    ("user_direction_gram", (np.full((D, D), 1e200), COEF, LEVEL)),
    ("user_direction_gram", (EYE, COEF, np.zeros(3))),  # seen by public rows alone
    ("user_direction_gram", (EYE, None, LEVEL)),
    ("user_direction_gram", (SKEWED, COEF, LEVEL)),
    ("user_direction_gram", (ONE, COEF, LEVEL)),
    ("user_direction_gram", (1e-110 * EYE, COEF, LEVEL)),
    ("user_direction_gram", (EYE, COEF)),
    ("user_direction_gram", ()),
    ("scaled", (SIGHT[0][1:], *SIGHT[1:])),
    ("scaled", (np.full(D, np.inf), *SIGHT[1:])),
    ("scaled", (SIGHT[0], -ONE, SIGHT[2])),
    ("scaled", (*SIGHT[:2], 0 * ONE)),
    ("scaled", SIGHT[:2]),
    ("head_rule_votes", (EYE, COEF, LEVEL, 3 * LINE, RULES)),
    ("head_rule_votes", (EYE, COEF, LEVEL, np.full((D, D), D**-0.5), RULES)),
    ("head_rule_votes", (EYE, COEF, LEVEL, 1.0, RULES)),
    ("head_rule_votes", (EYE, COEF, LEVEL, LINE, -RULES)),
    ("head_rule_votes", (EYE, COEF, LEVEL, LINE, RULES * [2, 1, 1, 1, 1])),
    ("head_rule_votes", (EYE, COEF, LEVEL, LINE, RULES * [1, 1, 1, 2, 1])),
    ("head_rule_votes", (EYE, COEF, LEVEL, LINE, np.zeros((0, 5)))),
    ("head_rule_votes", (EYE, None, LEVEL, LINE, RULES)),
    ("pooled_regression_moments", (ONE[1:], LEVEL, 1.0)),
    ("pooled_regression_moments", (ONE, LEVEL, -1.0)),
    ("target_means", (ONE,)),
    *[("grid", (points,)) for points in (ONE, np.ones((D, 1001)), np.full((D, 2), np.nan))],
    ("_asked", (ONE,)),
    ("grams", ()),
    ("cached_local", ()),
]


ALONE = DPPersonalizedRegressor(1, target_bounds=(-10, 10))


@cache
def honest():
    return first_request(partial(fit, ALONE))


def alone(method, arguments):
    """Return a client, and a request to it."""
    (client,) = clients_of(ALONE, HOUSES[:1])
    of_columns = Call("columns"), Call(method, arguments), Call("ranks", (np.zeros(D, np.intp),))
    calls = of_columns if method == "grid" else (Call("scaled", SIGHT), Call(method, arguments))
    return client, Request(0, honest().facts, 0.1, honest().step, calls).encode()


@pytest.mark.parametrize("lie", LIES, ids=[f"{i}-{lie[0]}" for i, lie in enumerate(LIES)])
def test_requests_that_do_not_fit_cost_nothing(lie):
    client, request = alone(*lie)
    refuses(InvalidMessageError, None, client.respond, request)
    assert client.releases_ == ()


@pytest.mark.parametrize("holder", [PowerMethodClient, RecommenderClient, PersonalizedClient])
def test_rows_near_the_largest_float_make_no_client_warn(holder):
    """Of both signs, in places that numpy adds apart; warnings are errors here."""
    X = np.zeros((3, 16))
    X[0, [0, 8]], X[0, [1, 9]] = 1.7e308, -1.7e308
    if holder is PersonalizedClient:
        holder(DPPersonalizedRegressor(1), X, np.ones(3), CONFIG)
    else:
        holder(X, CONFIG)


@pytest.mark.parametrize("spoil", [ValueError, ZeroDivisionError, UserWarning, MemoryError, None])
def test_a_client_that_cannot_answer_answers_with_its_noise(spoil):
    """It pays, and sends noise in the usual shape, so that its failure stays private."""

    def spoiled(original, more_rows=50):  # a rule that fails for users, and not for the trial
        def term(self, *args):
            if self._source.n_rows() > more_rows:
                if spoil is None:
                    return np.zeros(31415)
                raise spoil("31415")
            return original(self, *args)

        return term

    words = []
    for broken in (True, False):
        client, request = alone("user_direction_gram", HONEST["user_direction_gram"])
        with replaced(UserQuery, "_sum", spoiled if broken else nothing_of), noise_of(1):
            words.append(client.respond(request))
        assert len(client.releases_) == 1
    assert np.array_equal(*words)
    client, request = alone("user_direction_gram", HONEST["user_direction_gram"])
    with replaced(UserQuery, "_sum", partial(spoiled, more_rows=0)):  # for public users, too
        refuses(InvalidMessageError, None, client.respond, request)
    assert client.releases_ == ()


def nothing_of(original):
    return lambda self, term, shape, step: np.zeros(shape, np.int64 if step else np.float64)


@pytest.mark.thorough("name")
@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("adjacency", ["replace", "add_remove"])
def test_one_user_moves_an_answer_no_further_than_its_bound(name, adjacency):
    """Whatever arrays pass the checks: bounds are those of the users' query."""
    estimator = DPPersonalizedRegressor(1, adjacency=adjacency)
    X, y, users = people(3, 5)
    first = users < 2
    second = first if adjacency == "replace" else users < 1
    checks = SIGNATURES[FirstFitUsers][name]

    def users_of(A, b, kept):
        return FirstFitUsers(estimator, estimator._query(A[kept], b[kept], users[kept]))

    honest, largest = users_of(X, y, first), 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        size = 10.0 ** rng.integers(-30, 30)
        call = [size * a if a is EYE or a is ONE else a for a in HONEST[name]]
        theirs, target = X.copy(), y.copy()
        scales = 10.0 ** rng.integers(-12, 13, 2)
        theirs[users == 1] = scales[0] * rng.standard_normal((8, D)) * np.eye(D)[seed % D]
        target[users == 1] = scales[1] * rng.standard_normal(8)
        bounds = []
        for asked in (honest, users_of(theirs, target, second)):
            assert all(check(asked, a) for check, a in zip(checks, call, strict=True))
            scaling = (size * SIGHT[0], size * SIGHT[1], SIGHT[2])
            bounds.append(getattr(asked.scaled(*scaling), name)(*call))
        largest = max(largest, change_over_bound(*bounds))
    assert largest <= 1
    assert largest > 0.5


def test_what_has_no_federated_fit():
    for estimator, match in (
        (DPPersonalizedRegressor(1, group_column=0), "group_column"),
        (DPPersonalizedClassifier(1), "classes"),
        (DPPersonalizedRegressor(1, epsilon=math.inf), "finite"),
        (DPPersonalizedRegressor(1, delta=0.0), "delta"),
    ):
        with pytest.raises((ValueError, PrivacyError), match=match):
            FederatedRounds(estimator, CONFIG).fit(UnmaskedAggregator([]), n_features=D)
    estimator = DPPersonalizedRegressor(1)
    with pytest.raises(ValueError, match="'n_features' must be an int of at least 1"):
        FederatedRounds(estimator, CONFIG).fit(UnmaskedAggregator([]), n_features=0)
    with pytest.raises(PrivacyError, match="'n_users' is public"):
        FederatedRounds(estimator, CONFIG).fit(UnmaskedAggregator([]), n_features=D, n_users=3)


# -- which ledgers are charged ---------------------------------------------------------------------

# It asks for a part of what clients may spend.
HALF = DPPersonalizedRegressor(1, epsilon=0.5, target_bounds=(-10, 10))


def test_a_fit_is_charged_to_an_open_ledger():
    """The server's and, where they are in the same process, those of the clients."""
    few = [people(8, seed) for seed in range(S)]
    server, clients = FederatedRounds(ALONE, CONFIG), clients_of(ALONE, few)
    with PrivacyLedger(mu=9) as ledger:
        server.fit(plain_sum(clients), n_features=D)
    mine, *others = ledger.entries
    assert (mine.estimator, mine.unit, mine.state) == ("DPPersonalizedRegressor", "group", "fitted")
    assert [(fit.estimator, fit.unit) for fit in others] == [("PersonalizedClient", "group")] * S
    sums = plain_sum(clients_of(ALONE, few))
    with pytest.raises(BudgetExceededError), PrivacyLedger(epsilon=0.5, delta=1e-5) as ledger:
        server.fit(sums, n_features=D)
    assert ledger.entries == ()
    refuses(ZeroDivisionError, None, server.fit, lambda *asked: 1 / 0, n_features=D)
    assert server.privacy_spent_.losses == (server.releases_[0].loss,)  # of what was given up


def test_a_client_charges_its_own_ledgers():
    """The whole budget, once, in the client's process: at construction, or before an answer."""
    small = [people(5, seed) for seed in range(S)]
    houses = [PrivacyLedger(mu=1.0) for _ in range(3)]
    clients = clients_of(ALONE, small[3:])  # in no ledger
    for (X, y, groups), house in zip(small[:2], houses, strict=False):
        with house, house.partition("home", ["here"], whole_groups=True) as part, part("here"):
            clients.append(PersonalizedClient(ALONE, X, y, CONFIG, groups=groups, epsilon=1.0))
    clients += clients_of(ALONE, small[2:3])
    full = PrivacyLedger(mu=0.1)
    with record_transcript() as transcript, pytest.raises(BudgetExceededError), full:
        clients_of(ALONE, small[:1])
    server = FederatedRounds(HALF, CONFIG)

    def sums(request, size):
        with full:  # how little is no business of the server
            refuses(InvalidMessageError, "has too little left", clients[0].respond, request)

    refuses(BudgetExceededError, "PersonalizedClient asks for", server.fit, sums, n_features=D)
    assert not transcript
    assert not full.entries
    assert not clients[0].releases_

    def answered(request, size):
        with houses[2]:
            clients[-1].respond(request)
        with houses[1]:  # its rows are those of the part where it was made
            clients[-2].respond(request)
        raise ConnectionError

    refuses(ConnectionError, None, server.fit, answered, n_features=D)
    for house in houses:
        (entry,) = house.entries
        assert (entry.estimator, entry.state) == ("PersonalizedClient", "open")
        assert entry.losses == (("gaussian", PrivacyBudget(1.0, 1e-6).mu),)
    for client in clients:
        assert client.close().epsilon == 1.0
    for house in houses:
        (entry,) = house.entries
        assert entry.state == "fitted"
        assert entry.losses[0].value == pytest.approx(PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)


def test_a_ledger_that_is_opened_between_two_answers_is_charged_for_all_that_may_follow():
    """A charge for earlier answers alone would omit those that follow inside the ledger."""
    (client,) = clients_of(ALONE, [people(5, 0)])
    seen, late, full = [], PrivacyLedger(mu=1.0), PrivacyLedger(mu=0.1)

    def sums(request, size):
        question, ledger = Question(request, (S, 1, 1), size), (None, late, full)[len(seen)]
        seen.append(request)
        with ledger or nullcontext(), suppress(InvalidMessageError):
            return UnmaskedAggregator([client.respond], S)(question, size)

    refuses(BudgetExceededError, None, FederatedRounds(HALF, CONFIG).fit, sums, n_features=D)
    (entry,) = late.entries
    assert entry.losses[0].value == pytest.approx(PrivacyBudget(1.0, 1e-6).mu, rel=1e-9)
    assert full.entries == () and len(seen) == 3


def test_a_device_is_one_user():
    X, y, _ = people(1, 7)
    client = PersonalizedClient(ALONE, X, y, CONFIG)
    request = first_request(partial(FederatedRounds(ALONE, CONFIG).fit, n_features=D)).encode()
    assert client.respond(request).shape == (1,)  # of a column
    weaker = PersonalizedClient(ALONE, X, y, CONFIG, epsilon=0.5)
    refuses(InvalidMessageError, "too fine", weaker.respond, request)
    assert weaker.releases_ == ()


def test_what_is_not_a_personalised_model():
    """Nor a fitted one, which would lose its users' models."""
    X, y, users = people(40, 0)
    wrong = DPPersonalizedRegressor(whiten=2)
    refuses(ValueError, "whiten", PersonalizedClient, wrong, X, y, CONFIG)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        fitted = clone(ALONE).fit(X, y, groups=users)
    for model in (DPPCA(), fitted):
        with pytest.raises(ValueError, match="'model' must be an unfitted DPPersonalizedRegressor"):
            FederatedRounds(model, CONFIG).fit(UnmaskedAggregator([]), n_features=D)
