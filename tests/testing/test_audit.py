"""The transcript and the audits: exact where they can be, honest where they estimate."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import beta
from sklearn.decomposition import PCA

from skdp import DPPCA, DPTruncatedSVD
from skdp.privacy.gate import session as gate
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.noise.words import make_source
from skdp.testing import (
    AuditReport,
    Transcript,
    audit,
    distribution_free_mu,
    epsilon_lower_bound,
    gaussian_mu,
    record_transcript,
    runs_needed,
    seeded_entropy,
    transcript_audit,
)
from tools.calibration import calibration, check_calibration
from tools.data import null_release_data
from tools.gate import new_session
from tools.outcomes import refuses
from tools.pairs import worst_case_pair

# Tiny fits show little; whether a fit says so is tested where the estimators are.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


def session(epsilon=1.0, delta=1e-6, pure=0.0, seed=None):
    return new_session(epsilon, delta, pure, source=make_source(seed))


def integers(value, l2=1.0, name="toy", **kwargs):
    value = np.asarray(value, float)
    bound = Bound(name, value.shape, l2, **kwargs)

    def answer(step):
        return np.asarray(np.rint(value / step), np.int64) if step else value

    return Bounded(bound, answer)


class Result:
    def __init__(self, session):
        self.privacy_spent_ = session.spent()
        self.releases_ = session.ledger


def adaptive(data, sensitivity=1.0):
    """Two releases; the second depends on the sign of the first."""
    s = session()
    first = s.release(integers(data[:1], 1.0, "first"), 0.5).value
    column = data[1:] if first[0] > 0 else 3 * data[1:]
    s.release(integers(column, 1.0 if first[0] > 0 else 3.0 / sensitivity, "second"), 0.5)
    return Result(s)


def laplace(data, factor=1.0):
    s = session(delta=0.0)
    s.release(integers(data, l1=factor * float(len(data))), 0.4)
    s.release(integers(data, l1=factor * float(len(data))), 0.6)
    return Result(s)


def choosing(data, factor=1.0):
    s = session(epsilon=2.0, pure=1.0)
    s.choose(integers(data, linf=2.0 * factor, name="choice"), 1.0)
    s.release(integers(data, math.sqrt(len(data))), 1.0)
    return Result(s)


# -- the transcript --------------------------------------------------------------------------------


def test_accumulators_and_exact_answers():
    with record_transcript() as transcript:
        s = session()
        accumulator = s.accumulate(Bound("sum", (2,), 1.0, slack=2.0), 1.0)
        for part in (np.ones(2), 2 * np.ones(2)):
            accumulator.add(integers(part).answer)
        accumulator.open()
        session(np.inf).release(integers(np.ones(3)), 1.0)
    first, second = transcript
    assert first.n_reads == 2 and not transcript.faults
    assert np.allclose(first.exact * first.step, 3.0)
    assert np.array_equal(second.value, np.ones(3)) and second.step == 0.0


def test_faults_are_seen():
    with record_transcript() as transcript:
        s = session()
        bounded = integers(np.ones(2))
        grant, twice = (s.grant(bounded.bound, 0.5) for _ in range(2))
        grant.open(bounded.answer)
        s._read(bounded.answer, grant)
        unpaid = gate.Grant(s, bounded.bound, "gaussian", 1.0, 1.0)
        s._read(bounded.answer, unpaid)
        s._read(bounded.answer, twice)
        twice.open(bounded.answer)
    words = ("after it was opened", "before it was paid", "read 2 times for one opening")
    assert all(map(str.__contains__, transcript.faults, words)) and len(transcript.faults) == 3


# -- shifts ----------------------------------------------------------------------------------------


def test_neighbour_is_evaluated_at_the_released_answers():
    """Without the replay the second step of the neighbour may be another query altogether."""
    pair = np.array([0.0, 100.0]), np.array([0.0, 101.0])
    with seeded_entropy(0):
        for _ in range(20):
            report = transcript_audit(adaptive, pair).check()
            assert report.ratio == pytest.approx(1.0, abs=1e-6)
    with seeded_entropy(0):  # one of the two ways claims too little
        reports = [transcript_audit(lambda d: adaptive(d, 1.5), pair) for _ in range(30)]
    wrong = [report for report in reports if report.ratio > 1 + 1e-9]
    assert 3 < len(wrong) < 27
    refuses(AssertionError, "more than the receipt", wrong[0].check)


def test_pure_and_range_losses():
    one, two = np.zeros(4), np.ones(4)
    report = transcript_audit(laplace, (one, two)).check()
    assert [step.kind for step in report.steps] == ["pure", "pure"]
    assert report.ratio == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(AssertionError, match="more than the receipt"):
        transcript_audit(lambda d: laplace(d, 0.9), (one, two)).check()
    far = np.array([1.0, 1.0, -1.0, -1.0])
    report = transcript_audit(choosing, (one, far)).check()
    assert [step.kind for step in report.steps] == ["range", "gaussian"]
    assert report.steps[0].ratio == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(AssertionError, match="more than the receipt"):
        transcript_audit(lambda d: choosing(d, 0.9), (one, far)).check()


def test_large_sums_in_53_bits_are_no_faults():
    def large(data):
        s = session()
        s.release(integers(data), 1.0)
        return Result(s)

    data = np.geomspace(1e5, 4e6, 50)
    assert transcript_audit(large, (data, data)).check().ratio == 0.0

    def exact(data):
        session(np.inf).release(integers(data), 1.0)

    assert transcript_audit(exact, (data, 2 * data)).steps[0].realised == 0.0  # not measured


def test_a_fit_that_bypasses_the_gate_does_not_pass():
    report = transcript_audit(PCA(1), (np.eye(3), np.eye(4, 3)))
    refuses(AssertionError, "nothing passed the gate", report.check)
    refuses(ValueError, "'n_runs' must be an int of at least 2", audit, DPPCA(1), (1, 2), 1)


def test_more_releases_on_the_neighbour_are_a_fault():
    def counting(data):
        s = session()
        for _ in range(int(data[0])):
            s.release(integers(np.zeros(1)), 0.1)
        return Result(s)

    with pytest.raises(AssertionError, match="sequence of releases"):
        transcript_audit(counting, (np.array([2.0]), np.array([3.0])))
    with pytest.raises(AssertionError, match="3 releases, 2 on the neighbour"):
        transcript_audit(counting, (np.array([3.0]), np.array([2.0]))).check()

    def reading(data):
        s, bounded = session(), integers(np.zeros(1))
        grant = s.grant(bounded.bound, 0.1)
        for _ in range(int(data[0])):
            s._read(bounded.answer, grant)
        grant.open(bounded.answer)

    for pair in itertools.permutations((np.zeros(1), np.ones(1))):
        refuses(AssertionError, "read 2 times", transcript_audit(reading, pair).check)


def test_worst_case_pair_needs_a_known_unit():
    odd = DPPCA(privacy_unit="odd")
    assert len(worst_case_pair(DPPCA(clip_norm=1.0))) == 2
    from tools.pairs import CANDIDATES, candidate_pairs, register_pairs

    row = CANDIDATES["row"]
    try:
        register_pairs(DPPCA)(lambda estimator: iter([("mine", 1, 2)]))
        assert list(candidate_pairs(DPPCA())) == [("mine", 1, 2)]
    finally:
        del CANDIDATES[DPPCA]
    assert CANDIDATES["row"] is row
    for missing in (candidate_pairs, null_release_data):
        refuses(ValueError, "odd", missing, odd)


# -- residuals -------------------------------------------------------------------------------------


def releases(scale=1.0, reuse=False, column=None, symmetric=True, n=3, d=12):
    """Record fits whose noise is wrong in one way."""
    kept = []

    def draw(self):
        noise = original(self)
        if reuse:
            kept.append(noise)
            noise = kept[0]
        if column is not None:
            noise = noise * (np.arange(d) == column)
        return np.rint(noise * scale).astype(np.int64)

    original = gate.Grant.draw
    with pytest.MonkeyPatch.context() as mp, seeded_entropy(1), record_transcript() as transcript:
        mp.setattr(gate.Grant, "draw", draw)
        s = session()
        for _ in range(n):
            s.release(integers(np.zeros((d, d)), symmetric=symmetric), 1 / n)
    return transcript


@pytest.mark.parametrize("symmetric", [True, False])
def test_calibration_of_right_noise(symmetric):
    report = calibration(releases(symmetric=symmetric)).check()
    assert report.n_values == 3 * (78 if symmetric else 144)
    assert report.pvalue > 1e-3


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        ({"scale": 2**-0.5}, "scale"),
        ({"scale": 1.5}, "scale"),
        ({"reuse": True}, "against"),
        ({"column": 0}, "scale"),
        ({"column": 3, "symmetric": False}, "column"),
    ],
)
def test_calibration_finds(bug, found):
    report = calibration(releases(**bug))
    assert min(p for name, p in report.pvalues.items() if found in name) < 1e-9
    refuses(AssertionError, "not as claimed", report.check)


def test_copied_triangles_are_found():
    """A symmetric matrix with one triangle copied has twice the variance off the diagonal."""

    def finish(self, total):
        answer = original(self, total)
        upper = np.triu(total * self.step)
        return answer._replace(value=upper + np.triu(upper, 1).T)

    original = gate.Grant.finish
    with pytest.MonkeyPatch.context() as mp:
        mp.setattr(gate.Grant, "finish", finish)
        transcript = releases(d=24)
    report = calibration(transcript)
    assert report.pvalues["diagonal of toy[0]"] > 1e-4
    refuses(AssertionError, "scale", report.check)


def test_laplace_noise_is_calibrated_too():
    with seeded_entropy(2):
        check_calibration(laplace, np.zeros(200), n_fits=3)


def test_repeated_short_values():
    with seeded_entropy(0), record_transcript() as transcript:
        session().release(integers(np.zeros(())), 1.0)
    twice = Transcript(transcript.openings * 2)
    assert calibration(twice).pvalues["1 repeated values"] < 1e-8
    assert not any("repeated" in name for name in calibration(transcript).pvalues)


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_statistical_audit_is_silent_on_right_code_and_tight():
    pca = DPPCA(n_components=1, clip_norm=1.0, epsilon=4.8866)
    with seeded_entropy(1):
        report = audit(pca, worst_case_pair(pca), 400).check()
    assert report.claimed_mu == pytest.approx(1.0, abs=1e-4)
    assert abs(report.mu_hat - 1) < 6 * math.sqrt(2 / 400 + 1 / 1600)
    assert report.distribution_free_bound < report.gaussian_bound < report.mu_hat
    assert -ndtri(1 - report.confidence) == pytest.approx(3.09, abs=0.01)


@pytest.mark.thorough
def test_statistical_audit_of_pure_noise():
    with seeded_entropy(4):
        report = audit(laplace, (np.zeros(1), np.ones(1)), 400).check()
    assert math.isnan(report.claimed_mu)
    assert 0.1 < report.epsilon_bound <= 1.0

    with seeded_entropy(4), pytest.raises(AssertionError, match="less private"):
        audit(lambda data: laplace(data, 0.2), (np.zeros(1), np.ones(1)), 400).check()


@pytest.mark.thorough
def test_statistical_audit_of_a_choice():
    with seeded_entropy(5):
        report = audit(choosing, (np.zeros(4), np.array([1.0, 1.0, -1.0, -1.0])), 200)
    assert math.isnan(report.claimed_mu) and not report.flagged


@pytest.mark.thorough
def test_statistical_audit_of_flipped_cells():
    one, options = np.eye(2), {"privacy_unit": "entry", "algorithm": "one_shot", "delta": 0}
    svd = DPTruncatedSVD(1, unit_bound=(0, 1), epsilon=3.0, **options)
    with seeded_entropy(6):
        report = audit(svd, (one, one + [[0, 1], [0, 0]]), 60).check()
    assert math.isnan(report.claimed_mu) and 0.5 < report.epsilon_bound <= 3.0


# -- bounds of the privacy parameter from many runs ------------------------------------------------


@pytest.mark.parametrize("bound", ["gaussian_bound", "distribution_free_bound", "epsilon_bound"])
def test_each_bound_says_alone_that_a_claim_is_exceeded(bound):
    claimed = dict.fromkeys(AuditReport.__annotations__, 1.0)
    assert not AuditReport(**claimed).flagged and AuditReport(**claimed | {bound: 1.1}).flagged


@pytest.mark.deep
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_bounds_hold_on_gaussian_scores(mu, rng):
    """400 audits at confidence .99: at most 4 + 6 sqrt(4) = 16 may exceed the truth."""
    over = np.zeros(2)
    for _ in range(400):
        low, high = rng.standard_normal(250), rng.standard_normal(250) + mu
        over += gaussian_mu(low, high, 0.01)[1] > mu, distribution_free_mu(low, high, 0.01) > mu
    assert np.all(over <= 16)


@pytest.mark.deep
@pytest.mark.parametrize("law", ["cauchy", "ties", "constant"])
def test_bounds_are_silent_on_equal_laws(law, rng):
    """On equal distributions the truth is 0, whatever the law: nothing may be certified."""
    over = np.zeros(2)
    for _ in range(300):
        pair = rng.standard_cauchy((2, 300))
        pair = {"cauchy": pair, "ties": np.rint(pair), "constant": np.ones((2, 300))}[law]
        over += distribution_free_mu(*pair, 0.01) > 0, epsilon_lower_bound(*pair, 0.0, 0.01) > 0
    assert np.all(over <= 3 + 6 * 3**0.5)


def test_bounds_are_those_of_their_formulas(rng):
    """Two unequal samples: the delta method, and the Beta law at each threshold."""
    low, high = rng.standard_normal(30), 2 + 3 * rng.standard_normal(40)
    mu = (high.mean() - low.mean()) / math.sqrt((low.var(ddof=1) + high.var(ddof=1)) / 2)
    error = 2.3263478740 * math.sqrt(2 / 30 + mu**2 / 120)  # the .99 quantile
    assert gaussian_mu(low, high, 0.01) == pytest.approx((mu, mu - error))
    assert gaussian_mu([1, 1], [2, 2]) == (math.inf, math.inf) != gaussian_mu([1, 1], [1, 1])
    rates = []
    for cut in [*low, *high]:
        over, under = np.sum(low > cut), np.sum(high <= cut)
        if over < 30 and under < 40:
            rates.append((beta.ppf(1 - 0.01 / 62, over + 1, 30 - over),
                          beta.ppf(1 - 0.01 / 82, under + 1, 40 - under)))  # fmt: skip
    best = max(-ndtri(fpr) - ndtri(fnr) for fpr, fnr in rates)
    assert distribution_free_mu(low, high, 0.01) == pytest.approx(best)
    powers = [max(1 - fnr - 0.05, 0.0) / fpr for fpr, fnr in rates]
    assert epsilon_lower_bound(low, high, 0.05, 0.01) == pytest.approx(math.log(max(*powers, 1.0)))


def test_negative_shift_certifies_nothing(rng):
    low, high = rng.standard_normal(500) + 5, rng.standard_normal(500)
    assert gaussian_mu(low, high)[1] < 0 and distribution_free_mu(low, high) < 0


def test_epsilon_bound_on_randomised_response(rng):
    p = math.exp(1.0) / (1 + math.exp(1.0))
    low, high = rng.random(5000) < 1 - p, rng.random(5000) < p
    assert 0.7 < epsilon_lower_bound(low, high, 0.0) <= 1.0


def test_runs_needed():
    assert runs_needed(1.0, 2**0.5) == 279
    assert runs_needed(0.5, 2**0.5) > 850
    assert runs_needed(1.0, 2.0) < 70
