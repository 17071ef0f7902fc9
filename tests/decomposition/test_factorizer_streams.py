"""DPLowRankFactorizer with many releases: exact limits, windows, audits, checkpoints."""

import math
import pickle

import numpy as np
import pytest

from skdp import DPLowRankFactorizer
from skdp.exceptions import PrivacyError
from skdp.privacy.streams.sketches import SketchSource
from skdp.testing import (
    fixed_noise,
    null_release,
    record_transcript,
    seeded_entropy,
    transcript_audit,
)
from tools.outcomes import difference, fitted_attributes

# Most streams here are short, and noise: what is said of that is tested by name.
pytestmark = pytest.mark.filterwarnings("ignore:.*may be noise:skdp.exceptions.PrivacyWarning")
NOT_PRIVATE = pytest.mark.filterwarnings(
    "ignore:.*(no noise|random_state):skdp.exceptions.PrivacyWarning"
)

M, N, T = 12, 9, 8
RNG = np.random.default_rng(0)
STEPS = [RNG.standard_normal((M, 2)) @ RNG.standard_normal((2, N)) for _ in range(T)]
WAYS = {
    "dense sqrt": {},
    "dense tree": {"mechanism": "tree"},
    "dense window": {"window": 3},
    "isometry": {"method": "two_sketch", "sensitivity_mode": "worst_case", "sketch": "isometry",
                 "sketch_size": (9, 12)},
    "gaussian": {"method": "two_sketch", "sensitivity_mode": "oblivious", "sketch_size": (8, 9)},
    "three": {"method": "three_sketch", "sensitivity_mode": "worst_case", "sketch_size": (8, 9),
              "mechanism": "tree"},
}  # fmt: skip


def new(n_components=2, **params):
    return DPLowRankFactorizer(
        n_components, **({"matrix_shape": (M, N), "max_releases": T} | params)
    )


def run(steps, **params):
    model = new(**params)
    for step in steps:
        model.update_matrix(step)
        model.release()
    return model


def product(model):
    return (model.left_ * model.singular_values_) @ model.components_


@NOT_PRIVATE
@pytest.mark.thorough
@pytest.mark.parametrize("way", ["dense sqrt", "dense tree", "dense window", "isometry"])
def test_without_noise_a_release_is_the_best_factorisation(way):
    model = new(9, epsilon=math.inf, **WAYS[way])
    for t, step in enumerate(STEPS, 1):
        model.update_matrix(step / 2)
        i, j = np.indices((M, N)).reshape(2, -1)
        model.update(i, j, step.ravel() / 2)
        model.release()
        window = WAYS[way].get("window") or T
        exact = sum(STEPS[max(0, t - window) : t])
        if way == "isometry":  # a sketch of all columns finds all of the matrix
            assert np.linalg.norm(product(model) - exact) < 0.3 * np.linalg.norm(exact)
        else:
            assert np.allclose(product(model), exact, atol=1e-8)
        assert model.n_releases_ == t


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_a_large_budget_finds_the_matrix(way):
    steps = [50.0 * STEPS[0]] * T
    with seeded_entropy(0):
        model = run(steps, epsilon=20.0, **WAYS[way])
    exact = sum(steps[-WAYS[way].get("window", T) :])
    assert np.linalg.norm(product(model) - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_one_payment_for_all_releases(way):
    with record_transcript() as transcript:
        model = run(STEPS, **WAYS[way])
    assert not transcript.faults
    assert len(model.ledger_) == {"isometry": 2, "gaussian": 2, "three": 3}.get(way, 1)
    assert model.privacy_spent_.epsilon <= 1.0
    assert all("8 releases" in line.mechanism for line in model.ledger_)
    with pytest.raises(PrivacyError, match="released its state"):
        model.update_matrix(STEPS[0])
    with pytest.raises(PrivacyError, match="released its state"):
        model.release()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["dense sqrt", "dense tree", "dense window", "isometry"])
def test_audit_of_a_unit_that_comes_at_many_times(way, monkeypatch):
    place = np.zeros((M, N))
    place[2, 3] = 1.0
    weights = np.r_[0.97, np.full(T - 1, 0.03 / (T - 1))] * (1 - 1e-9)
    zeros = [np.zeros((M, N))] * T
    pair = zeros, [w * place for w in weights]
    if way == "isometry":  # the same sketch for both: those that are known have exact norms
        draw = SketchSource.of
        monkeypatch.setattr(SketchSource, "of", lambda session, _seed=None: draw(session, 5))
    report = transcript_audit(lambda steps: run(steps, **WAYS[way]), pair).check()
    ratio = report.realised_mu / report.claimed_mu
    assert ratio <= 1
    assert ratio > (0.95 if way != "isometry" else 0.6)  # this place is not the sketch's worst


@pytest.mark.parametrize("way", ["dense sqrt", "dense window", "isometry"])
def test_nothing_is_seen_but_what_is_released(way):
    seen = []
    for factor in (1.0, 1e9, 0.0):
        with fixed_noise(1), null_release(run=True):
            steps = [factor * step for step in STEPS]
            seen.append(fitted_attributes(run(steps, **WAYS[way])))
    assert difference(seen[0], seen[1]) is difference(seen[0], seen[2]) is None


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
def test_rows_that_come_once(adjacency):
    rows = 0.1 * STEPS[0]

    def fit(first):
        model = new(privacy_unit="row", adjacency=adjacency, max_releases=3)
        model.partial_fit(np.vstack([first, rows[1:4]])).release()
        model.partial_fit(rows[4:8]).release()
        model.partial_fit(rows[8:]).release()
        return model

    spike = 1e15 * np.eye(N)[:1]
    other = -spike if adjacency == "replace" else 0 * spike
    report = transcript_audit(fit, (spike, other)).check()
    assert 0.95 < report.realised_mu / report.claimed_mu <= 1


@NOT_PRIVATE
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_goes_on_from_a_checkpoint(way, tmp_path):
    whole = run(STEPS, random_state=3, **WAYS[way])
    path = tmp_path / "stream"
    model = new(random_state=3, **WAYS[way]).update_matrix(STEPS[0])
    model.checkpoint(path)
    model.release()
    assert model.n_acknowledged() == 2
    for step in STEPS[1:]:
        model.update_matrix(step)
        model._drop_stream()
        model = DPLowRankFactorizer.restore(path)
        before = fitted_attributes(model)
        model.release()
        model.released()
        assert difference(before, fitted_attributes(model))
    kept = {k: v for k, v in fitted_attributes(model).items() if not k.startswith("_")}
    expected = fitted_attributes(whole)
    for name, value in kept.items():
        assert difference(value, expected[name]) is None, name


def test_rows_seen_survive_a_checkpoint(tmp_path):
    model = new(privacy_unit="row", adjacency="zero_out")
    model.partial_fit(STEPS[0][:5])
    model.checkpoint(tmp_path / "stream")
    model.partial_fit(STEPS[0][5:7])
    model._drop_stream()
    model = DPLowRankFactorizer.restore(tmp_path / "stream")
    with pytest.raises(ValueError, match="7 were added"):
        model.partial_fit(STEPS[0])
    with pytest.raises(ValueError, match="a stream is running"):
        model.fit(STEPS[0])
    model.partial_fit(STEPS[0][7:]).release()


def test_secrets_stay_and_released_models_go():
    model = run(STEPS[:3])
    with pytest.raises(PrivacyError, match="copied or pickled"):
        pickle.dumps(model)
    public = pickle.loads(pickle.dumps(model.released()))
    assert np.array_equal(public.left_, model.left_)
    assert not {"_private", "_state"} & set(vars(public))
    with pytest.raises(PrivacyError):
        public.update_matrix(STEPS[0])
    assert pickle.loads(pickle.dumps(run(STEPS))).n_releases_ == T


def test_servers_are_for_one_release():
    model = new().update_matrix(STEPS[0])
    for call in (model.state_message, model.for_server, lambda: model.merge(b"")):
        with pytest.raises(PrivacyError, match="max_releases=1"):
            call()


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"window": 9}, "window"),
        ({"window": 3, "mechanism": "sqrt"}, "window|mechanism"),
        ({"window": 0}, "window"),
        ({"mechanism": "none"}, "mechanism"),
        ({"max_releases": 0}, "max_releases"),
        ({"method": "two_sketch"}, "sensitivity_mode='oblivious'"),
        ({"method": "two_sketch", "max_releases": 1}, "after it is drawn"),
    ],
)
def test_bad_parameters(params, match):
    with pytest.raises(ValueError, match=match):
        new(**params).update_matrix(STEPS[0])
