"""Measurement matrices as integers: bounds hold for each record, next to any others."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import hadamard

from skdp.data import records
from skdp.data.blocks import BLOCK_ROWS, SparseRows, limbs_of
from skdp.data.integers import on_grid
from skdp.data.records import (
    DenseRecords,
    FactoredRecords,
    SparseRecords,
    TangentSpace,
    record_units,
)
from skdp.data.views import Zipped

D1, D2, R, N = 5, 4, 2, 60
SHAPE = (D1, D2)
RNG = np.random.default_rng(0)
U, V = (np.linalg.qr(RNG.standard_normal((d, R)))[0] for d in SHAPE)
S = np.array([[2.0, 0.1], [-0.3, 0.5]])
W1, W2 = (np.diag(RNG.uniform(0.2, 1, d)) for d in SHAPE)
SCALE = 10.0 ** RNG.uniform(-7, 7, (N, 1))
A, B = RNG.standard_normal((N, D1)) * SCALE, RNG.standard_normal((N, D2))
X = np.where(RNG.random((N, D1 * D2)) < 0.6, RNG.standard_normal((N, D1 * D2)), 0.0) * SCALE
X[:9] = SCALE[:9] * np.eye(1, D1 * D2)  # one entry alone; then all entries alike
X[9] = SCALE[9]
FORMS = ["dense", "csr", "factors"]


def form_of(name, whitened):
    form = {"dense": DenseRecords, "csr": SparseRecords, "factors": FactoredRecords}[name](SHAPE)
    W = (np.diagonal(W1), np.diagonal(W2)) if name == "csr" else (W1, W2)
    return form.whitened(*W) if whitened else form


def block_of(name, rows=slice(None), **columns):
    if name == "factors":
        return Zipped(A[rows], {"factors": B[rows], **columns})
    block = X[rows]
    return Zipped(
        next(SparseRows(sp.csr_array(block)).blocks()) if name == "csr" else block, columns
    )


def truth(name, whitened):
    Z = np.einsum("ni,nj->nij", A, B) if name == "factors" else X.reshape(N, D1, D2)
    return W1 @ Z @ W2 if whitened else Z


def space(whitened, name):
    enters = whitened and name == "dense"  # dense records are whitened by the public matrices
    left, right = (U.T @ W1, W2 @ V) if enters else (U.T, V)
    unit = np.linalg.norm(S) * 2.0**-26
    return TangentSpace(on_grid(left), on_grid(right), on_grid(V), np.rint(S / unit), unit)


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_norms_and_tangent_sizes_are_close_upper_bounds(name, whitened):
    form, Z = form_of(name, whitened), truth(name, whitened)
    units, norms = form.survey(block_of(name))
    true = np.linalg.norm(Z, axis=(1, 2))
    assert np.all(norms >= true)
    small = np.diag(np.geomspace(1e-7, 0.9, D1 * D2))  # a mix that rounds single entries to 0
    mixed = records.MixedRecords.of(DenseRecords(SHAPE), small).survey(Zipped(X, {}))[1]
    assert np.all(mixed >= np.linalg.norm(X @ small, axis=1) * (1 - 1e-6))
    np.testing.assert_allclose(norms, true, rtol=0.02)
    sizes, inner = form.tangent(block_of(name, units=units), space(whitened, name))
    projected = Z @ V @ V.T + U @ U.T @ Z @ (np.eye(D2) - V @ V.T)
    true_sizes = np.linalg.norm(projected, axis=(1, 2))
    assert np.all(sizes >= true_sizes * (1 - 1e-6))
    np.testing.assert_allclose(sizes, true_sizes, rtol=0.05)
    expected = np.einsum("nij,ij->n", Z, U @ S @ V.T)
    np.testing.assert_allclose(inner, expected, atol=1e-2 * np.abs(expected).max(), rtol=0.05)


@pytest.mark.parametrize("name", FORMS)
def test_rounding_in_one_direction_is_covered(name):
    """All entries of a record are equal, and so are their rounding errors, at many sizes."""
    t, ends = np.linspace(0.5, 1, 3000)[:, None], [np.ones((1, d)) for d in SHAPE]
    W = [0.93 * (end[0] if name == "csr" else np.eye(end.size)) for end in ends]
    columns = {"factors": t[::-1] * ends[1]} if name == "factors" else {}
    rows = t * (ends[0] if columns else np.ones((1, D1 * D2)))
    block = Zipped(sp.csr_array(rows) if name == "csr" else rows, columns)
    true = 0.93**2 * math.sqrt(D1 * D2) * (t * t[::-1] if columns else t)[:, 0]
    assert np.all(form_of(name, False).whitened(*W).survey(block)[1] >= true)


def test_rounding_of_sparse_tangent_parts_is_covered():
    """Multiples of the identity: all products with a basis of one size are rounded alike."""
    d, t = 400, np.linspace(0.5, 1, 40)
    basis = np.tile(hadamard(4), (d // 4, 1)) / math.sqrt(d)
    diagonals = np.tile(np.arange(d) * (d + 1), len(t)), np.arange(0, len(t) * d + 1, d)
    rows = sp.csr_array((np.repeat(t, d), *diagonals), shape=(len(t), d * d))
    flat = TangentSpace(on_grid(basis.T), on_grid(basis), on_grid(basis), np.ones((4, 4)), 1.0)
    block, form = Zipped(rows, {}), SparseRecords((d, d))
    sizes = form.tangent(block.with_columns(units=form.survey(block)[0]), flat)[0]
    assert np.all(sizes >= 2 * t)


@pytest.mark.parametrize("name", FORMS)
def test_sums_equal_the_sums_of_the_integer_records(name):
    form = form_of(name, False)
    units, _ = form.survey(block_of(name))
    weights = RNG.integers(-50, 50, N).astype(float)
    total = form.weighted(block_of(name, units=units, weights=weights))
    alone = [
        form.weighted(block_of(name, slice(i, i + 1), units=units[[i]], weights=weights[[i]]))
        for i in range(N)
    ]
    assert np.array_equal(total, np.sum(alone, axis=0))
    assert np.array_equal(total, np.rint(total))
    one = form.weighted(block_of(name, slice(0, 1), units=units[:1], weights=np.ones(1)))
    first = truth(name, False)[0].ravel()
    assert np.linalg.norm(one * units[0] - first) <= 2e-3 * np.linalg.norm(first)


def test_sums_of_the_largest_block_of_sparse_records_are_exact():
    """One cell: the sum of its terms, of up to 2**41, is no float."""
    form, cells = SparseRecords((1, 1)), RNG.uniform(0.5, 1, (BLOCK_ROWS, 1))
    weights = np.floor(2.0**23 * RNG.uniform(0.9, 1, BLOCK_ROWS))
    block = Zipped(sp.csr_array(cells), {"units": np.full(BLOCK_ROWS, 2.0**-18)})
    high, low = form.weighted(block.with_columns(weights=weights), limbs_of)
    terms = zip(np.rint(cells[:, 0] * 2.0**18).tolist(), weights.tolist(), strict=True)
    assert int(high) * 2**20 + int(low) == sum(int(z) * int(w) for z, w in terms) > 2**53


@pytest.mark.parametrize("name", FORMS)
def test_norms_of_second_moments_are_at_most_their_bounds(name):
    form, Z = form_of(name, False), truth(name, False)
    units, _ = form.survey(block_of(name))
    sizes = form.moment_sizes(block_of(name, units=units))
    if name == "csr":
        true = np.maximum(*(np.linalg.norm((Z**2).sum(axis=k), axis=1) for k in (1, 2)))
    else:
        true = np.linalg.norm(Z @ Z.transpose(0, 2, 1), axis=(1, 2))
    assert np.all(sizes >= true)
    a, b = form.moment_slack()
    for i in range(N):
        scale = np.full(1, 1000.0 / math.sqrt(sizes[i]))
        here = block_of(name, slice(i, i + 1), units=units[[i]], scales=scale)
        moments = form.moments(here)
        assert np.array_equal(moments, np.rint(moments))
        size = sizes[i] * scale[0] ** 2
        limit = size + a * math.sqrt(size) + b
        ends = D1 if name == "csr" else D1 * D1
        assert max(np.linalg.norm(moments[:ends]), np.linalg.norm(moments[ends:])) <= limit


def test_records_that_are_not_numbers_or_out_of_range_have_no_unit():
    largest = np.array([0.0, np.nan, np.inf, 1e-300, 1e300, 1.0, 3.0])
    assert np.array_equal(record_units(largest, 10) > 0, [False] * 5 + [True] * 2)
    assert record_units(largest, 10)[6] == 2.0**-8
