"""DPStandardScaler."""

import math
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from skdp import PrivacyLedger
from skdp.exceptions import UtilityWarning
from skdp.preprocessing import DPStandardScaler
from skdp.preprocessing._standard_scaler import around_zero
from skdp.testing import seeded_entropy
from tools.outcomes import assert_refused, messages_of, refuses

UNITS, MEANS = np.array([1.0, 10.0, 0.1, 1e4]), np.array([0.0, 50.0, 1.0, -1e5])


def columns(n=6000):
    X = np.random.default_rng(0).standard_normal((n, 4)) * UNITS + MEANS
    return np.column_stack([X, np.full(n, 3.0)])


@pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
@pytest.mark.parametrize("bounds", ["auto", (-math.inf, math.inf)])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_without_noise_it_is_standard_scaler(bounds, adjacency):
    X = columns(500)
    ours = DPStandardScaler(bounds=bounds, adjacency=adjacency, epsilon=math.inf).fit(X)
    theirs = StandardScaler().fit(X)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-9)
    np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-7)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-6)
    assert ours.n_samples_seen_ == 500


@pytest.mark.filterwarnings("ignore:.*no noise:skdp.exceptions.PrivacyWarning")
def test_without_noise_it_is_standard_scaler_of_truncated_entries():
    X, bounds = columns(500)[:, :4], (MEANS - UNITS, MEANS + 9 * UNITS)
    ours = DPStandardScaler(bounds=bounds, epsilon=math.inf).fit(X)
    theirs = StandardScaler().fit(X.clip(*bounds))
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-9)
    np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-7)


@pytest.mark.deep
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_columns_of_unequal_units_are_learnt(adjacency):
    X = columns()
    low, high = MEANS - 4 * UNITS, MEANS + 4 * UNITS
    bounds = np.append(low, 0.0), np.append(high, 5.0)
    for given, tolerance in (("auto", 0.15), (bounds, 0.05)):
        scaler = DPStandardScaler(bounds=given, adjacency=adjacency)
        with seeded_entropy(0):
            said = messages_of(scaler.fit, X)
        # the column of one value has no scale that could be learnt
        assert all("1 of 5 columns (4)" in text for text in said)
        assert np.max(np.abs(scaler.mean_[:4] - MEANS) / UNITS) < tolerance
        assert np.max(np.abs(scaler.scale_[:4] / UNITS - 1)) < tolerance
        assert 0 < scaler.scale_[4] < 1  # no spread: kept at the noise, not blown up


def test_a_warning_names_columns_next_to_that_of_the_groups():
    table = pd.DataFrame(columns()[:, :4], columns=["a", "b", "c", "d"]).assign(b=0.0)
    table.insert(0, "person", np.arange(len(table)))
    for X, column, name in ((table, "person", "'b'"), (table.to_numpy(), 0, "2")):
        scaler = DPStandardScaler(privacy_unit="group", group_column=column)
        with pytest.warns(UtilityWarning, match=rf"1 of 4 columns \({name}\), and used a guess"):
            scaler.fit(X)


def test_a_warning_names_the_unit_that_it_counts():
    fit, groups = DPStandardScaler(privacy_unit="group").fit, np.repeat(np.arange(20), 2)
    assert "groups must differ" in messages_of(fit, columns()[:40, :2], groups=groups)[0]


@pytest.mark.deep
@pytest.mark.parametrize("wide", [4.0, 400.0])
def test_public_bounds_far_too_wide_cost_little(wide):
    """Columns are found within them; rare values within suitable bounds need no warning."""
    X = np.column_stack([columns()[:, :4], np.arange(len(columns())) == 0])
    low, high = np.append(MEANS - wide * UNITS, 0.0), np.append(MEANS + wide * UNITS, 1.0)
    with seeded_entropy(0):
        scaler = DPStandardScaler(bounds=(low, high))
        assert not messages_of(scaler.fit, X)
    np.testing.assert_allclose(scaler.scale_[:4], UNITS, rtol=0.2)
    np.testing.assert_array_equal(scaler.feature_bounds_, (low, high))


def test_moments_within_public_bounds_have_about_the_budget_of_those_within_learnt_ones():
    """Bounds far too wide save nothing, so what they are tried for must cost little."""
    public, learnt = (DPStandardScaler(bounds=b)._shares() for b in ((-1, 1), "auto"))
    assert public["moments"] > 0.9 * learnt["moments"]


@pytest.mark.thorough("bounds")
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("bounds", [(0.0, 1e-60), (1e16, 1e16 + 4), (-4.0, 4.0)])
@pytest.mark.parametrize("place", [0.25, 1.0, 1e3])
def test_means_lie_in_narrow_public_bounds(bounds, place):
    """Wherever the entries lie, and also where no float is between two bounds of the search."""
    low, high = bounds
    X = np.full((300, 2), low + place * (high - low))
    with seeded_entropy(0):
        scaler = DPStandardScaler(bounds=bounds, epsilon=5.0).fit(X)
    half = (high - low) / 2
    assert np.all((low - half <= scaler.mean_) & (scaler.mean_ <= high + half))
    assert np.all((scaler.scale_ < 2 * half) | (scaler.scale_ == 1))  # 1: none is seen


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_rows_within_public_bounds_have_the_scales_of_dense_ones():
    S = sp.csr_array(np.random.default_rng(0).uniform(5.0, 6.0, (800, 3)))  # all is stored
    scaler = DPStandardScaler(with_mean=False, bounds=(0.0, 100.0), random_state=0)
    dense = clone(scaler).fit(S.toarray())
    np.testing.assert_array_equal(scaler.fit(S).scale_, dense.scale_)
    np.testing.assert_array_equal(scaler.feature_bounds_[0], 0.0)


def test_scales_of_noise_within_public_bounds_are_said():
    X = columns()[:40, :4]
    scaler = DPStandardScaler(bounds=(MEANS - 400 * UNITS, MEANS + 400 * UNITS), epsilon=0.1)
    with seeded_entropy(0):
        assert "narrow public 'bounds'" in messages_of(scaler.fit, X)[0]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")  # of seeds
def test_public_bounds_show_what_lies_far_from_most_entries():
    """Half of these amounts are nearly 0, and show a scale that is far too small."""
    X = np.minimum(np.exp(1 + 3 * np.random.default_rng(0).standard_normal((2000, 3))), 999)
    scalers = (DPStandardScaler(bounds=(0, 999), epsilon=3.0, random_state=i) for i in range(5))
    scales = [scaler.fit(X).scale_ for scaler in scalers]
    np.testing.assert_allclose(scales, np.tile(X.std(axis=0), (5, 1)), rtol=0.2)


def test_round_trip_and_switches():
    X = columns(1000)[:, :4]
    scaler = DPStandardScaler(epsilon=4.0).fit(X)
    cut = np.clip(X, *scaler.feature_bounds_)
    np.testing.assert_allclose(scaler.inverse_transform(scaler.transform(X)), cut, rtol=1e-9)
    plain = DPStandardScaler(epsilon=4.0, with_mean=False, with_std=False).fit(X)
    np.testing.assert_array_equal(plain.transform(X), np.clip(X, *plain.feature_bounds_))
    assert plain.scale_ is None
    assert plain.var_ is None


def hard_columns(n, rng):
    """Columns of real tables: dummies, an amount with zeros, a shift, a heavy tail, constants."""
    return np.column_stack([
        rng.random(n) < 0.4, rng.random(n) < 0.02, rng.integers(1950, 2020, n), np.zeros(n),
        np.where(rng.random(n) < 0.9, 0.0, rng.exponential(1e4, n)), rng.standard_cauchy(n),
    ]).astype(float)  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("n", [50, 400, 20000])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_hard_columns_are_never_blown_up(n, epsilon):
    """In all cases, standardised entries are small, in the fitted rows and in new ones."""
    X, scaler = hard_columns(n, np.random.default_rng(0)), DPStandardScaler(epsilon=epsilon)
    for seed in range(5):
        with seeded_entropy(seed):
            assert messages_of(scaler.fit, X)  # a column of zeros never shows its scale
        assert np.max(np.abs(scaler.transform(np.vstack([X, 1e9 * X])))) < 100
    if n == 20000 and epsilon == 3.0:
        ratio = scaler.scale_ / X.std(axis=0).clip(1e-300)
        assert np.all(np.abs(np.log2(ratio[[0, 1, 2, 4]])) < 1)


# -- sparse rows ----------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::UserWarning")  # of seeds
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("bounds", ["auto", (-2.0, 3.0)])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_sparse_rows_are_scaled_as_dense_ones(kind, bounds, adjacency, rng):
    S = sp.random_array((1200, 6), density=0.2, rng=rng, format="csr", data_sampler=rng.normal)
    options = {"with_mean": False, "bounds": bounds, "adjacency": adjacency}
    sparse, dense = (
        DPStandardScaler(**options, random_state=0).fit(X) for X in (kind(S), S.toarray())
    )
    assert np.array_equal(sparse.scale_, dense.scale_)
    assert np.array_equal(sparse.mean_, dense.mean_)
    found = sparse.transform(kind(S))
    assert sp.issparse(found) and found.nnz == S.nnz
    assert np.array_equal(found.toarray(), dense.transform(S.toarray()))
    back = sparse.inverse_transform(found)
    np.testing.assert_allclose(back.toarray(), np.clip(S.toarray(), *sparse.feature_bounds_))
    exact = DPStandardScaler(with_mean=False, epsilon=np.inf).fit(kind(S))
    np.testing.assert_allclose(exact.scale_, StandardScaler(with_mean=False).fit(S).scale_)


def test_zeros_that_are_not_stored_stay_zeros():
    """A learnt range is widened to 0, a public one without 0 is refused before it is paid."""
    wider = around_zero(np.array([-5.0, 5.0, 1.0]), np.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(wider, [[-3.0, 3.0, 1.0], [3.0, 3.0, 2.0]])
    S = sp.csr_array(np.random.default_rng(0).uniform(5.0, 6.0, (800, 3)))  # all is stored
    scaler = DPStandardScaler(with_mean=False, epsilon=4.0).fit(S)
    assert np.all(scaler.feature_bounds_[0] <= 0)
    assert np.all(np.abs(scaler.feature_bounds_[1]) > 5)
    assert_refused(DPStandardScaler(with_mean=False, bounds=(1.0, 7.0)), "with 0 between them", S)
    refuses(ValueError, "Cannot center sparse .* 'with_mean=False'", DPStandardScaler().fit, S)
    assert scaler.transform(sp.csr_array((2, 3))).nnz == 0


@pytest.mark.deep
@pytest.mark.parametrize(
    "rows", [load_iris().data[::2], 3 + 0.4 * np.random.default_rng(0).standard_normal((75, 3))]
)
def test_scales_that_are_far_off_are_said(rows):
    """75 rows do not show the location of columns, and scales about 0 and about it look alike."""
    lost, model = 0, DPStandardScaler(epsilon=1.0)
    for _ in range(16):
        said = messages_of(model.fit, rows)
        if np.abs(np.log2(model.scale_ / rows.std(axis=0))).max() > 3:
            lost += 1
            assert said
    assert lost


@pytest.mark.deep
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_scales_that_are_seen_need_no_word(shift):
    rows = shift + np.random.default_rng(0).standard_normal((4000, 4)) * [1.0, 2.0, 3.0, 4.0]
    for _ in range(4):
        DPStandardScaler(epsilon=1.0).fit(rows)
    said = messages_of(DPStandardScaler().fit, rows[:60])[0]
    enough = rows[: int(re.search(r"\d+ to (\d+) rows", said)[1])]
    again = [messages_of(DPStandardScaler().fit, enough) for _ in range(5)]
    assert sum("could not find" in " ".join(each) for each in again) < 3


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
def test_scales_of_rare_dummies_are_learnt():
    """Their variance is far below that of the ones alone, and so must be its noise."""
    X = (np.random.default_rng(0).random((2000, 12)) < 0.04).astype(float)
    for epsilon, most in ((1.0, 0.9), (10.0, 0.5), (60.0, 0.2)):
        scaler = DPStandardScaler(epsilon=epsilon).fit(X)
        assert np.abs(np.log2(scaler.scale_ / X.std(axis=0))).mean() < most


@pytest.mark.deep
def test_a_column_too_far_from_zero_is_said_and_the_remedy_holds():
    rows = np.random.default_rng(0).standard_normal((1500, 2)) + [1e5, 1e9]
    with pytest.warns(UtilityWarning, match=r"of 1 of 2 columns \(1\) that may .* far too large"):
        DPStandardScaler(epsilon=1.0).fit(rows)
    np.testing.assert_allclose(DPStandardScaler().fit(rows - [0, 1e9]).scale_, 1.0, rtol=0.3)


def as_bytes(X):
    return X.astype("S")


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray, np.ndarray.tolist, as_bytes])
@pytest.mark.parametrize("call", ["fit", "transform"])
def test_persons_that_are_text_are_refused(form, call):
    """As floats, "7" and "07" would be one person, whom the next step protects once."""
    X = np.column_stack([np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) // 2])
    text = X.astype(object)
    text[:, 2] = [f"{int(label):03}" for label in X[:, 2]]
    scaler = DPStandardScaler(privacy_unit="group", group_column=2)
    scaler = scaler if call == "fit" else scaler.fit(X)
    with PrivacyLedger(epsilon=1.0) as ledger:
        refuses(ValueError, "may merge labels that are text", getattr(scaler, call), form(text))
    assert ledger.remaining() == 1.0
    if call == "transform":
        assert np.array_equal(scaler.transform(X)[:, 2], X[:, 2])
