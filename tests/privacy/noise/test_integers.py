"""Integer noise: the tables by exact arithmetic, the laws by chi-square, the words by counting."""

import hashlib
import itertools
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis.extra.numpy import array_shapes
from scipy import stats

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.gate.bounds import Bound, Bounded
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise.words import SeededSource, SystemSource
from tools.gate import new_session
from tools.noise_table import gaussian_table
from tools.outcomes import refuses

SIX_SIGMA = 2e-9  # two-sided probability beyond six standard deviations
SEEDS = 40
ONES = 2**64 - 1
SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


class Script:
    """Words given by hand, then `fill`; records how many were asked for."""

    def __init__(self, *first, fill=0):
        self.first, self.fill, self.asked = list(first), fill, []

    def __call__(self, n):
        self.asked.append(n)
        head, self.first = self.first[:n], self.first[n:]
        return np.array(head + [self.fill] * (n - len(head)), dtype=np.uint64)


# ---- the Gaussian table -------------------------------------------------------------------------


def test_a_damaged_table_is_refused(tmp_path, monkeypatch):
    columns = np.load(noise.TABLE_PATH)
    columns[1, 5] ^= np.uint64(1)
    np.save(tmp_path / "table.npy", columns)
    monkeypatch.setattr(noise, "TABLE_PATH", tmp_path / "table.npy")
    refuses(PrivacyError, "damaged", noise._gaussian_table.__wrapped__)


@pytest.mark.thorough
@pytest.mark.parametrize("negative", [0, 1])
def test_every_cell_keeps_below_its_threshold_and_settles_ties(negative):
    table = noise._gaussian_table()
    alias, sign = dict(table._pairs), 1 - 2 * negative

    def draw(cell, fraction, spare=None):
        word = (fraction << 13) | (cell << 1) | negative
        script = iter([] if spare is None else [spare])
        drawn = table.draw(np.array([word], dtype=np.uint64), lambda: next(script))
        assert next(script, None) is None  # a tie reads one word, anything else none
        return sign * int(drawn[0])

    for cell in range(noise.CELLS):
        exact = table._first_bits(cell, 115)  # all bits of t_cell, and one
        first, rest = exact >> 64, exact & ONES
        if first:
            assert draw(cell, first - 1) == cell
        if first < 2**51:
            assert draw(cell, first, rest) == alias[cell]
            assert draw(cell, 2**51 - 1, ONES if first == 2**51 - 1 else None) == alias[cell]
            if rest:
                assert draw(cell, first, rest - 1) == cell


# ---- theory -------------------------------------------------------------------------------------


def test_constants():
    assert pytest.approx(1012522500.75, rel=1e-12) == noise.SIGMA_INT
    assert pytest.approx(6750150.005, rel=1e-9) == noise.PART_SIGMA_INT
    assert noise.sigma_int(1) == 300.0
    assert noise.effective_sigma(1) == pytest.approx(math.sqrt(90000 - 1 / 12), rel=1e-15)
    assert noise.EFFECTIVE_SIGMA <= noise.SIGMA_INT
    assert pytest.approx(6.26e-34, rel=1e-3, abs=0) == noise.DELTA_PER_DRAW
    assert noise.PART_DELTA_PER_DRAW < 5e-31
    assert noise.LAPLACE_SCALE == 2.0**30


def test_sampler_delta():
    error = 10 * noise.DELTA_PER_DRAW
    assert noise.sampler_delta(1.0, 10) == pytest.approx((1 + math.e) * error, rel=1e-9, abs=0)


@pytest.mark.thorough
@pytest.mark.parametrize("sigma", [3, 5, 8, 16])  # sigma 2: 5.15e-4
def test_discrete_gaussian_is_a_rounded_normal(sigma):
    with mpmath.workprec(200):
        effective = mpmath.sqrt(mpmath.mpf(sigma) ** 2 - mpmath.mpf(1) / 12)
        support = range(-16 * sigma, 16 * sigma + 1)
        weights = [mpmath.exp(-mpmath.mpf(k * k) / (2 * sigma**2)) for k in support]
        total = mpmath.fsum(weights)
        ends = (k - mpmath.mpf(1) / 2 for k in (*support, 16 * sigma + 1))
        edges = [mpmath.ncdf(end / effective) for end in ends]
        cells = [b - a for a, b in itertools.pairwise(edges)]
        distance = mpmath.fsum(abs(w / total - c) for w, c in zip(weights, cells, strict=True)) / 2
        assert 4.5e-4 < distance * sigma**4 <= 4.9e-4


@pytest.mark.thorough
@pytest.mark.parametrize("level", [1, 2, 3])
def test_convolution_error_is_below_2_to_minus_112(level):
    lower = Fraction(90000 * sum(150 ** (2 * i) for i in range(level)))  # variance of Y
    upper = 150**2 * lower + 90000
    spread, slope = 1 / (1 / lower + Fraction(1, 4)), 150 * lower / upper
    for x, y in [(0, 1), (7, -3), (10**6, 12345)]:  # completing the square
        exponent = y**2 / (2 * lower) + Fraction((x - 150 * y) ** 2, 180000)
        assert exponent == x**2 / (2 * upper) + (y - slope * x) ** 2 / (2 * spread)
    with mpmath.workprec(300):
        s2 = mpmath.mpf(spread.numerator) / spread.denominator
        sums = [
            mpmath.fsum(
                mpmath.exp(-((y - mpmath.mpf(m) / 64) ** 2) / (2 * s2)) for y in range(-60, 61)
            )
            for m in range(65)
        ]
        mean = mpmath.sqrt(2 * mpmath.pi * s2)
        assert max(abs(s / mean - 1) for s in sums) < mpmath.mpf(2) ** -112.8


def masses(table):
    """Return the integer masses of all values of an alias table, and the bits of a cell."""
    bits, own = table._precise
    alias, mass = dict(table._pairs), [0] * noise.CELLS
    for cell, kept in enumerate(own):
        assert 0 <= kept <= 2**bits
        mass[cell] += kept
        mass[alias.get(cell, cell)] += 2**bits - kept
    return bits, mass


@pytest.mark.thorough
def test_digits_of_the_laplace_are_exact():
    q = {}
    with mpmath.workprec(400):
        for place in range(3):
            bits, mass = masses(noise._digit_table(place))
            ratio = mpmath.exp(-mpmath.mpf(4096**place) / 2**30)
            end = 1 if place == 2 else 1 - ratio**4096
            law = [(1 - ratio) * ratio**j / end for j in range(4096)]
            if place == 2:
                law[-1] = ratio**4095
                assert law[-1] < mpmath.mpf(2) ** -92
            q[place] = law
            error = max(
                abs(m / (4096 * mpmath.mpf(2) ** bits) - p) for m, p in zip(mass, law, strict=True)
            )
            assert error < mpmath.mpf(2) ** (26 - bits)
        for digits in [(0, 0, 0), (1, 2, 3), (4095, 17, 4094)]:
            value = sum(d * 4096**i for i, d in enumerate(digits))
            product = mpmath.fprod(q[i][d] for i, d in enumerate(digits))
            geometric = mpmath.exp(-mpmath.mpf(value) / 2**30) * (
                1 - mpmath.exp(-(mpmath.mpf(2) ** -30))
            )
            assert abs(product / geometric - 1) < mpmath.mpf(2) ** -300


# ---- laws ---------------------------------------------------------------------------------------


def gaussian_bins(levels):
    scale = noise.effective_sigma(levels)
    edges = np.unique(np.rint(scale * stats.norm.ppf(np.arange(1, 64) / 64)).astype(np.int64))
    if levels == 1:
        k = np.arange(-4000, 4001)
        law = np.exp(-(k**2) / 180000.0)
        below = np.concatenate([[0.0], np.cumsum(law / law.sum())])[edges + 4000]
    else:
        below = stats.norm.cdf((edges - 0.5) / scale)
    return edges, np.diff(below, prepend=0.0, append=1.0)


def laplace_bins():
    scale = noise.LAPLACE_SCALE
    edges = np.rint(stats.laplace.ppf(np.arange(1, 64) / 64, scale=scale)).astype(np.int64)
    tail = np.exp(-np.where(edges > 0, edges, 1 - edges) / scale) / (1 + np.exp(-1 / scale))
    return edges, np.diff(np.where(edges > 0, 1 - tail, tail), prepend=0.0, append=1.0)


SCORES = np.array([3, 0, -2, 5, 5, 1, 4, -40], dtype=np.int64)


def choices(words, n):
    return np.array([noise.gumbel_choice(words, SCORES, 0.4) for _ in range(n)])


def choice_bins():
    weights = np.exp(0.4 * (SCORES - 5.0))[:-1]  # the last, of 2e-9, joins its neighbour
    return np.arange(1, 7), weights / weights.sum()


LAWS = {
    **{
        f"gaussian-{levels}": (
            lambda words, n, levels=levels: noise.integer_gaussian(words, (n,), levels),
            lambda levels=levels: gaussian_bins(levels),
            40_000,
        )
        for levels in (1, 2, 3, 4)
    },
    "laplace": (lambda words, n: noise.integer_laplace(words, (n,)), laplace_bins, 20_000),
    "choice": (choices, choice_bins, 250),
}


def p_values(name):
    sample, bins, n = LAWS[name]
    edges, law = bins()
    for seed in range(SEEDS):
        drawn = sample(SeededSource(seed, "law").words(name), n)
        counts = np.bincount(np.searchsorted(edges, drawn, side="right"), minlength=law.size)
        yield stats.chisquare(counts, n * law).pvalue


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAWS)
def test_law(name):
    p = np.array(list(p_values(name)))
    assert p.min() > SIX_SIGMA / SEEDS
    assert stats.kstest(p, "uniform").pvalue > SIX_SIGMA


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("draw", "variance", "fourth"),
    [
        (lambda w, n: noise.integer_gaussian(w, (n,)), noise.SIGMA_INT**2, 3.0),
        (lambda w, n: noise.integer_gaussian(w, (n,), 3), noise.PART_SIGMA_INT**2, 3.0),
        (lambda w, n: noise.integer_laplace(w, (n,)), 2 * noise.LAPLACE_SCALE**2, 6.0),
    ],
)
def test_moments_and_independence(draw, variance, fourth):
    n = 400_000
    x = draw(SeededSource(0).words("moments"), n) / math.sqrt(variance)
    assert abs(x.mean()) < 6 / math.sqrt(n)
    assert abs((x**2).mean() - 1) < 6 * math.sqrt((fourth - 1) / n)
    for other in (np.roll(x, 1), np.roll(x, 2048), np.roll(np.abs(x), 1) - np.abs(x).mean()):
        assert abs(np.corrcoef(x, other)[0, 1]) < 6 / math.sqrt(n)


def test_choice_has_the_exact_probabilities():
    for rate in (1e-12, 0.4, 30.0, 1e300):
        weights = noise._choice_weights(SCORES, rate, 40, 1400)
        with mpmath.workprec(400):
            slope = mpmath.mpf(rate) * (1 - mpmath.mpf(10) ** -15)
            for score, weight in zip(SCORES.tolist(), weights, strict=True):
                exact = mpmath.exp(-min(slope * (5 - score), 700))
                assert abs(weight / (exact * mpmath.mpf(2) ** 1400) - 1) < mpmath.mpf(10) ** -40
                assert weight > 0
    for gap in (2**32, 2**33 + 7, 2**60):  # the score of many units
        low, high = noise._choice_weights(np.array([-gap, 0]), 1 / gap, 40, 200)
        assert low / high == pytest.approx(math.exp(-1))


def test_choice_inverts_the_cumulative_weights_in_order():
    scores = np.zeros(1000, dtype=np.int64)
    probe = Script()
    noise.gumbel_choice(probe, scores, 1.0)
    (asked,) = probe.asked
    for i in (1, 499, 999):
        edge = -((-i << (64 * asked)) // 1000)  # the least uniform integer of index i
        for value, index in [(edge, i), (edge - 1, i - 1)]:
            parts = [(value >> (64 * j)) & ONES for j in range(asked)]
            assert noise.gumbel_choice(Script(*parts), scores, 1.0) == index


def test_choice_extremes():
    wide = np.array([-(2**63), 2**63 - 1, 0], dtype=np.int64)
    assert noise.gumbel_choice(SystemSource().words(), wide, 1.0) == 1
    assert noise.gumbel_choice(SystemSource().words(), wide[:1], 1e-300) == 0
    many = np.zeros(20_000, dtype=np.int64)
    assert 0 <= noise.gumbel_choice(SystemSource().words(), many, 1e-9) < many.size
    for rate in (0.0, -1.0, math.inf, math.nan):
        refuses(ValueError, "rate", noise.gumbel_choice, Script(), SCORES, rate)
    for scores in (SCORES[:0], SCORES[None]):
        refuses(ValueError, "scores", noise.gumbel_choice, Script(), scores, 1.0)
    for scores in (SCORES.astype(float), SCORES.astype(np.uint64), [1, 2]):
        refuses(TypeError, "int64", noise.gumbel_choice, Script(), scores, 1.0)


# ---- words --------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(SHAPES)
def test_shapes_and_word_counts(shape):
    size = math.prod(shape)
    for draw, each in [
        (noise.integer_gaussian, 4),
        (lambda w, s: noise.integer_gaussian(w, s, 2), 2),
        (noise.integer_laplace, 6),
    ]:
        script = Script(fill=0x0123456789ABCDEF)
        drawn = draw(script, shape)
        assert drawn.shape == shape and drawn.dtype == np.int64
        assert sum(script.asked) == each * size + 16


@pytest.mark.parametrize("fill", [0, 1, ONES, 0x0123456789ABCDEF])
def test_word_counts_do_not_depend_on_the_words(fill):
    for draw, each in [(noise.integer_gaussian, 4), (noise.integer_laplace, 6)]:
        script = Script(fill=fill)
        draw(script, (5000,))
        assert sum(script.asked) == each * 5000 + 16
        assert max(script.asked) <= 16 + 6 * 2048  # memory: chunks of a constant size
    asked = [Script(fill=fill) for _ in range(3)]
    for script, scores in zip(asked, (SCORES, SCORES * 1000, SCORES * 0), strict=True):
        noise.gumbel_choice(script, scores, 1.0)
    assert asked[0].asked == asked[1].asked == asked[2].asked


def test_words_of_another_dtype_are_refused():
    for bad in (
        lambda n: np.zeros(n, np.int64),
        lambda n: np.zeros(n),
        lambda n: np.zeros(n + 1, np.uint64),
    ):
        for call in (noise.integer_gaussian, noise.integer_laplace):
            refuses(TypeError, "uint64", call, bad, (3,))
    refuses(ValueError, "levels", noise.integer_gaussian, Script(), (1,), 0)


def tied_word(table, cell):
    return (table._first_bits(cell, 51) << 13) | (cell << 1)


def test_more_ties_than_spare_words_stay_exact():
    table = noise._gaussian_table()
    cell, n = 100, 20
    rest = table._first_bits(cell, 115) & ONES
    assert rest > 0
    script = Script(*[rest - 1] * 16, *[tied_word(table, cell)] * n, fill=rest)
    drawn = noise.integer_gaussian(script, (n,), levels=1)
    assert drawn.tolist() == [cell] * 16 + [dict(table._pairs)[cell]] * 4
    assert script.asked == [36, 1, 1, 1, 1]  # the reserve comes first


@pytest.mark.parametrize("spare", [0, 1 << 63, ONES])
def test_words_give_one_by_one_what_they_give_together(spare):
    table = noise._gaussian_table()
    tied = np.array([tied_word(table, cell) for cell, _ in table._pairs[:3]], np.uint64)
    words = np.concatenate([SeededSource(0).words("fixed")(2000), tied])
    one_by_one = [table.one(word, lambda: spare) for word in words.tolist()]
    assert one_by_one == table.draw(words, lambda: spare).tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2, 4, 9])
def test_ties_of_the_laplace_are_refined_as_long_as_it_takes(place, depth):
    fresh = noise.AliasTable(noise._digit_table(place)._weights_at, 256, exact=False, signed=False)
    sharp = noise.AliasTable(fresh._weights_at, 2048, exact=False, signed=False)
    assert sharp._pairs == fresh._pairs
    for cell in (fresh._pairs[0][0], fresh._pairs[-1][0], 4095):
        exact = sharp._first_bits(cell, (51 + 64 * depth))
        follow = [(exact >> (64 * i)) & ONES for i in reversed(range(depth))]
        for last, kept in ((-1, True), (1, False)):
            spare = iter([*follow[:-1], follow[-1] + last])
            drawn = fresh.draw(
                np.array([tied_word(fresh, cell)], np.uint64), lambda s=spare: next(s)
            )
            assert drawn[0] == (cell if kept else dict(fresh._pairs)[cell])
            assert next(spare, None) is None


def test_digits_of_the_laplace_fall_into_place():
    # low, middle, top of the two geometrics; fraction 0: the cell keeps its own value
    digits = [d << 1 for d in (5, 1, 7, 2, 9, 3)]
    drawn = noise.integer_laplace(Script(*[0] * 16, *digits), (1,))
    assert drawn[0] == (5 - 1) + (7 - 2) * 4096 + (9 - 3) * 4096**2


def test_levels_of_the_gaussian_fall_into_place():
    levels = [3 << 1, (4 << 1) | 1, 5 << 1, (6 << 1) | 1]  # cells and sign bits
    drawn = noise.integer_gaussian(Script(*[0] * 16, *levels), (1,))
    assert drawn[0] == ((3 * 150 - 4) * 150 + 5) * 150 - 6


def test_the_top_digit_has_no_upper_end():
    # index 4095, fraction 0 ties with the tiny threshold of cell 4095; spare zeros keep it, and
    # the second draw of the digit (spare word 0) is 0
    top = 4095 << 1
    script = Script(*[0] * 16, 0, 0, 0, 0, top)
    assert noise.integer_laplace(script, (1,)).tolist() == [4095 * 4096**2]
    script = Script(0, top, *[0] * 14, 0, 0, 0, 0, top)  # twice beyond the table
    assert noise.integer_laplace(script, (1,)).tolist() == [2 * 4095 * 4096**2]
    assert script.asked == [22]


def test_seeded_noise_is_the_same_everywhere():
    # A change here changes every seeded result: announce it.
    words = SeededSource(0).words("fixed")
    drawn = [noise.integer_gaussian(words, (5000,)), noise.integer_laplace(words, (5000,))]
    assert hashlib.sha256(np.stack(drawn).astype("<i8").tobytes()).hexdigest() == NOISE_SHA256


NOISE_SHA256 = "aedc51aa129a13c4d46ef9396073b0b52941bd10f9dedbdb81d6217c94b60d11"


# -- the table of the noise: committed weights, rebuilt and compared with the exact law ------------


BITS = 126


def thresholds():
    return noise.join_columns(np.load(noise.TABLE_PATH))


def table_weights():
    return [b - a for a, b in itertools.pairwise([0, *thresholds(), 2**BITS])]


@pytest.mark.thorough
def test_the_script_rebuilds_the_committed_table():
    columns = np.load(noise.TABLE_PATH)
    assert np.array_equal(gaussian_table(), columns)
    assert columns.dtype == np.uint64 and columns.max() < 2**63


@pytest.mark.thorough
def test_the_table_is_within_2_to_minus_116_of_the_discrete_gaussian():
    with mpmath.workprec(300):
        # Poisson summation gives the normaliser to e^-1776528; the script sums it instead
        half_mass = 300 * mpmath.sqrt(2 * mpmath.pi) / 2
        law = [mpmath.exp(-mpmath.mpf(k * k) / 180000) / half_mass for k in range(7000)]
        law[0] /= 2
        cumulative = list(itertools.accumulate(law))
        exact = [int(mpmath.floor(c * mpmath.mpf(2) ** BITS)) for c in cumulative[:3831]]
        assert exact == thresholds()
        padded = table_weights() + [0] * (7000 - 3832)
        gaps = [
            abs(mpmath.mpf(w) / mpmath.mpf(2) ** BITS - p) for w, p in zip(padded, law, strict=True)
        ]
        distance = mpmath.fsum(gaps) / 2
        assert mpmath.mpf(2) ** -117 < distance < mpmath.mpf(2) ** -116.6


def test_the_alias_table_has_exactly_the_weights_of_the_table():
    weights, (_, mass) = table_weights(), masses(noise._gaussian_table())
    assert mass == [w * noise.CELLS for w in weights] + [0] * (noise.CELLS - len(weights))


def test_real_weights_that_do_not_determine_a_pairing_are_refused():
    flat = [1 << 244] * 4096
    with pytest.raises(AssertionError, match="full"):
        noise.AliasTable(lambda bits: flat, 256, exact=False, signed=False)


def test_geometric_weights_sum_to_one_at_any_precision():
    for tail, bits in itertools.product((False, True), (256, 512)):
        weights = noise.geometric_weights(Decimal(1) / 64, tail, bits)
        assert sum(weights) == 1 << bits and (weights[-1] > weights[-2]) == tail


# -- flips of cells: their law, their price, and what the gate makes of them -----------------------


def words(seed):
    return SeededSource(seed, "flips").words()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 3.0, 10.0, 20.0, 60.0])
def test_a_flip_is_as_likely_as_epsilon_asks(epsilon):
    """(1 - p)/p <= e^epsilon, and one step less would not do (where steps are fine enough)."""
    rate = noise.flip_rate(epsilon)
    p = noise.chance_of_flip(rate)
    assert p >= 1 / (1 + math.exp(epsilon)) * (1 - 1e-12)
    least = noise.LAPLACE_SCALE * math.log1p(math.exp(-epsilon))
    assert rate >= least * (1 + 7e-13)  # so sums of epsilons may be rounded
    assert p < 0.5
    if rate > 1:
        assert noise.chance_of_flip(rate - 1) <= 1 / (1 + math.exp(epsilon)) * (1 + 1e-9)
    expected = 0.5 / math.sinh(epsilon / 2)
    assert noise.unbiased_deviation(p) == pytest.approx(expected, rel=1e-2) or rate < 1000


def test_geometrics_have_their_law():
    drawn = noise.integer_geometric(words(0), 200_000)
    uniform = np.exp(-drawn / noise.LAPLACE_SCALE)
    assert drawn.min() >= 0
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0, 6.0])
def test_flips_are_bernoulli(epsilon):
    """Number, places, gaps and neighbours of the flips of 400,000 cells."""
    n, rate = 400_000, noise.flip_rate(epsilon)
    p, places = noise.chance_of_flip(rate), noise.draw_flips(words(1), 400_000, rate)
    assert places.dtype == np.int64
    assert np.all(np.diff(places) > 0)
    assert places[0] >= 0
    assert places[-1] < n
    assert all(np.all(noise.draw_flips(words(3), few, rate) < max(few, 1)) for few in (0, 1, 5))
    assert abs(len(places) - n * p) < 6 * math.sqrt(n * p * (1 - p))
    assert stats.kstest(places / n, "uniform").pvalue > 1e-6
    gaps = np.diff(places)
    expected = p * (1 - p) ** np.arange(20) * len(gaps)
    found = np.bincount(gaps - 1, minlength=20)[:20]
    assert np.all(np.abs(found - expected) < 6 * np.sqrt(expected) + 3)
    flags = np.bincount(places, minlength=n) - p
    for lag in (1, 2, 7, 100) if epsilon < 3 else ():  # at more, pairs are too rare
        product = flags[lag:] * flags[:-lag]
        assert abs(product.mean()) < 6 * product.std() / math.sqrt(len(product))


def test_flipping_twice_undoes_it(rng, monkeypatch):
    for _ in range(20):
        ones, flips = (np.flatnonzero(rng.random(50) < p).astype(np.int64) for p in (0.3, 0.5))
        once = noise.flipped(ones, flips)
        expected = np.flatnonzero(np.isin(np.arange(50), ones) ^ np.isin(np.arange(50), flips))
        np.testing.assert_array_equal(once, expected)
        np.testing.assert_array_equal(noise.flipped(once, flips), ones)
    monkeypatch.setattr(noise, "integer_geometric", lambda words, size: np.zeros(size, np.int64))
    assert np.array_equal(noise.draw_flips(words(0), 100, 1), np.arange(100))  # drawn in parts


# -- the gate --------------------------------------------------------------------------------------


def session(epsilon=2.0, delta=0.0):
    return new_session(epsilon, delta, source=SeededSource(0, "gate"), unit="interaction")


def cells(shape, places, moved=1):
    places = np.asarray(places, np.int64)
    return Bounded(Bound("cells", shape, 1.0, cells=moved), lambda _: places)


@pytest.mark.parametrize("moved", [1, 2])
def test_a_release_of_cells_is_charged_and_unbiased(moved):
    gate = session(3.0)
    answer = gate.release(cells((200, 100), np.arange(0, 20_000, 4), moved), 0.5)
    (line,) = gate.ledger
    assert line.mechanism == "randomised response"
    assert tuple(line.loss) == ("pure", 1.5)
    assert gate.spent().epsilon == 1.5 and gate.remaining("pure") == 0.5
    p = noise.chance_of_flip(noise.flip_rate(1.5 / moved))
    assert answer.noise_scale == noise.unbiased_deviation(p)
    assert sp.issparse(answer.value)
    unbiased = (answer.value.toarray() - p) / (1 - 2 * p)
    assert abs(unbiased.mean() - 0.25) < 6 * answer.noise_scale / math.sqrt(20_000)


def test_the_odds_of_each_outcome_change_by_no_more_than_epsilon():
    """Two cells, all outcomes by simulation: log odds of neighbours within epsilon, and near it."""
    epsilon, n = 1.0, 40_000
    rate = noise.flip_rate(epsilon)
    flips = np.zeros(2 * n, np.int64)
    flips[noise.draw_flips(words(5), 2 * n, rate)] = 1
    flips = flips.reshape(n, 2)
    counts = [np.bincount((flips ^ cell) @ [1, 2], minlength=4) / n for cell in ([0, 0], [1, 0])]
    losses = np.abs(np.log(counts[0] / counts[1]))
    assert losses.max() < epsilon + 0.12
    assert losses.max() > epsilon - 0.12


def test_refusals():
    refuses(ValueError, "too small", noise.flip_rate, 1e-12)
    refuses(PrivacyError, "delta=0", session(1.0, 1e-6).release, cells((5, 5), []), 0.5)
    refuses(BudgetExceededError, None, session().release, cells((5, 5), []), 1.5)
    refuses(ValueError, "larger 'epsilon'", session(0.1).release, cells((20_000, 20_000), []), 1.0)
    for wrong in ([3, 2], [1, 1], [-1], [25]):
        refuses(PrivacyError, "does not match", session().release, cells((5, 5), wrong), 1.0)


def test_without_privacy_nothing_is_flipped():
    answer = session(math.inf).release(cells((5, 5), [0, 7]), 1.0)
    assert answer.noise_scale == 0.0
    assert answer.value.toarray().nonzero()[1].tolist() == [0, 2]
