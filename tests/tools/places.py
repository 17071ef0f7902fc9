"""One table in many places (files, Dask arrays, sources of one's own), and what a fit shows."""

import itertools

import numpy as np
import scipy.sparse as sp

import skdp
from skdp.preprocessing import DPStandardScaler
from skdp.testing import seeded_entropy

RNG = np.random.default_rng(0)
N, D = 900, 8
SECRET, SECRET_TARGET = 31415.9265, 27182.8182
X = RNG.standard_normal((N, D)) * np.arange(1, D + 1)
X[4, 2] = SECRET
S = sp.random_array((N, 120), density=0.06, format="csr", rng=RNG)
Y = X[:, 0] + RNG.standard_normal(N)
GROUPS = np.repeat(np.arange(N // 6), 6)
CHUNKS = (300, 6, 594)
ENDS = list(itertools.pairwise(np.cumsum([0, *CHUNKS])))

DENSE = {
    "pca": skdp.DPPCA(2, clip_norm=20.0),
    "pca-auto-clip": skdp.DPPCA(2),
    "pca-replace": skdp.DPPCA(2, adjacency="replace"),
    "pca-spectrum": skdp.DPPCA(),
    "pca-power": skdp.DPPCA(2, svd_solver="power"),
    "pca-public-centre": skdp.DPPCA(2, center=np.linspace(-1, 1, D), clip_norm=9.0),
    "pca-not-centred": skdp.DPPCA(2, center="none", adjacency="replace", clip_norm=9.0),
    "svd": skdp.DPTruncatedSVD(2),
    "svd-power": skdp.DPTruncatedSVD(2, algorithm="power", adjacency="replace"),
}
SPARSE = {
    "pca": skdp.DPPCA(2),
    "pca-spectrum": skdp.DPPCA(),
    "pca-replace": skdp.DPPCA(2, adjacency="replace", clip_norm=1.0),
    "svd": skdp.DPTruncatedSVD(2),
    "svd-screened": skdp.DPTruncatedSVD(2, algorithm="screened"),
    "svd-screened-replace": skdp.DPTruncatedSVD(2, algorithm="screened", adjacency="replace"),
    "increments": skdp.DPIncrementalPCA(2),
}
USERS = {
    "regressor": (skdp.DPPersonalizedRegressor(2, epsilon=8.0), Y),
    "regressor-replace": (
        skdp.DPPersonalizedRegressor(
            2, epsilon=8.0, head_selection="private_vote", adjacency="replace"
        ),
        Y,
    ),
    "classifier": (
        skdp.DPPersonalizedClassifier(2, classes=[-1, 1], epsilon=8.0),
        np.where(Y > 0, 1, -1),
    ),
}

GROUP = {"privacy_unit": "group", "epsilon": 4.0}
PERSONS = [
    skdp.DPPCA(2, **GROUP),
    skdp.DPPCA(2, clip_norm=3.0, svd_solver="power", **GROUP),
    skdp.DPRidge(clip_norm=3.0, target_bounds=(-4.0, 4.0), **GROUP),
    skdp.DPRidge(adjacency="replace", **GROUP),
    skdp.DPTruncatedSVD(2, **GROUP),
    skdp.DPTruncatedSVD(2, adjacency="replace", algorithm="screened", **GROUP),
    skdp.DPIncrementalPCA(2, adjacency="replace", **GROUP),
    DPStandardScaler(**GROUP),
    DPStandardScaler(bounds=(-3.0, 3.0), adjacency="replace", **GROUP),
]
USERS |= {repr(model): (model, Y) for model in PERSONS}


def public(estimator):
    """Fitted attributes, the receipt aside."""
    receipts = ("releases_", "privacy_spent_", "head_rule_scores_", "server_privacy_spent_")
    return {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and name not in receipts
    }


def fitted(estimator, *args, **kwargs):
    with seeded_entropy(0):
        return public(estimator.fit(*args, **kwargs))


def assert_same_bits(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert np.array_equal(left[name], right[name]), name


class _Tables:
    def __init__(self, parts):
        self.tables, self.n_features = parts, parts[0].shape[1]

    def n_rows(self):
        return sum(table.shape[0] for table in self.tables)


class Table(_Tables):
    """The source of the user guide: four members."""

    def parts(self, n):
        return [Table(self.tables[i::n]) for i in range(min(n, len(self.tables)))]

    def blocks(self):
        yield from self.tables


class InBlocks(_Tables):
    """Blocks of any form, of which no row can be taken alone; at order -1 each pass turns them."""

    sparse = True

    def __init__(self, *blocks, order=1):
        super().__init__(blocks)
        self.order, self.passes = order, 0

    def parts(self, n):
        return [self]

    def blocks(self):
        self.passes, self.tables = self.passes + 1, self.tables[:: self.order]
        yield from self.tables


class Elsewhere(_Tables):
    """A source whose parts live elsewhere: three members."""

    def sum_parts(self, work):
        return sum(work(Table([table])) for table in self.tables)


def lazy(values, chunks=CHUNKS):
    """Return a Dask array in blocks of rows; wide ones are cut between columns too."""
    import dask.array as da

    columns = () if np.ndim(values) == 1 else (5 if np.shape(values)[1] > 5 else -1,)
    return da.from_array(values, chunks=(chunks, *columns), name=False)


def unknown(values):
    """Return the same rows, with chunks of unknown size."""
    import dask.array as da

    return lazy(values)[da.from_array(np.ones(N, bool), chunks=(CHUNKS,), name=False)]


def lazy_sparse():
    import dask.array as da

    parts = [da.from_array(S[a:b], chunks=-1, asarray=False, name=False) for a, b in ENDS]
    return da.concatenate(parts)
