"""Streams: exact sums, the law of correlated noise, sensitivities by search, and refusals."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.gate.session import Grant
from skdp.privacy.noise.words import make_source
from skdp.privacy.streams.checkpoints import StreamGroup
from skdp.privacy.streams.continual import dyadic_cover, paid_stream, stream_schedule
from skdp.testing import record_transcript, seeded_entropy, transcript_audit
from skdp.testing._transcripts import replaced
from tools.gate import new_session
from tools.outcomes import refuses

SIX = 6.0
KINDS = {"sqrt": ("sqrt", None), "tree": ("tree", None), "window": ("tree", 5)}


def new_stream(kind="tree", horizon=23, shape=(3,), session=None, l2=1.0, share=1.0, **options):
    mechanism, window = KINDS.get(kind, (kind, None))
    bound = Bound("sums", shape, l2, slack=0.0)
    session = new_session() if session is None else session
    return paid_stream(
        session, bound, share, horizon, mechanism=mechanism, window=window, **options
    )


def seeded_session(seed):
    return new_session(source=make_source(seed, "test"))


def answer_of(x):
    return lambda step: np.rint(np.asarray(x) / step).astype(np.int64) if step else np.asarray(x)


def no_noise():
    return replaced(Grant, "draw", lambda _: lambda grant, *_: np.zeros(grant.bound.shape, int))


def window_sums(X, window):
    return [X[max(0, t - (window or t)) : t].sum(axis=0) for t in range(1, len(X) + 1)]


# -- exactness --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_releases_are_exact_sums_without_noise(kind, epsilon):
    X = np.random.default_rng(0).integers(-(2**40), 2**40, (23, 3))
    stream = new_stream(kind, session=new_session(epsilon))
    unit = stream.step or 1.0
    with no_noise():
        for t, expected in enumerate(window_sums(X, KINDS[kind][1]), 1):
            x = X[t - 1]
            for part in (x // 2, x - x // 2):
                stream.add(lambda step, part=part: part if step else part.astype(float))
            value, scale = stream.open()
            assert np.allclose(value, expected * unit, rtol=1e-11, atol=1e-11 * 2**45 * unit)
            assert (scale == 0.0) is (epsilon == math.inf)


# -- sensitivity by force ---------------------------------------------------------------------


def encoding(kind, horizon):
    """The matrix C of a stream, column by column, from its releases at the gate."""
    columns = []
    for j in range(horizon):
        stream = new_stream(kind, horizon, shape=(1,))
        with record_transcript() as transcript:
            for t in range(horizon):
                stream.add(lambda step, t=t, j=j: np.array([int(t == j)]))
                stream.open()
        columns.append([opening.exact[0] for opening in transcript])
    return np.array(columns, float).T, stream.schedule


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("horizon", [5, 8, 13])
def test_no_unit_moves_the_sums_by_more_than_the_factor(kind, horizon):
    C, schedule = encoding(kind, horizon)
    norms = np.linalg.norm(C, axis=0)
    assert norms.max() <= schedule.factor
    assert norms.max() >= (1 - 1e-9) * schedule.factor  # attained
    rng = np.random.default_rng(horizon)
    for _ in range(2000):  # vectors D_j of random directions whose norms sum to one
        D = rng.standard_normal((horizon, 2)) * rng.exponential(size=(horizon, 1)) ** 4
        D /= np.linalg.norm(D, axis=1).sum()
        assert np.linalg.norm(C @ D) <= schedule.factor * (1 + 1e-12)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_sums_wrap_and_change_by_the_same(kind, shape):
    """Sums beyond 2**63 are meaningless, but neighbours still differ by the bound of the proof."""
    change = []
    for extra in (0, 1):
        stream = new_stream(kind, 8, shape=shape)
        with record_transcript() as transcript:
            for t in range(8):
                stream.add(
                    lambda step, t=t, e=extra: np.full(shape, 2**62 + 12345 * t + (t == 2) * e)
                )
                stream.open()
        change.append(np.array([o.exact.reshape(-1)[0] for o in transcript]).view(np.uint64))
    moved = (change[1] - change[0]).view(np.int64).astype(float)
    assert np.linalg.norm(moved) <= stream.schedule.factor


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("kind", KINDS)
def test_transcript_audit_of_one_unit_at_many_times(kind, scale):
    """A unit with most of its contributions early, and some at every other time."""
    horizon = 32
    weights = np.r_[0.97, np.full(horizon - 1, 0.03 / (horizon - 1))]
    base = np.random.default_rng(0).standard_normal((horizon, 4)) * 100 * scale
    unit = np.array([0.5, 0.5, 0.5, -0.5]) * scale

    # contributions are rounded as integers of the stream, so that the bound is exact
    def exact(with_unit):
        stream = new_stream(kind, horizon, shape=(4,), l2=scale)
        for x, w in zip(base, weights, strict=True):

            def answer(step, x=x, w=w):
                return np.rint(x / step).astype(np.int64) + with_unit * np.trunc(
                    w * unit / step
                ).astype(np.int64)

            stream.add(answer)
            stream.open()
        return stream

    report = transcript_audit(exact, (0, 1)).check()
    assert 0.95 <= report.realised_mu / report.claimed_mu <= 1
    assert len(report.steps) == 1


def test_rounding_of_each_touched_step_is_paid_for():
    bound = Bound("sums", (4,), 1.0, slack=1000.0, cross=10.0)
    grants = []
    group = StreamGroup.paid_sketches(new_session(), [bound], [1.0], 20, mechanism="tree")
    for touches in (1, 20, None):  # by default all
        stream = paid_stream(new_session(), bound, 1.0, 20, mechanism="tree", touches=touches)
        touches = touches or 20
        change = bound.l2 / stream.step + touches * (10.0 / math.sqrt(stream.step) + 1000.0)
        mu = new_session().budget.mu
        assert stream.schedule.factor * change <= mu * stream._grant.noise_scale / stream.step
        grants.append(stream.step)
    assert grants[1] > grants[0]
    assert grants[1] == grants[2] == group.streams["sums"].step
    assert group.session.draws == stream._grant._session.draws


# -- the law of the noise ---------------------------------------------------------------------


def noises(kind, horizon, size):
    """Noise of all releases of zeros: (horizon, size), and the answers' own scales."""
    stream = new_stream(kind, horizon, shape=(size,))
    out, scales = [], []
    for _ in range(horizon):
        value, scale = stream.open()
        out.append(value)
        scales.append(scale)
    return np.array(out), np.array(scales), stream


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_releases_are_correlated_as_theory_says(kind):
    size, horizon = 20_000, 23
    with seeded_entropy(0):
        noise, scales, stream = noises(kind, horizon, size)
    schedule, node = stream.schedule, stream._grant.noise_scale
    expected = np.empty((horizon, horizon))
    for s, t in itertools.product(range(horizon), repeat=2):
        if kind == "sqrt":
            m = min(s, t) + 1
            first, second = (schedule.weights[u + 1 - m : u + 1] for u in (s, t))
            expected[s, t] = first @ second
        else:
            start = [max(0, u + 1 - (schedule.window or u + 1)) for u in (s, t)]
            covers = [
                set(dyadic_cover(a, u + 1, schedule.levels))
                for a, u in zip(start, (s, t), strict=True)
            ]
            expected[s, t] = len(covers[0] & covers[1])
    np.testing.assert_allclose(scales, node * np.sqrt(np.diag(expected)))  # as each answer says
    assert stats.kstest(noise[-1] / scales[-1], "norm").pvalue > 1e-9
    seen = noise @ noise.T / size / node**2
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / size)
    assert (np.abs(seen - expected) / spread).max() < SIX
    if kind == "window":
        assert (expected == 0).any() and (expected - np.diag(np.diag(expected)) > 0).any()


def test_streams_differ_and_seeded_ones_repeat():
    assert not np.equal(*([noises("tree", 3, 4)[0] for _ in range(2)])).any()
    seeded = []
    for _ in range(2):
        stream = new_stream("tree", 4, session=seeded_session(5))
        seeded.append([stream.open().value for _ in range(4)])
    assert np.array_equal(*seeded)
    assert len(np.unique(seeded[0])) == 12  # each node has noise of its own, the last one too


@pytest.mark.parametrize("kind", KINDS)
def test_each_sum_gets_noise_once_and_no_more_than_was_counted(kind):
    """The error of the sampler is paid for each draw."""
    drawn, session = [], new_session()

    def make(original):
        return lambda grant, *node: drawn.append(node) or original(grant, *node)

    stream = new_stream(kind, session=session)
    with replaced(Grant, "draw", make):
        for _ in range(23):
            first = stream.open()
            assert np.array_equal(stream.answer().value, first.value)  # the same bits again
    assert len(drawn) == len(set(drawn))
    assert 3 * len(drawn) <= session.draws <= 6 * len(drawn)
    if kind == "tree":
        assert len(drawn) == 23  # left children only
    if kind == "window":
        assert set(drawn) == {(lv, i) for lv in range(3) for i in range(23 >> lv)}


@pytest.mark.thorough
def test_tree_state_is_logarithmic():
    stream = new_stream("tree", 4096, shape=(10,))
    for _ in range(4095):
        stream.open()
    assert stream.state_bytes <= 8 * 10 * (2 * 13 + 1)
    stream = new_stream("window", 4096, shape=(10,))
    for _ in range(1000):
        stream.open()
    assert stream.state_bytes <= 8 * 10 * (2 * 5 + 3 + 1)


# -- paying, and refusals ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_ledger_line_pays_for_the_horizon(kind):
    session = new_session()
    stream = new_stream(kind, session=session, share=0.25, l2=3.0)
    (line,) = session.ledger
    assert line.loss.value == pytest.approx(session.budget.mu / 2)
    assert line.sensitivity / line.noise_scale == pytest.approx(line.loss.value)
    assert "23 releases" in line.mechanism
    for _ in range(23):
        stream.open()
    assert session.ledger == (line,)
    assert session.spent().mu == pytest.approx(session.budget.mu / 2)
    refuses(BudgetExceededError, None, new_stream, kind, session=session, share=0.8)


def test_no_stream_beyond_the_budget():
    session = new_session()
    session.charge_skipped(1.0)
    refuses(BudgetExceededError, None, new_stream, session=session)
    with pytest.raises(BudgetExceededError, match="more noise"):  # all releases' draws are counted
        new_stream("tree", 2**30, shape=(2**7,))
    refuses(ValueError, "delta > 0", new_stream, session=new_session(delta=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_before_the_first_and_after_the_last_release(kind):
    stream = new_stream(kind, 5)
    refuses(PrivacyError, "nothing was released", stream.answer)
    last = [stream.open() for _ in range(5)][-1]
    refuses(PrivacyError, "all 5 releases", stream.open)
    refuses(PrivacyError, "never be released", stream.add, answer_of(np.zeros(3)))
    assert np.array_equal(stream.answer().value, last.value)


def test_a_failing_read_changes_nothing():
    def broken(step):
        raise RuntimeError("bad data")

    streams = []
    for fails in (False, True):
        stream = new_stream(session=seeded_session(1))
        stream.add(answer_of([1.0, 2.0, 3.0]))
        if fails:
            refuses(PrivacyError, r"not shown, .* shows the error\.$", stream.add, broken)
        streams.append(stream.open().value)
    assert np.array_equal(*streams)


def test_an_interrupted_close_stops_the_stream(monkeypatch):
    stream = new_stream("sqrt")
    stream.open()

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(stream._grant, "nothing", interrupted)
    refuses(KeyboardInterrupt, None, stream.open)
    monkeypatch.undo()
    refuses(PrivacyError, "interrupted", stream.open)


def test_wrong_answers_are_refused():
    stream = new_stream()
    refuses(PrivacyError, "does not match", stream.add, lambda step: np.zeros(4, np.int64))
    refuses(PrivacyError, "does not match", stream.add, lambda step: np.zeros(3))
    larger = Bounded(Bound("sums", (3,), 2.0, slack=0.0), answer_of(np.zeros(3)))
    refuses(PrivacyError, "not what its stream was paid for", stream.add, larger)


def test_a_group_advances_as_one():
    session = new_session()
    bounds = {name: Bound(name, (2,), 1.0, slack=0.0) for name in "ab"}
    group = StreamGroup.paid(session, bounds, {"a": 0.5, "b": 0.5}, 4, mechanism="tree")

    def broken(step):
        raise RuntimeError("bad data")

    group.add({"a": answer_of([1.0, 1.0])})
    refuses(RuntimeError, None, group.advance, {"a": answer_of([1.0, 1.0]), "b": broken})
    assert (group.steps, group.acts) == (0, 1)
    assert not group.streams["a"].state()["memory"]["noised"]
    with no_noise():
        answers = group.advance({"b": answer_of([2.0, 2.0])})
    assert np.allclose(answers["a"].value, 1.0, atol=1e-6)
    assert np.allclose(answers["b"].value, 2.0, atol=1e-6)
    assert (group.steps, group.acts, group.left) == (1, 2, 3)


# -- schedules of streams: decoding inverts encoding, with the noise of the theory -----------------


@pytest.mark.parametrize("horizon", [1, 2, 3, 7, 64, 1000, 4096])
def test_square_root_decodes_what_it_encodes(horizon):
    schedule = stream_schedule(1, horizon, "sqrt")
    product = np.convolve(schedule.coefficients, schedule.weights)[:horizon]
    assert np.allclose(product, 1.0, atol=1e-12)


def rms(schedule):
    factors = [schedule.factor * schedule.noise_factor(t) for t in range(1, schedule.horizon + 1)]
    return math.sqrt(np.mean(np.square(factors)))


def test_noise_factors_at_4096_releases():
    assert rms(stream_schedule(1, 4096, "sqrt")) <= 3.7
    assert rms(stream_schedule(1, 4096, "tree")) <= 9.0


@pytest.mark.parametrize("horizon", [2, 16, 256, 2000])
def test_integer_coefficients_cost_less_than_a_percent(horizon):
    j = np.arange(1, horizon)
    c = np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j)))
    ideal = np.linalg.norm(c) * math.sqrt(np.mean(np.cumsum(c**2)))
    assert rms(stream_schedule(1, horizon, "sqrt")) <= 1.01 * ideal


def test_cover_is_a_partition_into_few_nodes():
    for start, stop, levels in itertools.product(range(40), range(1, 70), (3, 64)):
        nodes = list(dyadic_cover(start, stop, levels))
        steps = [s for lv, i in nodes for s in range(i << lv, (i + 1) << lv)]
        assert steps == list(range(start, stop))
        assert all(level < levels for level, _ in nodes)
        if levels == 64 and start == 0:
            assert len(nodes) == stop.bit_count()


def test_auto_looks_at_public_sizes():
    assert stream_schedule(1000, 100).mechanism == "sqrt"
    assert stream_schedule(1000, 100, window=7).mechanism == "tree"
    assert stream_schedule(40_000, 1000).mechanism == "tree"
    assert stream_schedule(1, 10**6).mechanism == "tree"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *[({"horizon": value}, "horizon") for value in (0, True, 2.0, 2**60)],
        ({"mechanism": "toeplitz"}, "mechanism"),
        ({"window": 0}, "window"),
        ({"window": 9}, "window"),
        ({"window": 2, "mechanism": "sqrt"}, "no windows"),
    ],
)
def test_bad_plans(options, match):
    refuses(ValueError, match, stream_schedule, **{"size": 3, "horizon": 8} | options)


def test_a_column_is_no_longer_than_its_float():
    """The squares of the integers of a column are added exactly here, and in floats there."""
    for horizon in range(1, 200):
        schedule = stream_schedule(1, horizon, "sqrt")
        exact = sum(int(c) ** 2 for c in schedule.coefficients)
        assert exact <= Fraction(schedule.factor) ** 2 <= exact * (1 + Fraction(1, 10**11))
