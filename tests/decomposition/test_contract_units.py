"""Units of a contract (one entry changes by at most s), and pure epsilon for every entry unit."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD

from skdp import DPTruncatedSVD, PrivacyLedger
from skdp.exceptions import PrivacyError
from skdp.testing import seeded_entropy

pytestmark = pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
UNITS = ["entry_change", "edge_change", "mixed"]
SYMMETRIC = UNITS[1:]


def fit(X, k=2, **options):
    with seeded_entropy(0):
        return DPTruncatedSVD(k, **options).fit(X)


def planted(m, n, values, seed=0):
    """Singular vectors whose entries are spread evenly."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.choice([-1.0, 1.0], (size, len(values))))[0] for size in (m, n))
    if m == n:
        U = V
    return (U * values) @ V.T, V


def captured(svd, V):
    return float(np.sum((svd.components_ @ V) ** 2)) / len(svd.components_)


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_without_noise_it_is_the_decomposition(unit, container):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20, 20 if unit in SYMMETRIC else 12)) * 100
    X = np.triu(X, int(unit == "edge_change")) if unit in SYMMETRIC else X
    ours = fit(container(X), 3, privacy_unit=unit, epsilon=math.inf)
    X = X + np.triu(X, 1).T if unit in SYMMETRIC else X
    theirs = TruncatedSVD(3, algorithm="arpack").fit(X)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_)
    np.testing.assert_allclose(np.abs(ours.components_), np.abs(theirs.components_), atol=1e-6)


def counts(m, n, depth, seed):
    """Poisson counts of mean 50, and the direction (beside the mean) in which they differ."""
    rng = np.random.default_rng(seed)
    u, v = rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], n)
    return rng.poisson(50 * (1 + depth * np.outer(u, v))).astype(float), v / math.sqrt(n)


@pytest.mark.thorough
def test_counts_need_the_contract():
    """Mean 50, epsilon .3, a change by 1: clipped counts say nothing, all entries with noise less.

    Median squared cosines of three draws; without privacy .974.
    """

    def cosine(unit, seed):
        X, v = counts(600, 150, 0.035, seed)
        return float(np.sum((fit(X, epsilon=0.3, privacy_unit=unit).components_ @ v) ** 2))

    clipped, frobenius, contract = (
        np.median([cosine(unit, seed) for seed in range(3)])
        for unit in ("entry", "frobenius", "entry_change")
    )
    assert clipped < 0.2
    assert clipped < frobenius < contract
    assert contract > 0.93


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS)
def test_the_receipt_says_that_it_is_a_contract(unit):
    X = planted(30, 30, [300.0, 200.0])[0]
    svd = fit(X, 1, privacy_unit=unit, unit_bound=2.0)
    assert "the caller's contract" in str(svd.privacy_card())
    assert ("any symmetric change" in svd.privacy_spent_.sentence()) == (unit == "mixed")
    assert svd.privacy_spent_.unit == unit
    scale = fit(X, 1, privacy_unit=unit, unit_bound=4.0).ledger_[0].noise_scale
    assert scale == pytest.approx(2 * svd.ledger_[0].noise_scale, rel=1e-6)


def test_a_ledger_does_not_add_up_contracts_of_different_size():
    X = planted(30, 20, [300.0])[0]
    same = {"privacy_unit": "entry_change", "algorithm": "alternating"}

    def two_fits():
        with PrivacyLedger(epsilon=3.0, delta=1e-5):
            DPTruncatedSVD(1, **same).fit(X)
            DPTruncatedSVD(1, unit_bound=2.0, **same).fit(X)

    with pytest.raises(PrivacyError, match=r"norm at most 2\.0"):
        two_fits()


@pytest.mark.parametrize("unit", UNITS)
def test_huge_entries_are_no_trouble(unit):
    X = planted(30, 30, [1e17])[0]
    assert np.isfinite(fit(X, 1, privacy_unit=unit, epsilon=0.5).components_).all()


def test_what_does_not_go_with_a_contract():
    X = np.ones((9, 8))
    for options, match in (
        ({"privacy_unit": "entry_change", "unit_bound": (0.0, 2.0)}, "is a number"),
        ({"privacy_unit": "entry_change", "clip_norm": 2.0}, "bounds nothing"),
        ({"privacy_unit": "edge_change"}, "square symmetric matrix"),
        ({"privacy_unit": "mixed"}, "square symmetric matrix"),
    ):
        with pytest.raises(ValueError, match=match):
            fit(X, 1, **options)


# -- pure epsilon ----------------------------------------------------------------------------------

PURE = [
    ("entry", {"unit_bound": (-1.0, 1.0)}, "deflation"),
    ("entry_change", {}, "deflation"),
    ("entry_change", {"algorithm": "one_shot"}, "one_shot"),
    ("edge", {"unit_bound": (-3.0, 3.0)}, "deflation"),
    ("edge_change", {}, "deflation"),
    ("mixed", {"unit_bound": 0.1}, "deflation"),
    ("frobenius", {"unit_bound": 0.05}, "deflation"),
    ("spectral", {"unit_bound": 0.05}, "deflation"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "options", "route"), PURE, ids=str)
def test_two_components_with_pure_epsilon(unit, options, route):
    square = unit in ("edge", "edge_change", "mixed")
    X, V = planted(300 if square else 400, 300, [400.0, 300.0])
    svd = fit(X, 2, privacy_unit=unit, delta=0.0, epsilon=8.0, **options)
    assert svd.route_.startswith(route)
    assert {entry.mechanism for entry in svd.ledger_} == {"laplace"}
    assert svd.privacy_spent_.delta == 0.0
    assert svd.privacy_spent_.epsilon == 8.0
    assert math.fsum(entry.loss.value for entry in svd.ledger_) == pytest.approx(8.0)
    assert captured(svd, V) > 0.95


def test_spectral_noise_beside_that_of_the_paper():
    """Corollary 1.4 of [2] has the density exp(-epsilon ||z||_2 / T): a radius of Gamma(m, T/eps).

    Its root mean square is sqrt((m + 1) / m) sqrt(m) T / epsilon a number; Laplace noise for the l1
    norm, which is sqrt(m) at most, has sqrt(2 m) T / epsilon.
    """
    m, n = 400, 300
    X = planted(m, n, [400.0])[0]
    svd = fit(X, 1, privacy_unit="spectral", delta=0.0, epsilon=1.0, algorithm="alternating")
    right = svd.ledger_[0]
    assert right.name == "right_product"
    longest = right.sensitivity / math.sqrt(m)  # of the query
    assert longest <= 1.01
    papers = math.sqrt((m + 1) / m) * math.sqrt(m) * longest / right.loss.value
    assert right.noise_scale / papers == pytest.approx(math.sqrt(2), rel=0.01)
