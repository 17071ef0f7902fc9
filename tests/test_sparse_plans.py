"""Plans that know how many entries are there: fits of a made matrix, and nothing else."""

import statistics
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from skdp import DPPCA, DPTruncatedSVD, PrivacyLedger
from skdp._inputs import bound_of
from skdp.datasets import make_histories, make_interactions
from skdp.decomposition import _row_planning
from skdp.privacy.noise import words
from skdp.theory._rehearsal import planned_histories

SHAPES = {
    "thin": (20_000, 300, 200_000),
    "wide": (5000, 9000, 75_000),
    "short rows": (32_000, 298, 96_000),
    "dense for sparse": (54_906, 151, 1_170_000),
}
MADE = {
    "blocks": lambda n, d, nnz: make_interactions(n, d, nnz, 40, random_state=0),
    "histories": lambda n, d, nnz: make_histories(n, d, nnz / n, 30, random_state=0),
    "little in the head": lambda n, d, nnz: make_histories(
        n, d, nnz / n, 60, overlap=0.7, tail=0.65, random_state=0
    ),
}


def floored(R, floor):
    return sp.csr_array(sp.diags_array(1 / np.sqrt(np.maximum(np.diff(R.indptr), floor))) @ R)


def lost(svd, R, fits=3):
    """Return (share of the best captured squares that a fit loses, share that the best hold)."""
    rows = floored(R, bound_of(svd) if svd.privacy_unit == "interaction" else 1)
    X, k = R if svd.privacy_unit == "interaction" else rows, svd.n_components
    best = float(np.sum(sp.linalg.svds(rows, k)[1] ** 2))
    losses = [1 - float(np.sum((rows @ svd.fit(X).components_.T) ** 2)) / best for _ in range(fits)]
    return statistics.median(losses), best / float(np.sum(rows.data**2))


@pytest.mark.filterwarnings("ignore:.*a signal needs:skdp.exceptions.PrivacyWarning")
@pytest.mark.deep
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_sparse_rows(shape, made):
    """A factor of two where the share of the components is known; five where it is guessed.

    Tastes that share no column have equal variances, which are lost all at once: that is said.
    """
    apart = {"apart": made == "blocks"}
    n, d, nnz = SHAPES[shape]
    R = MADE[made](n, d, nnz)
    for epsilon in (1.0, 3.0):
        svd = DPTruncatedSVD(5, epsilon=epsilon, clip_norm=1.0)
        measured, share = lost(svd, R)
        if measured < 2e-3:
            continue
        assert 0.5 < measured / svd.plan(n, d, nnz=R.nnz, signal=share, **apart).error < 2.0
        assert 0.2 < measured / svd.plan(n, d, nnz=R.nnz, **apart).error < 4.0


def levels(n, columns, n_levels, tastes=4):
    """One-hot columns, whose frequencies depend on a taste."""
    rng = np.random.default_rng(0)
    frequencies = np.cumsum(rng.dirichlet(np.full(n_levels, 0.5), (tastes, columns)), axis=2)
    below = frequencies[rng.integers(0, tastes, n)] < rng.random((n, columns, 1))
    found = np.minimum(below.sum(axis=2), n_levels - 1) + n_levels * np.arange(columns)
    places = np.repeat(np.arange(n), columns), found.ravel()
    return sp.csr_array((np.ones(found.size), places), shape=(n, columns * n_levels))


@pytest.mark.filterwarnings("ignore:.*a signal needs:skdp.exceptions.PrivacyWarning")
@pytest.mark.deep
@pytest.mark.parametrize("unit", ["row", "interaction"])
@pytest.mark.parametrize("made", ["tastes", "levels"])
def test_errors_of_what_shares_no_column(made, unit):
    """Within a factor of two, also of what no taste made; the other kind is said to lose less."""
    if made == "levels":
        R, k = levels(10_000, 10, 40), 6
    else:
        R, k = make_interactions(3000, 1000, 75_000, 20, random_state=0), 10
    svd = DPTruncatedSVD(k, epsilon=1.0, privacy_unit=unit)
    svd.set_params(clip_norm=1.0 if unit == "row" else "auto")
    measured, share = lost(svd, R)
    plan = svd.plan(*R.shape, nnz=R.nnz, signal=share, apart=True)
    assert 0.5 < measured / plan.error < 2.0
    other = svd.plan(*R.shape, nnz=R.nnz, signal=share)
    assert other.error < plan.error and "tastes that share no column would lose" in str(other)


def test_releases_are_those_of_the_fit():
    R = make_interactions(2500, 60, 30_000, 4, random_state=0)
    svd = DPTruncatedSVD(2, epsilon=3.0, clip_norm=1.0)
    ledger = svd.fit(normalize(R)).ledger_
    planned = Counter()
    for release in svd.plan(*R.shape, nnz=R.nnz).releases:
        planned[release.name] += release.times
    assert planned == Counter(line.name for line in ledger)


@pytest.mark.parametrize(
    "estimator",
    [
        DPTruncatedSVD(2),
        DPTruncatedSVD(2, adjacency="replace", clip_norm=1.0),
        DPTruncatedSVD(2, privacy_unit="group"),
        DPTruncatedSVD(2, privacy_unit="interaction"),
        DPTruncatedSVD(2, privacy_unit="interaction", algorithm="power"),
        DPTruncatedSVD(2, privacy_unit="interaction", algorithm="one_shot", epsilon=6.0),
        DPTruncatedSVD(2, privacy_unit="entry"),
        DPTruncatedSVD(2, privacy_unit="edge", epsilon=6.0),
        DPPCA(2),
        DPPCA(2, center="none", clip_norm=1.0),
        DPPCA(),
    ],
)
def test_nothing_is_spent_drawn_or_kept(estimator, monkeypatch):
    monkeypatch.setattr(words, "_system_words", lambda *_: pytest.fail("noise of the system"))
    before = dict(vars(estimator))
    with PrivacyLedger(epsilon=1e-3, delta=1e-9) as ledger:
        plan = estimator.plan(60, 60, nnz=300)
        assert ledger.spent.epsilon == 0
    assert vars(estimator) == before
    assert 0 <= plan.error <= 1 and "300 ones" in str(plan)
    assert str(estimator.plan(60, 60, nnz=300)) == str(plan)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(60, 60), (200, 2000)])
@pytest.mark.parametrize("unit", ["row", "interaction", "entry"])
def test_where_counts_take_all_nothing_is_said_to_be_found(shape, unit):
    svd = DPTruncatedSVD(2, privacy_unit=unit, epsilon=0.3)
    plan = svd.plan(*shape, nnz=3 * shape[0])
    assert 0.5 < plan.error <= 1
    assert plan.found >= 0.5


def test_less_noise_is_planned_with_less_loss():
    errors = [
        DPTruncatedSVD(5, epsilon=epsilon, clip_norm=1.0).plan(1000, 50, nnz=8000).error
        for epsilon in (1.0, 10.0, 100.0, float("inf"))
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > errors[3] == 0


@pytest.mark.thorough
def test_where_formulas_hold():
    """Dense cells, bounds that fill them, a singular value: nothing is made."""
    dense = DPTruncatedSVD(2, clip_norm=1.0)
    assert dense.plan(1000, 20, nnz=5001).error == dense.plan(1000, 20, sparse=True).error
    bounded = DPPCA(2, bounds=(0.0, 1.0))
    assert "ones" not in str(bounded.plan(1000, 20, nnz=500))
    entries = DPTruncatedSVD(2, privacy_unit="entry")
    assert "ones" not in str(entries.plan(1000, 20, nnz=500, signal=30.0))
    assert "ones" not in str(entries.plan(30_000, 300, nnz=500_000))  # too many to be made


@pytest.mark.deep
def test_many_rows_and_columns_are_thinned(monkeypatch):
    """The plan takes seconds: fewer rows with less noise, and the popular columns alone."""
    svd = DPTruncatedSVD(2, clip_norm=1.0, epsilon=0.3)
    whole = svd.plan(8000, 200, nnz=80_000).error
    monkeypatch.setattr(_row_planning, "MOST_MADE", 20_000)
    assert 0.5 < svd.plan(8000, 200, nnz=80_000).error / whole < 2
    wide = DPTruncatedSVD(2, clip_norm=1.0).plan(8000, 4000, nnz=80_000).error
    monkeypatch.setattr(_row_planning, "_MANY_FEATURES", 1000)
    assert 0.5 < DPTruncatedSVD(2, clip_norm=1.0).plan(8000, 4000, nnz=80_000).error / wide < 2


@pytest.mark.deep
def test_millions_of_rows():
    for unit in ("row", "interaction"):
        svd = DPTruncatedSVD(2, epsilon=0.3, privacy_unit=unit)
        plan = svd.plan(2_000_000, 30_000, nnz=20_000_000)
        assert 0 < plan.error < 1 and plan.releases


def test_made_rows_have_the_size_that_is_asked_for():
    for n, d, nnz in ((5000, 300, 15_000), (1000, 4000, 20_000), (300, 80, 4000), (50, 9, 20)):
        X = planned_histories(n, d, nnz)
        assert X.shape == (n, d)
        assert 0.85 * nnz < X.nnz <= 1.1 * nnz
        assert (X.data == 1).all()


@pytest.mark.parametrize("nnz", [0, -3, 2.0, True, "many", 201])
def test_numbers_that_no_matrix_has(nnz):
    for estimator in (DPTruncatedSVD(2), DPPCA(2)):
        with pytest.raises(ValueError, match=r"The 'nnz' parameter of .*\.plan must be None or an"):
            estimator.plan(20, 10, nnz=nnz)


def test_units_without_zeros():
    svd = DPTruncatedSVD(2, privacy_unit="frobenius")
    with pytest.raises(ValueError, match="use 'signal'"):
        svd.plan(20, 10, nnz=10)
