"""Blocks in files: the bits of the fit in memory, and errors before any cost."""

import numpy as np
import pytest
import scipy.sparse as sp

import skdp
from skdp.data import blocks, stored_rows
from skdp.exceptions import PrivacyError, PrivacyWarning
from skdp.queries.rows import RowQuery
from skdp.testing import record_transcript
from tools.outcomes import refuses
from tools.places import GROUPS, USERS, D, Elsewhere, S, Table, X, Y, assert_same_bits, fitted, lazy

# Tiny fits find little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")


@pytest.mark.thorough
def test_integers_and_float32_are_read_as_they_are(tmp_path):
    for dtype in (np.uint8, np.int32, np.float32):
        rows = np.abs(X * 3).astype(dtype)
        np.save(tmp_path / "a.npy", rows)
        sp.save_npz(tmp_path / "a.npz", (9 * S).astype(dtype))
        got = fitted(skdp.DPPCA(2), [tmp_path / "a.npy"])
        assert_same_bits(fitted(skdp.DPPCA(2), rows), got)
        assert got["components_"].dtype == (np.float32 if dtype == np.float32 else np.float64)
        svd = skdp.DPTruncatedSVD(2)
        assert_same_bits(fitted(svd, (9 * S).astype(dtype)), fitted(svd, [tmp_path / "a.npz"]))


def test_a_row_that_is_not_finite_contributes_nothing(tmp_path):
    """It is not searched for before the charge, and causes no message after it."""
    bad, good = X.copy(), X.copy()
    bad[5, 3], bad[6, 0] = np.nan, np.inf
    good[5:7] = 0
    np.save(tmp_path / "bad.npy", bad)
    model = skdp.DPPCA(2, center="none")
    for rows in ([tmp_path / "bad.npy"], np.load(tmp_path / "bad.npy", mmap_mode="r")):
        assert_same_bits(fitted(model, good), fitted(model, rows))


def test_indices_outside_of_the_columns_are_refused_where_rows_are_read(tmp_path):
    """They would read other memory, and no header shows them."""
    wrong = sp.csr_array((np.ones(1), np.array([7]), np.array([0, 1])), shape=(1, 2))
    sp.save_npz(tmp_path / "wrong.npz", wrong)
    refuses(ValueError, None, stored_rows.BlockFiles([tmp_path / "wrong.npz"]).whole)
    refuses(ValueError, "another shape", stored_rows.rows_of_block, wrong, 2)


def test_a_memory_map_is_neither_copied_nor_scanned(mapped, monkeypatch):
    seen = []
    true = RowQuery.__init__
    monkeypatch.setattr(
        RowQuery, "__init__", lambda self, rows, **k: (seen.append(rows), true(self, rows, **k))[1]
    )
    skdp.DPPCA(2, clip_norm=5.0).fit(mapped)
    assert seen[0]._X is mapped


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 1, 3, 5])
def test_each_row_of_files_is_in_one_of_the_parts(n, npy, npz, monkeypatch):
    """One in two would count twice; chunks keep the order of the columns next to them."""
    monkeypatch.setattr(stored_rows, "BLOCK", 64)
    for source in map(stored_rows.BlockFiles, (npy, npz)):
        whole, chunks, parts = (
            np.vstack([blocks.dense(block) for part in cut for block in part.blocks()])
            for cut in ([source], source.chunks(), source.parts(n))
        )
        np.testing.assert_array_equal(chunks, whole)
        assert sorted(parts.tolist()) == sorted(whole.tolist())


@pytest.mark.parametrize(("content", "message"), [
    (np.zeros(3), "1 dimensions"), (np.zeros((3, 2), complex), "dtype complex128"),
    (np.zeros((3, D + 1)), f"has {D + 1} columns"), (np.array([[None]]), "cannot be read"),
], ids=["1-D", "complex", "width", "pickled"])  # fmt: skip
def test_a_bad_block_is_refused_before_any_cost(content, message, npy, tmp_path):
    np.save(tmp_path / "bad.npy", content)
    with record_transcript() as transcript, pytest.raises(ValueError, match=message):
        skdp.DPPCA(2).fit([*npy, tmp_path / "bad.npy"])
    assert len(transcript) == 0


def test_other_bad_files(npy, npz, tmp_path):
    sp.save_npz(tmp_path / "csc.npz", S.tocsc())
    refuses(ValueError, "CSR matrices", skdp.DPPCA(2).fit, [tmp_path / "csc.npz"])
    pickled = {"format": np.array("csr", object), "shape": S.shape, "data": S.data}
    np.savez(tmp_path / "pickled.npz", **pickled)
    refuses(ValueError, "cannot be read", skdp.DPTruncatedSVD(2).fit, [tmp_path / "pickled.npz"])
    refuses(ValueError, "is no existing npy", skdp.DPPCA(2).fit, [tmp_path / "missing.npy"])
    refuses(ValueError, "^a text in X is no existing npy", skdp.DPPCA(2).fit, ["a private word"])
    refuses(ValueError, "same columns and kind", skdp.DPPCA(2).fit, [npy[0], npz[0]])
    np.save(tmp_path / "empty.npy", np.zeros((0, D)))
    refuses(ValueError, r"0 sample\(s\)", skdp.DPPCA(2).fit, [tmp_path / "empty.npy"])


def test_indices_out_of_range_do_not_reach_compiled_code(tmp_path):
    bad = S[:10].copy()
    bad.indices[0] = 10**6
    sp.save_npz(tmp_path / "bad.npz", bad)
    with pytest.raises(PrivacyError, match=r"not shown, .* shows the error\.$"):
        skdp.DPTruncatedSVD(2).fit([tmp_path / "bad.npz"])
    with pytest.warns(PrivacyWarning), pytest.raises(ValueError, match="indices"):
        skdp.DPTruncatedSVD(2, epsilon=np.inf).fit([tmp_path / "bad.npz"])


def test_columns_are_checked_as_for_arrays(npy, tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((3, D + 2)))
    model = skdp.DPPCA(2).fit(npy)
    assert model.n_features_in_ == D
    refuses(ValueError, "is expecting 8 features", model.transform, [tmp_path / "wide.npy"])
    refuses(ValueError, "n_features", skdp.DPPCA(D + 1).fit, npy)
    np.save(tmp_path / "few.npy", X[:3])
    refuses(ValueError, "min", skdp.DPPCA(5, adjacency="replace").fit, [tmp_path / "few.npy"])
    skdp.DPPCA(5).fit([tmp_path / "few.npy"])  # no error may reveal the private number of rows
    ridge = skdp.DPRidge(clip_norm=9.0, target_bounds=(-1, 1)).fit(X, np.sign(X[:, 0]))
    assert ridge.score(npy, np.sign(X[:, 0])) == ridge.score(X, np.sign(X[:, 0]))


@pytest.mark.parametrize("unit", ["interaction", "entry", "frobenius"])
def test_other_units_need_x_in_memory(unit, npy):
    refuses(ValueError, "in memory", skdp.DPTruncatedSVD(2, privacy_unit=unit).fit, npy)


# -- users -------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:.*adds no noise:UserWarning")
@pytest.mark.parametrize("name", USERS)
def test_users_in_files_maps_and_dask_give_the_same_bits(name, npy, mapped):
    model, y = USERS[name]
    expected = fitted(model, X, y, groups=GROUPS)
    assert_same_bits(expected, fitted(model, npy, y, groups=GROUPS))
    assert_same_bits(expected, fitted(model, mapped, y, groups=GROUPS))
    assert_same_bits(expected, fitted(model, lazy(X), y, groups=GROUPS))
    assert_same_bits(expected, fitted(model, lazy(X), lazy(y), groups=lazy(GROUPS.astype(str))))
    if hasattr(model, "adapt"):
        assert getattr(model, "_private", None) is None  # heads stay where the rows are
        assert model.adapt(X[:6], y[:6], groups=GROUPS[:6])._private["heads"].shape[0] == 1
        model.set_params(n_jobs=2)
        assert_same_bits(expected, fitted(model, npy, y, groups=GROUPS.astype(str)))
        model.set_params(n_jobs=None)


CLIPPED = {"clip_norm": 1.0, "epsilon": 8.0, "privacy_unit": "group"}


@pytest.mark.parametrize(("model", "y"), [
    (skdp.DPPCA(1, **CLIPPED), None), (skdp.DPRidge(target_bounds=(-30.0, 30.0), **CLIPPED), Y),
    (USERS["regressor"][0], Y), USERS["classifier"],
], ids=["pca", "ridge", "regressor", "classifier"])  # fmt: skip
def test_a_person_in_many_chunks_of_a_file_is_one_unit(model, y, npy, monkeypatch):
    """Files of rows are cut into ranges: a person in two of them would count twice."""
    expected = fitted(model, X, y, groups=GROUPS)
    monkeypatch.setattr(stored_rows, "BLOCK", 4 * D)  # four rows: persons have six
    assert_same_bits(expected, fitted(model, npy, y, groups=GROUPS))


def test_a_user_in_two_files_is_refused_without_a_name(npy):
    labels = np.array([f"ann{i}@example.org" for i in GROUPS])
    labels[0] = labels[-1]
    with (
        record_transcript() as transcript,
        pytest.raises(ValueError, match="Sort the rows") as raised,
    ):
        skdp.DPPersonalizedRegressor(2).fit(npy, Y, groups=labels)
    assert "ann" not in str(raised.value)
    assert len(transcript) == 0


def test_users_in_blocks_need_groups_and_classes(npy):
    with pytest.raises(ValueError, match="needs 'classes'"):
        skdp.DPPersonalizedClassifier(2).fit(npy, Y > 0, groups=GROUPS)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        skdp.DPPersonalizedRegressor(2).fit(npy, Y[:-1], groups=GROUPS)
    with pytest.warns(PrivacyWarning), pytest.raises(ValueError, match="needs 'groups'"):
        skdp.DPPersonalizedRegressor(2).fit(npy, Y)


# -- user-defined sources ------------------------------------------------------------------------


class Floats(Elsewhere):
    def sum_parts(self, work):
        return super().sum_parts(work).astype(float)


class Flat(Elsewhere):
    def sum_parts(self, work):
        return np.ravel(super().sum_parts(work))


@pytest.mark.parametrize("kind", [Floats, Flat])
def test_a_source_that_changes_the_sum_is_refused(kind):
    """Floats next to integer noise would be read as integers: noise of another size."""
    for model in (skdp.DPPCA(2, clip_norm=3.0), skdp.DPPCA(2, adjacency="replace")):
        refuses(PrivacyError, "must return the sum of what", model.fit, kind([X]))


def test_a_source_may_have_blocks_larger_than_the_cap(monkeypatch):
    expected = fitted(skdp.DPPCA(2), X)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 64)
    monkeypatch.setattr(blocks, "BLOCK", 2**7)
    assert_same_bits(expected, fitted(skdp.DPPCA(2), Table([X])))
    assert max(map(len, blocks.pieces_of(Table([X])))) == 64  # so many rows have exact products
