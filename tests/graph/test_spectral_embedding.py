"""DPSpectralEmbedding: block models, limits, receipts, errors."""

import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from skdp import DPSpectralEmbedding, DPTruncatedSVD, PrivacyLedger
from skdp._choice import Entries
from skdp.datasets import make_block_graph
from tools.outcomes import assert_refused, messages_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(no noise|random_state):skdp.exceptions.PrivacyWarning"
)
NORMALIZATIONS = ["degree", "laplacian", "none"]


@pytest.fixture(scope="module")
def two_blocks():
    return make_block_graph(600, 2, 60.0, 120.0, random_state=0)


@pytest.fixture(scope="module")
def small():
    return make_block_graph(120, 3, 30.0, 40.0, random_state=1)[0].toarray()


def fit(A, n_components=1, **kwargs):
    return DPSpectralEmbedding(n_components, **{"random_state": 0} | kwargs).fit(A)


def exact(A, n_components=1, **kwargs):
    return fit(A, n_components, epsilon=math.inf, **kwargs)


def agreement(model, labels):
    found = KMeans(labels.max() + 1, n_init=5, random_state=0).fit_predict(model.embedding_)
    return adjusted_rand_score(labels, found)


@pytest.mark.deep
@pytest.mark.parametrize("algorithm", ["power", "one_shot"])
@pytest.mark.parametrize("normalization", ["degree", "laplacian"])
def test_an_embedding_of_noise_says_so(algorithm, normalization):
    """Groups a fifth as strong as what is found, and twice as strong; chance is 1e-6 at most."""
    for gap, epsilon, many in ((10.0, 1.0, True), (100.0, 1.0, False), (10.0, math.inf, False)):
        A, _ = make_block_graph(600, 2, gap, 120.0, random_state=0)
        options = {"algorithm": algorithm, "normalization": normalization}
        said = messages_of(DPSpectralEmbedding(1, epsilon=epsilon, **options).fit, A)
        assert any("learnt nothing" in text for text in said) == many


# -- utility -----------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("normalization", ["degree", "laplacian"])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("seed", range(3))
def test_two_blocks_are_recovered(two_blocks, normalization, adjacency, seed):
    A, labels = two_blocks
    model = fit(A, normalization=normalization, adjacency=adjacency, random_state=seed)
    assert agreement(model, labels) >= 0.97


def test_leading_eigenvectors_as_they_are(two_blocks):
    """Without a normalisation the first component is size, the second one structure."""
    A, labels = two_blocks
    model = fit(A, 2, normalization="none", epsilon=2.0)
    assert adjusted_rand_score(labels, model.embedding_[:, 1] > 0) >= 0.95
    assert not hasattr(model, "degrees_")
    assert model.eigenvalues_ == pytest.approx([120.0, 60.0], rel=0.25)


@pytest.mark.thorough
@pytest.mark.parametrize("normalization", ["degree", "laplacian"])
def test_pure_differential_privacy_of_one_component(normalization):
    A, labels = make_block_graph(400, 2, 60.0, 120.0, random_state=0)
    options = {"algorithm": "power", "delta": 0.0, "epsilon": 8.0, "normalization": normalization}
    models = [fit(A, random_state=seed, **options) for seed in range(3)]  # one start in 30 is lost
    found = [adjusted_rand_score(labels, model.embedding_[:, 0] > 0) for model in models]
    assert np.median(found) >= 0.95
    model = models[0]
    assert {entry.mechanism for entry in model.releases_} == {"laplace"}
    assert model.privacy_spent_.delta == 0.0
    assert math.fsum(entry.loss.value for entry in model.releases_) == pytest.approx(8.0, rel=1e-6)


def test_degrees_are_released(two_blocks):
    A, _ = two_blocks
    true = A.sum(axis=1)
    model = fit(A, epsilon=8.0)
    assert model.degrees_.mean() == pytest.approx(true.mean(), rel=0.02)
    # shrunk to their mean: closer to the truth than the mean alone, at a budget that shows them
    assert np.mean((model.degrees_ - true) ** 2) < true.var()


# -- without noise -----------------------------------------------------------------------------


def leading(M, k):
    values, vectors = np.linalg.eigh(M)
    order = np.argsort(-np.abs(values))[:k]
    vectors = vectors[:, order]
    signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(k)])
    return values[order], vectors * signs


def spiked_graph(n=80, seed=0):
    """A weighted graph whose projected spectrum has gaps, of both signs."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(np.column_stack([np.ones(n), rng.standard_normal((n, 3))]))[0]
    A = (Q * [30.0, 12.0, -8.0, 5.0]) @ Q.T
    A = A - np.diag(np.diag(A))
    return A, {"unit_bound": (float(np.floor(A.min())), float(np.ceil(A.max())))}


@pytest.mark.parametrize("unit", ["edge", "edge_change", "mixed"])
def test_no_noise_gives_eigenvectors(unit):
    A, bounds = spiked_graph()
    options = bounds if unit == "edge" else {}
    model = exact(A, 3, normalization="none", privacy_unit=unit, **options)
    values, vectors = leading(A, 3)
    assert np.allclose(model.eigenvalues_, values, rtol=1e-6)
    assert np.allclose(model.embedding_, vectors, atol=1e-5)


def block_graph(n=100):
    """No gaps to speak of: a block model and its noise."""
    return make_block_graph(n, 2, 20.0, 40.0, random_state=3)[0].toarray(), {}


@pytest.mark.thorough
@pytest.mark.parametrize("make", [spiked_graph, block_graph])
@pytest.mark.parametrize("normalization", ["laplacian", "degree"])
def test_no_noise_gives_eigenvectors_of_the_projected_matrix(normalization, make):
    A, options = make()
    degrees = A.sum(axis=1)
    weight = max(map(abs, options.get("unit_bound", (0.0, 1.0))))
    floored = np.maximum(degrees, max(degrees.mean(), weight) / 4)
    scale = 1 / np.sqrt(floored * np.mean(1 / floored))
    direction = 1 / scale if normalization == "laplacian" else scale * degrees
    direction = direction / np.linalg.norm(direction)
    P = np.eye(len(A)) - np.outer(direction, direction)
    values, vectors = leading(P @ (A * np.outer(scale, scale)) @ P, 2)
    model = exact(A, 2, normalization=normalization, **options)
    assert np.allclose(model.degrees_, degrees)
    assert np.allclose(model.eigenvalues_, values, rtol=1e-6)
    if normalization == "laplacian":  # eigenvectors, each row divided by a public length
        lengths = np.hypot(direction, np.linalg.norm(vectors, axis=1))
        assert np.allclose(model.embedding_, vectors / lengths[:, None], atol=1e-5)


@pytest.mark.deep
@pytest.mark.parametrize("normalization", ["laplacian", "degree"])
def test_many_groups_of_unequal_sizes_and_degrees_are_separated(normalization, rng):
    """Nodes with few edges lie near 0, and small groups far from it: rows need a common length."""
    labels = np.repeat(np.arange(16), rng.integers(10, 90, 16))
    size = np.exp(0.7 * rng.standard_normal(len(labels)))
    size /= size.mean()
    chance = np.where(labels[:, None] == labels, 0.5, 0.01) * np.outer(size, size)
    A = np.triu(rng.random(chance.shape) < chance, 1).astype(float)
    for epsilon in (6.0, math.inf):
        model = DPSpectralEmbedding(15, epsilon=epsilon, normalization=normalization).fit(A)
        found = KMeans(16, n_init=4, random_state=0).fit_predict(model.embedding_)
        assert adjusted_rand_score(labels, found) > 0.8


UNEQUAL = [((500, 100), 0.15, 0.03), ((600, 300, 200, 100), 0.2, 0.03)]
UNEQUAL += [((120, 480), (0.3, 0.02), 0.1)]  # a core: next to degrees there is nothing


def groups_of(sizes, inside, outside):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.broadcast_to(inside, len(sizes))[labels]
    chance = np.where(labels[:, None] == labels, inside, outside)
    return np.triu(rng.random(chance.shape) < chance, 1).astype(float), labels


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::skdp.exceptions.NoSignalWarning")
@pytest.mark.parametrize("case", UNEQUAL)
@pytest.mark.parametrize("epsilon", [math.inf, 3.0, 100.0])
def test_groups_of_unequal_size_are_found(case, epsilon):
    """Larger groups have higher degrees, so degrees tell groups apart: they are not taken out."""
    A, labels = groups_of(*case)
    assert agreement(fit(A, labels.max(), epsilon=epsilon), labels) >= 0.95


def test_only_the_upper_triangle_counts(small):
    noise = np.tril(np.random.default_rng(0).random(small.shape))
    other = exact(np.triu(small, 1) + noise, 2)  # loops and the lower triangle differ
    assert np.array_equal(exact(small, 2).embedding_, other.embedding_)


# -- attributes and receipts -------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_float32_is_kept(small, normalization):
    single = fit(small.astype(np.float32), 2, normalization=normalization)
    double = fit(small, 2, normalization=normalization)
    for name in ("embedding_", "eigenvalues_", "degrees_"):
        if hasattr(double, name):
            assert getattr(single, name).dtype == np.float32
            assert np.array_equal(getattr(single, name), getattr(double, name).astype(np.float32))


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_products_are_as_many_as_were_asked_for(small):
    model = fit(small, 2, algorithm="power", n_iter=3)
    assert [line.name for line in model.releases_] == ["right_product"] * 4 + ["rayleigh_quotient"]
    assert (np.diff(np.abs(model.eigenvalues_)) <= 0).all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("data", [np.zeros((30, 30)), sp.csr_array((30, 30)), np.eye(30)])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_graphs_without_edges_are_fitted(data, normalization, epsilon):
    model = fit(data, 2, normalization=normalization, epsilon=epsilon)
    assert np.isfinite(np.vstack([model.embedding_, model.eigenvalues_])).all()


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"n_components": 30}, "must be below n_nodes=30. Got 30"),
        ({"unit_bound": (0.5, 1.0)}, "low <= 0 <= high"),
        ({"delta": 0.0, "unit_bound": (-1, 1)}, "pure differential privacy"),
        ({"algorithm": "one_shot", "unit_bound": (-1.0, 1.0)}, r"unit_bound=\(0, high\)"),
        ({"algorithm": "one_shot", "epsilon": 0.5}, "larger 'epsilon' or another 'algorithm'"),
        ({}, r"square adjacency matrix.*Got shape \(30, 20\)"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_read(kwargs, match):
    n = 20_000 if "epsilon" in kwargs else 30  # too many pairs to flip
    assert_refused(DPSpectralEmbedding(**kwargs), match, sp.csr_array((n, n if kwargs else 20)))


def test_a_graph_of_networkx_is_refused_with_its_matrix_named():
    class Graph:
        """Has the method by which such a graph is known."""

        def adjacency(self):
            raise AssertionError

    with pytest.raises(TypeError, match=r"pass networkx.to_scipy_sparse_array\(graph\)"):
        DPSpectralEmbedding().fit(Graph())


# -- contracts ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def messages():
    """Poisson counts of messages, mean 50 inside a group and 30 between groups."""
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 2
    means = np.where(labels[:, None] == labels, 50.0, 30.0)
    return np.triu(rng.poisson(means), 1).astype(float), labels


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")  # bounds
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_weights_without_bounds_of_which_one_changes_by_one(messages, normalization):
    """One message more or less; bounds of weights would cut them or ask for 80 times the noise."""
    A, labels = messages
    k = 2 if normalization == "none" else 1
    model = fit(A, k, normalization=normalization, privacy_unit="edge_change")
    assert adjusted_rand_score(labels, model.embedding_[:, -1] > 0) == 1.0
    assert model.privacy_spent_.unit == "edge_change"
    bounded = fit(A, k, normalization=normalization, unit_bound=(0.0, 80.0), algorithm="power")
    ratio = bounded.releases_[0].sensitivity / model.releases_[0].sensitivity
    assert ratio == pytest.approx(80.0, rel=1e-3)


def test_a_contract_scales_the_noise(messages):
    A, _ = messages
    units = {"mixed": 1.0, "edge_change": math.sqrt(2)}  # two rows, each moved by one
    for s, (unit, change) in itertools.product((1.0, 4.0), units.items()):
        line = fit(A, privacy_unit=unit, unit_bound=s).releases_[0]
        assert line.sensitivity == pytest.approx(s * change / math.sqrt(len(A)), rel=1e-3)


# -- one shot ----------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_many_groups_are_found_in_one_release(normalization):
    """Where sixteen products show nothing; n_components is the number of groups."""
    A, labels = groups_of([100] * 6, 0.25, 0.02)
    model = fit(A, 6, epsilon=2.0, normalization=normalization)
    assert agreement(model, labels) >= 0.85
    assert model.algorithm_reason_.startswith("one_shot: detection limit")
    (line,) = model.releases_
    assert (line.name, line.mechanism) == ("randomized_entries", "randomised response")
    assert tuple(model.privacy_spent_.losses[0]) == ("pure", 2.0)
    assert (model.privacy_spent_.epsilon, model.privacy_spent_.delta) == (2.0, 0.0)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # which may show nothing
        products = fit(A, 6, epsilon=2.0, normalization=normalization, algorithm="power")
    assert agreement(products, labels) < 0.3


@pytest.mark.deep
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_large_budget_shows_the_graph_itself(normalization):
    A, _ = groups_of([67, 67, 66], 0.5, 0.1)
    options = {"normalization": normalization, "algorithm": "one_shot"}
    model, truth = fit(A, 2, epsilon=60.0, **options), exact(A, 2, **options)
    for other in (truth, exact(A, 2, normalization=normalization, algorithm="power")):
        # That no weight is rounded is released with noise.
        assert np.allclose(model.eigenvalues_, other.eigenvalues_, rtol=1e-4)
        assert np.allclose(np.abs(model.embedding_), np.abs(other.embedding_), atol=1e-3)


@pytest.mark.deep
def test_weights_are_not_rounded_where_that_is_most_of_the_noise():
    """The first release says so; noise is added to small graphs, and to products with others."""
    A, labels = make_block_graph(400, 3, 60.0, 100.0, random_state=0)
    for low, high, line in ((0.2, 0.6, "full_matrix"), (0.0, 1.0, "randomized_entries")):
        X = low * (1 - np.eye(400)) + (high - low) * A.toarray()
        svd = DPTruncatedSVD(3, privacy_unit="edge", epsilon=40.0, random_state=0).fit(X)
        kept = np.linalg.norm(X @ svd.components_.T) ** 2
        assert kept > 0.99 * (np.linalg.eigvalsh(X)[-3:] ** 2).sum()
        model = fit(X, 2, epsilon=40.0)
        assert agreement(model, labels) > 0.95
        for fitted in (svd, model):
            assert [released.name for released in fitted.releases_] == ["rounding_variance", line]
            assert {released.loss.kind for released in fitted.releases_} == {"pure"}
            assert fitted.algorithm_reason_.startswith("one_shot")


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("model", [DPSpectralEmbedding(1), DPTruncatedSVD(1, privacy_unit="edge")])
def test_a_pure_fit_decides_after_a_release_without_a_delta(model):
    model = clone(model).set_params(delta=0, epsilon=20.0).fit(np.full((200, 200), 0.5))
    assert model.releases_[0].name == "rounding_variance" and model.algorithm_reason_.startswith(
        "power"
    )
    losses = model.privacy_spent_.losses
    assert {loss.kind for loss in losses} == {"pure"} and model.privacy_spent_.delta == 0
    assert math.fsum(loss.value for loss in losses) == pytest.approx(20.0)


def test_the_route_is_chosen_from_public_numbers():
    assert DPSpectralEmbedding(1)._route(20_000)[0] == "power"  # 1e7 flips would not do
    assert DPSpectralEmbedding(1)._route(200)[0] == "one_shot"
    assert {DPSpectralEmbedding(1)._route(n)[0] for n in (600, 1500)} == {"power"}
    # Next to the noise of the edges, which all products share, that of few flips is no loss; but
    # rounding weights to 0 and 1 may be, which no budget takes away.
    for epsilon in (3.0, 1000.0):
        model = DPSpectralEmbedding(2, epsilon=epsilon)
        assert model._route(3000)[0] == "auto"
        assert model._route(3000, Entries(0.0, 0.05))[0] == "one_shot"
        assert model._route(3000, Entries(0.04, 0.05))[0] == "power"
        with PrivacyLedger(2000.0, 1e-3):  # which knows the kind of a budget
            assert model._route(3000)[0] == "one_shot"
    assert DPSpectralEmbedding(2, unit_bound=(-1, 1))._route(200)[0] == "power"
    # Signed weights are not rounded, so there is nothing to release before the choice.
    for n, route in ((600, "one_shot"), (20_000, "power")):
        signed = DPSpectralEmbedding(1, unit_bound=(-1, 1), epsilon=5.0)
        assert signed._route(n)[0] == route
    plan = DPSpectralEmbedding(2, epsilon=2.0).plan(300, signal=60.0)
    assert [line.name for line in plan.releases] == ["randomized_entries"]
    assert 0.0 <= plan.error < 0.2
