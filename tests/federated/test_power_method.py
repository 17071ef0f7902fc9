"""The decentralised fit: the same integers, the same accuracy, noise that survives colluders."""

import math
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2

from skdp import (
    DPPCA,
    DPIncrementalPCA,
    DPLowRankFactorizer,
    DPPersonalizedRegressor,
    DPTruncatedSVD,
    PrivacyLedger,
    federated,
)
from skdp.datasets import make_interactions, make_spiked_rows
from skdp.exceptions import PrivacyError
from skdp.federated._clients import FederatedSession
from skdp.federated._messages import Call, Facts, Question, Request
from skdp.federated.noise_parts import PartGrant, granted_step
from skdp.federated.power_method import _SIGNATURES
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise import integers as noise
from skdp.queries.rows import RowQuery
from skdp.recommend import DPRecommender
from skdp.testing import seeded_entropy
from skdp.testing._transcripts import replaced
from tools.federation import Wire, asked, plain_sum, secure_sum
from tools.gate import change_over_bound, new_session
from tools.outcomes import refuses

S = 8
CONFIG = federated.AggregationConfig(S, 1, 1)
X = make_spiked_rows(1600, 12, 2, random_state=0)
WIDE = sp.random_array((1600, 60), density=0.1, random_state=1, format="csr")
R = make_interactions(300, 40, 4000, 3, random_state=0).tocsr()


def split(X, n=S):
    return [X[part] for part in np.array_split(np.arange(X.shape[0]), n)]


def clients_of(estimator, parts, config=CONFIG, **options):
    same = {name: getattr(estimator, name) for name in ("epsilon", "delta", "adjacency")}
    unit = getattr(estimator, "privacy_unit", "row")
    return [
        federated.PowerMethodClient(part, config, privacy_unit=unit, **(same | options))
        for part in parts
    ]


def fit(estimator, clients, config=CONFIG, *, away=(), aggregator=None, **options):
    present = [client for i, client in enumerate(clients) if i not in away]
    server = federated.FederatedPowerMethod(estimator, config)
    width = clients[0]._facts.n_features
    return server.fit(aggregator or plain_sum(present), n_features=width, **options)


# -- the same integers -----------------------------------------------------------------------------

FITS = {
    "gram": (DPTruncatedSVD(2, clip_norm=1.5), X), "auto clip": (DPTruncatedSVD(2), X),
    "power": (DPTruncatedSVD(2, algorithm="power", adjacency="replace"), X),
    "screened": (DPTruncatedSVD(2, algorithm="screened", clip_norm=2.0), WIDE),
    "pca": (DPPCA(2, clip_norm=1.5), X), "centred": (DPPCA(clip_norm=1.5), X),
    "moment": (DPPCA(clip_norm=2.0), WIDE),
    "interaction": (DPTruncatedSVD(2, privacy_unit="interaction", epsilon=3.0), R),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("name", FITS)
def test_opened_totals_are_the_central_integers_plus_the_shares(name):
    """Bit for bit where terms are integers of rows; a rounded answer is rounded by each client."""
    estimator, data = FITS[name]
    clients = clients_of(estimator, split(data))
    wire = Wire(clients)
    public = estimator.adjacency == "replace" or name == "interaction"
    n_samples = data.shape[0] if public else None
    model = fit(estimator, clients, aggregator=wire, sparse=sp.issparse(data), n_samples=n_samples)
    assert len(wire.steps) >= (1 if name == "moment" else 3)
    exact_releases = 0
    (whole,) = clients_of(estimator, [data])
    for bound, request, gap in wire.gaps(whole._query):
        once = request.calls[-1].method in ("product", "sums")  # rounded after the sum
        per_client = once or name == "interaction"
        assert gap <= (2 * S if per_client else 0), bound.name
        exact_releases += not per_client
    assert exact_releases or name == "interaction"
    assert model.privacy_spent_.epsilon == estimator.epsilon
    mechanisms = {line.mechanism for line in model.releases_}
    assert mechanisms <= {"distributed gaussian", "charged, nothing released"}


# -- privacy ---------------------------------------------------------------------------------------


def worst_pair(adjacency):
    """Rows of zeros but one of the largest norm, alone or orthogonal to another such row."""
    data = np.zeros((S * 2, 4))
    other = data.copy()
    other[1, 3] = 1.0
    if adjacency == "replace":
        data[1, 2] = 1.0
    return data, other


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("algorithm", ["gram", "power"])
def test_transcript_without_the_noise_of_colluders(adjacency, algorithm):
    """What server and T colluders learn of a row, with F clients away: claimed mu, or less.

    They subtract what colluders sent. The neighbour is evaluated at the requests of the first run.
    """
    config = federated.AggregationConfig(S, 2, 1)
    data, other = worst_pair(adjacency)
    estimator = DPTruncatedSVD(
        4, clip_norm=1.0, algorithm=algorithm, adjacency=adjacency, n_oversamples=0
    )
    clients = clients_of(estimator, split(data), config)
    wire = Wire(clients, away=(S - 1,))
    n_samples = len(data) if adjacency == "replace" else None
    model = fit(estimator, clients, config, aggregator=wire, n_samples=n_samples)
    mine, theirs = (
        RowQuery(split(rows)[0], clip_norm=math.inf, adjacency=adjacency) for rows in (data, other)
    )
    unknown = S - 2 - 1  # shares in the total that colluders do not know
    realised, paid = 0.0, 0.0
    for step, line in zip(wire.steps, clients[0].releases_, strict=True):
        bounds = [asked(query, step.request.calls, _SIGNATURES) for query in (mine, theirs)]
        moved = np.subtract(*(b.answer(step.request.step) for b in bounds)).astype(float)
        mu = float(np.linalg.norm(moved)) / (noise.PART_EFFECTIVE_SIGMA * math.sqrt(unknown))
        assert mu <= line.loss.value
        realised, paid = realised + mu**2, paid + line.loss.value**2
    assert math.sqrt(realised) <= math.sqrt(paid) <= model.privacy_spent_.mu * (1 + 1e-12)
    if algorithm == "gram":
        assert realised > 0.5 * paid  # the bound is nearly attained


def test_noise_of_colluders_subtracted_leaves_what_is_claimed():
    """Totals minus the colluders' noise, against the receipt; solvers get the noise that came."""
    config, heard = federated.AggregationConfig(S, 2, 1), []

    def recorded(original):
        def close(grant, total, n_parts):
            answer = original(grant, total, n_parts)
            heard.append(answer.noise_scale / grant.noise_scale)
            return answer

        return close

    estimator = DPTruncatedSVD(2, clip_norm=1.5)
    wire = Wire(clients_of(estimator, split(X), config), away=(S - 1,))
    with seeded_entropy(2), replaced(PartGrant, "close", recorded):
        model = fit(estimator, wire.clients, config, aggregator=wire)
    steps = zip(wire.steps, model.releases_, strict=False)
    left = np.concatenate(
        [sum(s.drawn[2:]).ravel() * s.request.step / line.noise_scale for s, line in steps]
    )
    low, high = chi2.ppf([1e-9, 1 - 1e-9], left.size)
    assert low < left @ left < high
    np.testing.assert_allclose(heard, math.sqrt((S - 1) / (S - 3)), rtol=1e-12)


@cache
def requests():
    """Return the requests of a fit."""
    estimator, _ = FITS["gram"]
    wire = Wire(clients_of(estimator, split(X)))
    fit(estimator, wire.clients, aggregator=wire)
    return [step.request.encode() for step in wire.steps]


def a_request(number=0):
    return requests()[number]


def refuse_reading(original):
    def read(*args):
        raise AssertionError("private data were read")

    return read


def changed(request, **fields):
    parsed = Request.decode(request)
    values = {name: getattr(parsed, name) for name in ("serial", "facts", "share", "step", "calls")}
    return Request(**(values | fields)).encode()


def test_a_private_choice_is_refused_before_it_is_paid():
    """Scores of clients could be added, but not the noise that decides between them."""
    session = new_session()
    federation = FederatedSession(session, refuse_reading(None), federated.AggregationConfig(4), 12)
    scores = Bounded(Bound("scores", (3,), 1.0, linf=1.0), refuse_reading(None))
    refuses(PrivacyError, "private selection", federation.answer, (("scores", ()),), scores, 0.1)
    assert session.ledger == ()


V = np.eye(12, 2)
HONEST = {"share": 0.5, "step": 1.0, "calls": (Call("clipped", (1.5,)), Call("gram"))}
TOO_FINE = {"finer step", "no step", "nan step", "infinite clip", "longer clip", "long V"}


def calls(*last, clip=1.5):
    return {"calls": (Call("clipped", (clip,)), *last)}


def columns(*kept):
    return calls(Call("columns", (np.array(kept),)), Call("sums"))


def product(V):
    return calls(Call("gram_product", (V,)))


def only(*call):
    return {"calls": (Call(*call),)}


LIES = {
    "finer step": {"step": 1e-12}, "no step": {"step": 0.0}, "nan step": {"step": math.nan},
    "more budget": {"share": 1.01}, "negative share": {"share": -0.1},
    "nan share": {"share": math.nan},
    "fewer colluders": {"facts": Facts("row", "add_remove", 12, S, 0, 1)},
    "more clients": {"facts": Facts("row", "add_remove", 12, S + 1, 1, 1)},
    "unit": {"facts": Facts("interaction", "add_remove", 12, S, 1, 1)},
    "adjacency": {"facts": Facts("row", "replace", 12, S, 1, 1)},
    "unlisted method": only("tangent_bound"), "private name": only("_row_norms"),
    "dunder": only("__class__"), "attribute": only("n_rows"), "restricted only": calls(),
    "release first": {"calls": (Call("gram"), Call("gram"))},
    "extra argument": only("gram", (1.0,)), "infinite clip": only("gram"),
    "negative clip": calls(Call("gram"), clip=-1.0),
    "nan clip": calls(Call("gram"), clip=math.nan),
    "tiny clip": calls(Call("gram"), clip=1e-170) | {"step": 5e-324},
    "longer clip": calls(Call("gram"), clip=1e5), "column twice": columns(1, 1),
    "column beyond": columns(12), "column before": columns(-1), "float columns": columns(1.0),
    "long V": product(1e8 * V), "nan V": product(np.nan * V), "vanishing V": product(1e-160 * V),
    "no V": product(0 * V), "nan scale": only("kept_below", (math.nan,)),
    "nan threshold": only("norms_above", (math.nan,)), "narrow V": product(V[:5]),
    "vector V": product(V[:, 0]), "oblique V": calls(Call("tangent", (2 * V,)), Call("sums")),
    "vanishing clip": calls(Call("sums"), clip=5e-324), "wide V": product(np.ones((12, 13))),
    "bursting clip": calls(Call("gram_product", (V,)), clip=1e200),
    "bursting corner": calls(Call("moment", (1e200,))),
    "sizes without a clip": {"calls": (Call("tangent", (V,)), Call("sizes_above", (1.0,)))},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_client_refuses_what_it_cannot_check(lie):
    """Nothing is read and nothing is spent; the step of an honest request is the finest allowed."""
    request = a_request(number=1)  # a moment, a clip level found before it
    client = clients_of(FITS["gram"][0], split(X))[0]
    fields = HONEST | LIES[lie]
    with (
        replaced(PrivacySession, "_read", refuse_reading),
        pytest.raises(federated.InvalidMessageError) as caught,
    ):
        client.respond(changed(request, **fields))
    assert ("too fine" in str(caught.value)) == (lie in TOO_FINE)
    assert client.releases_ == ()
    assert client.privacy_spent_.epsilon == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("method", ["gram_product", "projected_gram", "product", "moment"])
def test_no_arguments_of_a_server_break_a_bound(method, adjacency):
    """Matrices that no solver would send, clip norms of any scale, rows of any scale."""
    rng, checked = np.random.default_rng(0), 0
    for _ in range(150):
        V = 10.0 ** rng.integers(-90, 91) * rng.standard_normal((6, rng.integers(1, 5)))
        V = V * 10.0 ** rng.integers(-9, 1, V.shape[1]) + rng.choice([0, 1e3]) * V[:, :1]
        clip = 10.0 ** rng.uniform(-60, 60)
        last = {
            "gram_product": (Call("gram_product", (V,)),),
            "projected_gram": (Call("projected_gram", (V,)),),
            "moment": (Call("moment", (clip * 10.0 ** rng.uniform(-3, 3),)),),
            "product": (
                Call("tangent", (np.linalg.qr(V)[0],)),
                Call("product", (clip**2 * 10.0 ** rng.uniform(-6, 2),)),
            ),
        }[method]
        rows = clip * 10.0 ** rng.uniform(-8, 8) * rng.standard_normal((3, 6))
        rows[0] = clip * rng.standard_normal(6)
        first, second = rows[:2], rows[[0, 2]] if adjacency == "replace" else rows[:1]
        rows_of = partial(RowQuery, clip_norm=math.inf, adjacency=adjacency)
        requested = Call("clipped", (clip,)), *last
        pair = [asked(rows_of(part), requested, _SIGNATURES) for part in (first, second)]
        try:
            step = granted_step(pair[0].bound, 0.3, federated.AggregationConfig(S), None)
        except (PrivacyError, ValueError):
            continue
        assert change_over_bound(*pair, step) <= 1
        checked += 1
    assert checked > 75


def test_honest_request_is_answered_where_lies_are_not():
    """The requests above are refused for their changes alone."""
    request = a_request(number=1)
    client = clients_of(FITS["gram"][0], split(X))[0]
    words = client.respond(changed(request, **HONEST))
    assert words.dtype == np.uint64 and words.shape == (12 * 13 // 2,)
    assert len(client.releases_) == 1


COUNTS = (CONFIG.n_clients, CONFIG.n_colluders, CONFIG.n_dropouts)
WORDS = 1  # the first request is a search of a clip level


@pytest.mark.parametrize("first", ["a sum", "outside"])
@pytest.mark.parametrize("then", ["a sum", "outside", "closed", "smaller share", "larger step"])
def test_no_release_is_answered_twice(first, then):
    """Only the server knows whether it used the first answer."""
    request = changed(a_request(), serial=3)  # of a client that missed some
    asked = {
        "outside": request,
        "a sum": Question(request, COUNTS, WORDS),
        "closed": Question(request, COUNTS, WORDS),
        "smaller share": changed(request, share=1e-3),
        "larger step": changed(request, step=1e9),
    }
    client = clients_of(FITS["gram"][0], split(X))[0]
    client.respond(asked[first])
    if then == "closed":
        client.close()
    refuses(federated.InvalidMessageError, "not new", client.respond, asked[then])
    assert len(client.releases_) == 1 + (then == "closed")  # what was left over


def test_a_request_is_looked_at_and_paid_under_one_lock(monkeypatch):
    """Two threads could find that one release is new, and answer it twice."""
    (client, *_), held = clients_of(FITS["gram"][0], split(X)), []
    pay = client._pay
    monkeypatch.setattr(
        client, "_pay", lambda asked: held.append(client._session._lock._is_owned()) or pay(asked)
    )
    client.respond(a_request())
    assert held == [True]


@pytest.mark.parametrize("same_sum", [True, False])
def test_a_second_fit_does_not_open_a_paid_release_again(same_sum):
    """A server that was interrupted after a sum starts again; its first request is the same."""
    clients = clients_of(FITS["gram"][0], split(X))
    opened = []

    def connect():
        return secure_sum(clients, CONFIG)

    def interrupted(sums):
        def once(request, size):
            opened.append(sums(request, size).total)
            raise ConnectionError

        return once

    sums = connect()
    refuses(ConnectionError, None, fit, FITS["gram"][0], clients, aggregator=interrupted(sums))
    with pytest.raises(federated.AggregationAbortedError):
        fit(FITS["gram"][0], clients, aggregator=interrupted(sums if same_sum else connect()))
    assert len(opened) == len(clients[0].releases_) == 1


@pytest.mark.parametrize("what", ["another size", "more drop-outs"])
def test_a_sum_that_does_not_fit_costs_nothing(what):
    """More words than the answer has; or a sum that would open with too few shares of noise."""
    clients = clients_of(FITS["gram"][0], split(X))
    ask = partial(secure_sum(clients, CONFIG), a_request(), 2 * 12 * 13)
    if what == "more drop-outs":
        sums = secure_sum(clients, federated.AggregationConfig(S, 1, 3), lost=lambda i, _: i < 3)
        ask = partial(fit, FITS["gram"][0], clients, aggregator=sums)
    with pytest.raises(federated.AggregationAbortedError) as caught:
        ask()
    assert not caught.value.opened
    assert all(client.releases_ == () for client in clients)
    assert caught.value.__notes__[0].startswith(f"Client {3 * (what != 'another size')} refused: ")


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
def test_receipts_of_both_sides_agree():
    for name in ("gram", "power", "interaction"):
        estimator, data = FITS[name]
        clients = clients_of(estimator, split(data))
        public = name != "gram"
        model = fit(estimator, clients, away=(2,), n_samples=data.shape[0] if public else None)
        read = tuple(
            line for line in model.releases_ if line.mechanism != "charged, nothing released"
        )
        if name == "interaction":  # its float error is bounded by the rows of each side
            assert [line[:2] for line in clients[0].releases_] == [line[:2] for line in read]
        else:
            assert clients[0].releases_ == read
        assert clients[0].close().mu == pytest.approx(model.privacy_spent_.mu, rel=1e-9)
        assert clients[2].releases_ == ()


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_receipts_after_an_early_exit_are_the_whole_budget(steps):
    """After no, some or all answers: the number of steps depends on released values."""
    estimator = DPTruncatedSVD(2, clip_norm=1.5, algorithm="power")
    whole = fit(estimator, clients_of(estimator, split(X))).privacy_spent_
    clients, calls = clients_of(estimator, split(X)), []
    sums = plain_sum(clients[1:])

    def interrupted(request, size):
        if len(calls) == steps:
            raise ConnectionError
        calls.append(request)
        return sums(request, size)

    refuses(ConnectionError, None, fit, estimator, clients, aggregator=interrupted)
    assert len(clients[1].releases_) == steps and not clients[0].releases_
    for client in clients:
        spent = client.close()
        assert spent.epsilon == whole.epsilon == estimator.epsilon
        assert spent.mu == pytest.approx(whole.mu, rel=1e-9)
        assert (spent.delta, spent.unit, spent.adjacency) == (
            whole.delta, whole.unit, whole.adjacency,
        )  # fmt: skip
        refuses(federated.InvalidMessageError, None, client.respond, calls[0] if calls else b"")


def test_the_budget_of_a_client_is_its_own():
    """Clients do not answer a server with a larger budget, or a second fit."""
    clients = clients_of(DPTruncatedSVD(2, clip_norm=1.5, epsilon=1.0), split(X))
    greedy = DPTruncatedSVD(2, clip_norm=1.5, epsilon=1.1)
    refuses(federated.InvalidMessageError, "too fine", fit, greedy, clients)
    modest = DPTruncatedSVD(2, clip_norm=1.5, epsilon=0.9)
    fit(modest, clients)
    refuses(federated.InvalidMessageError, "not new", fit, modest, clients)
    refuses(PrivacyError, None, fit, modest, clients, aggregator=secure_sum(clients, CONFIG))


# -- drop-outs and failures ------------------------------------------------------------------------


def test_too_many_dropouts_end_the_fit():
    estimator = DPTruncatedSVD(2, clip_norm=1.5)
    clients = clients_of(estimator, split(X))
    refuses(PrivacyError, None, fit, estimator, clients, away=(0, 1))
    assert not hasattr(estimator, "components_")


def test_a_ledger_is_charged_for_what_was_granted():
    estimator = DPTruncatedSVD(2, clip_norm=1.5)
    with PrivacyLedger(mu=9) as ledger:
        fit(estimator, clients_of(estimator, split(X)))
        clients = clients_of(estimator, split(X))

        def broken(request, size):
            if len(clients[0].releases_) == 2:
                raise federated.AggregationAbortedError("no", opened=True)
            return plain_sum(clients)(request, size)

        refuses(federated.AggregationAbortedError, None, fit, estimator, clients, aggregator=broken)
        of_server = [fit for fit in ledger.entries if fit.estimator == "DPTruncatedSVD"]
        assert [entry.state for entry in of_server] == ["fitted", "failed"]
        assert 0 < of_server[1].losses[0].value < estimator.fit(X).privacy_spent_.mu


# -- the estimator ---------------------------------------------------------------------------------


def test_result_is_an_ordinary_estimator():
    estimator = DPTruncatedSVD(2, clip_norm=1.5)
    model = fit(estimator, clients_of(estimator, split(X)))
    assert type(model) is DPTruncatedSVD and model is not estimator
    assert not hasattr(estimator, "components_")
    assert model.n_features_in_ == 12 and model.transform(X).shape == (1600, 2)
    assert set(vars(model)) >= set(vars(DPTruncatedSVD(2, clip_norm=1.5).fit(X)))
    assert "distributed gaussian" in model.privacy_report().details()
    assert abs(model.n_samples_seen_ - 1600) < 6 * model.releases_[0].noise_scale * math.sqrt(8 / 6)


def test_clients_without_rows():
    estimator = DPTruncatedSVD(2, clip_norm=1.5)
    parts = [np.zeros((0, 12)), sp.csr_array((0, 12)), *split(X, S - 2)]
    projected = X @ fit(estimator, clients_of(estimator, parts)).components_.T
    assert np.sum(projected**2) > 0.5 * np.sum(X**2)


def test_number_of_rows_is_given_where_it_is_public():
    replace = DPTruncatedSVD(2, clip_norm=1.5, adjacency="replace")
    clients = clients_of(replace, split(X))
    refuses(ValueError, "'n_samples' is public", fit, replace, clients)
    assert fit(replace, clients, n_samples=1600).n_samples_seen_ == 1600
    private = DPTruncatedSVD(2, clip_norm=1.5)
    with pytest.raises(PrivacyError, match="'n_samples' is private"):
        fit(private, clients_of(private, split(X)), n_samples=1600)
    with pytest.raises(ValueError, match="'n_samples' is public"):
        fit(*(FITS["interaction"][0], clients_of(FITS["interaction"][0], split(R))))


def unit_of(estimator):
    return partial(federated.FederatedPowerMethod._checked_unit, estimator)


def fit_of(estimator, width, **public):
    server = federated.FederatedPowerMethod(estimator, CONFIG)
    return partial(server.fit, federated.UnmaskedAggregator([]), n_features=width, **public)


BAD = [
    (unit_of(DPTruncatedSVD(epsilon=math.inf)), "finite 'epsilon'"),
    (unit_of(DPTruncatedSVD(delta=0)), "finite 'epsilon'"),
    (unit_of(DPPCA(1, privacy_unit="group")), "privacy_unit among"),
    *[
        (unit_of(DPTruncatedSVD(privacy_unit=unit)), "privacy_unit among")
        for unit in ("frobenius", "spectral", "mixed")
    ],
    (fit_of(DPRecommender(privacy_unit="interaction"), 12, n_samples=9), "whole users"),
    (fit_of(DPRecommender(delta=0.0), 12), "'delta' above 0"),
    (fit_of(DPTruncatedSVD(n_iter=-1), 12), "n_iter"),
    *[(fit_of(DPTruncatedSVD(1, epsilon=2e-6), width), "all parts") for width in (2, 12)],
    *[
        (unit_of(estimator), "DPTruncatedSVD, a DPPCA or a DPRecommender")
        for estimator in (
            SimpleNamespace(epsilon=1.0), DPIncrementalPCA(2), DPPersonalizedRegressor(2),
            *(DPLowRankFactorizer(privacy_unit=unit) for unit in ("row", "entry")),
        )
    ],
    *[(fit_of(DPTruncatedSVD(), width), "n_features") for width in (1, 0, -3, 2.0, True)],
    *[
        (partial(federated.PowerMethodClient, X, CONFIG, **{name: value}), name)
        for name, value in [
            ("privacy_unit", "frobenius"), ("adjacency", "both"), ("epsilon", math.inf),
            ("delta", 0.0), ("epsilon", -1.0), ("privacy_unit", "spectral"),
            ("privacy_unit", "mixed"),
        ]
    ],
    *[
        (partial(federated.RecommenderClient, X, CONFIG, **{name: value}), name)
        for name, value in [
            ("adjacency", "swap"), ("value_cap", -1.0), ("value_cap", "stars"), ("value_cap", True),
        ]
    ],
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD)
def test_what_has_no_federated_fit_is_refused(call, message):
    refuses(ValueError, message, call)


@pytest.mark.parametrize(
    "verb", ["grant", "release", "accumulate", "choose", "pay", "charge_skipped"]
)
def test_the_server_releases_nothing_without_its_clients(verb):
    """A grant opened by the server alone would be a release of no rows, with a receipt."""
    session = FederatedSession(new_session(), lambda *_: None, CONFIG, 4)
    with pytest.raises(AttributeError, match=verb):
        getattr(session, verb)
