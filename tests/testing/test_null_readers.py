"""Whatever reads private rows is a release: scorers, reports, clients, streams, under null release.

The noise is fixed and answers are zeros: over many noise seeds, results on contrasting data are
the same. (Estimators have `check_null_release`.)
"""

import warnings
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LinearRegression

from skdp import DPIncrementalPCA, DPLowRankFactorizer, DPRidge, DPTruncatedSVD, federated
from skdp.decomposition import randomize_row
from skdp.model_selection import DPGridSearchCV, DPRandomizedSearchCV, make_private_scorer
from skdp.recommend import DPRecommender
from skdp.testing import fixed_noise, null_release
from tools.outcomes import difference, fitted_attributes

RNG = np.random.default_rng(0)
X, Y, GROUPS = RNG.standard_normal((40, 4)), RNG.standard_normal(40), np.arange(40) % 8
MODEL = LinearRegression().fit(RNG.standard_normal((30, 4)), RNG.standard_normal(30))  # public
CONFIG = federated.AggregationConfig(4, 1, 1)
SEEDS = range(8)
SAME_SIZE = {
    "ordinary": (X, Y, GROUPS),
    "zeros": (0 * X, 0 * Y, GROUPS),
    "huge": (1e150 * X, 1e150 * Y, GROUPS),
    "tiny": (1e-200 * X, Y, GROUPS),
    "far away": (X + 1e4, Y + 1e4, GROUPS),
}
ANY_SIZE = SAME_SIZE | {
    "one row": (X[:1], Y[:1], GROUPS[:1]),
    "many rows": (np.tile(X, (9, 1)), np.tile(Y, 9), np.arange(360)),
    "one user": (X, Y, 0 * GROUPS),
}


def scored(unit, adjacency):
    def run(X, y, groups):
        scorer = make_private_scorer(
            "squared_error", (0.0, 1.0), epsilon=1.0, privacy_unit=unit, adjacency=adjacency
        )
        return scorer(MODEL, X, y, groups=groups if unit == "group" else None)

    return run


SEARCHES = {"grid": DPGridSearchCV, "random search": partial(DPRandomizedSearchCV, n_iter=3)}


def searched(kind, strategy):
    """Return what a search publishes: its choice, its scores, its model, its receipt."""

    def run(X, y, groups):
        model = DPRidge(alpha=0.1, clip_norm=1.0, target_bounds=(-1.0, 1.0))
        scorer = make_private_scorer("squared_error", (0.0, 1.0))
        search = kind(model, {"alpha": [0.1, 1.0, 9.0]}, scorer, epsilon=4.0, strategy=strategy)
        search.fit(X, y)
        lines = [(line.name, line.noise_scale, line.loss) for line in search.releases_]
        scores = {key: search.cv_results_[key] for key in ("mean_test_score", "rank_test_score")}
        best = fitted_attributes(search.best_estimator_)
        return [search.best_params_, scores, best, lines, search.privacy_spent_]

    return run


def reported(**sketch):
    def run(X, y, groups):
        budget = {"clip_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
        reports = (randomize_row(row, **budget, **sketch) for row in X[:2])
        return [(report.values, report.noise_scale, report.privacy_spent) for report in reports]

    return run


def recorded(fit, clients):
    """Fit over clients and return the requests that they got."""
    requests, sums = [], federated.UnmaskedAggregator([client.respond for client in clients])

    def aggregator(request, size):
        requests.append(bytes(request))
        return sums(request, size)

    with fixed_noise(0):
        fit(aggregator)
    return requests


def answers(client, requests):
    """All that a client says: its words for each request, its lines and its receipt."""
    return [client.respond(request) for request in requests], client.releases_, client.close()


def over_clients(client, rows, estimator):
    """Return what a client says to the requests that a fit of these rows over four sends.

    They are public, and asked for before anything is under null release.
    """
    server = federated.FederatedPowerMethod(estimator, CONFIG)
    parts = [client(part) for part in np.array_split(rows, 4)]
    # a few rows show nothing, and say so
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        requests = recorded(lambda sums: server.fit(sums, n_features=4), parts)
    return lambda X, y, groups: answers(client(X), requests)


power_client = partial(federated.PowerMethodClient, config=CONFIG, epsilon=1.0, delta=1e-6)
recommender_client = partial(federated.RecommenderClient, config=CONFIG, epsilon=8.0)
# By name: what users like is asked for too, however little of it 1,600 rows would show.
FEDERATED = {
    "power method": (power_client, X, DPTruncatedSVD(2, algorithm="power", clip_norm=1.0)),
    "moment": (power_client, X, DPTruncatedSVD(2, algorithm="gram", clip_norm=1.0)),
    "recommender": (
        recommender_client, np.tile(X, (40, 1)), DPRecommender(2, epsilon=8.0, algorithm="gram"),
    ),
}  # fmt: skip


def csr_if_large(rows):
    return sp.csr_array(rows) if rows.max(initial=0) > 9 else rows


def batches(form=np.asarray, **options):
    def run(X, y, groups):
        pca = DPIncrementalPCA(2, **{"clip_norm": 1.0, "max_releases": 3} | options)
        for part in np.array_split(X, 3):
            pca.partial_fit(form(part))
        return fitted_attributes(pca)

    return run


STREAM = {"matrix_shape": (40, 4), "sensitivity_mode": "oblivious", "method": "two_sketch",
          "sketch_size": 3}  # fmt: skip


def updates(X, y, groups):
    model = DPLowRankFactorizer(1, privacy_unit="entry", unit_bound=(-1.0, 1.0), **STREAM)
    model.update([0, 3, 3], [0, 1, 1], np.nan_to_num(X[0, :3])).update_matrix(X)
    return fitted_attributes(model.release())


def state(X, y, groups):
    server = DPLowRankFactorizer(1, **STREAM).for_server(sketch_seed=3)
    return server.update_matrix(X).state_message()


READERS = {
    "scorer, row": (scored("row", "add_remove"), ANY_SIZE),
    "scorer, row, replace": (scored("row", "replace"), SAME_SIZE),
    "scorer, user": (scored("group", "add_remove"), ANY_SIZE),
    "scorer, label": (scored("label", "replace"), SAME_SIZE),
    **{
        f"{name}, {strategy}": (searched(kind, strategy), ANY_SIZE)
        for name, kind in SEARCHES.items()
        for strategy in ("compose", "random_stopping")
    },
    "local report": (reported(), SAME_SIZE),
    "local report of a sketch": (reported(sketch_size=3, sketch_seed=1), SAME_SIZE),
    **{f"client of a {name}": (fit, ANY_SIZE) for name, fit in FEDERATED.items()},
    "batches": (batches(), ANY_SIZE),
    "batches, sparse or not": (batches(csr_if_large), ANY_SIZE),
    "batches, not centred": (batches(center="none"), ANY_SIZE),
    "batches, tree": (batches(mechanism="tree"), ANY_SIZE),
    "batches, learnt clip norm": (batches(clip_norm="auto", epsilon=30.0), ANY_SIZE),
    "updates": (updates, SAME_SIZE),
    "state for a merge": (state, SAME_SIZE),
}


def reader_of(name):
    run, data = READERS[name]
    return (run if callable(run) else over_clients(*run)), data


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize(
    "reader",
    [
        name if name == "scorer, row" else pytest.param(name, marks=pytest.mark.deep)
        for name in READERS
    ],
)
def test_a_reader_of_private_rows_shows_its_noise_alone(reader):
    run, data = reader_of(reader)
    seeds = SEEDS if reader.startswith("scorer") else SEEDS[:2]
    seen = []
    for seed in seeds:
        with fixed_noise(seed), null_release(run=False):
            seen.append(run(*data["ordinary"]))
        for name, item in data.items():
            with fixed_noise(seed), null_release(run=True):
                found = difference(seen[-1], run(*item))
            assert found is None, f"{name} data differ from ordinary data: {found}"
    assert any(difference(seen[0], other) for other in seen[1:]), "nothing shows the noise"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("reader", READERS)
def test_real_answers_do_show(reader):
    """Or the test above could not fail."""
    run, data = reader_of(reader)
    with fixed_noise(0):
        results = [run(*item) for item in data.values()]
    assert any(difference(results[0], other) for other in results[1:])
