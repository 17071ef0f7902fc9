"""Each check detects the bugs of its kind, in the package or a toy, and raises no false alarm.

Bugs of the package are slips of `planted.toml`, planted in this process.
"""

import ast
import warnings
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.validation import validate_data

import skdp
from skdp import DPPCA, DPIncrementalPCA, DPPersonalizedRegressor, testing
from skdp.base import BaseDPEstimator, atomic
from skdp.data import integers
from skdp.decomposition import _base, _incremental_pca
from skdp.privacy.accounting.losses import epsilon_from_mu_delta
from skdp.queries.rows import RowQuery
from skdp.solvers.linalg import orthonormal
from tools import checks
from tools.fit_checks import check_order_invariance
from tools.pairs import worst_case_pair
from tools.planted import PLANTED, planted

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 4))
V = orthonormal(RNG.standard_normal((4, 2)))
SKEW = V @ np.array([[1.0, 0.9], [0.0, 0.1]])  # unit columns, not orthogonal: norm 1.35


class Power(BaseDPEstimator):
    """A block power method in ten lines: adaptive, several releases.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal rows.
    n_features_in_ : int
        Number of features.
    privacy_spent_ : PrivacySpent
        The receipt.
    releases_ : tuple of LedgerEntry
        The releases.
    """

    def __init__(self, n_components=2, *, n_iter=3, epsilon=1.0, delta=1e-6, clip_norm=1.0,
                 adjacency="add_remove", random_state=None):  # fmt: skip
        self.n_components = n_components
        self.n_iter = n_iter
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.adjacency = adjacency
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @atomic
    def fit(self, X, y=None):
        session = self._open_session()
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64)
        query = RowQuery(X, clip_norm=self.clip_norm, adjacency=self.adjacency)
        Q = np.eye(X.shape[1])[:, : self.n_components]
        attributes = {"components_": self.iterate(session, query, Q, X).T}
        return self._close_session(session, attributes | self.extra(X, query))

    def iterate(self, session, query, Q, X):
        for t in range(self.steps(X)):
            Q = self.normalised(self.step(session, query, Q, t))
        return Q

    def steps(self, X):
        return self.n_iter

    def step(self, session, query, Q, t):
        return session.ask(query).gram_product(Q, share=1 / self.n_iter).value

    def normalised(self, Y):
        return orthonormal(Y)

    def extra(self, X, query):
        return {}


class FirstRelease(DPIncrementalPCA):
    def fit(self, X, y=None):
        return self.partial_fit(X)


class Skewed(Power):
    def normalised(self, Y):
        return Y / np.linalg.norm(Y, axis=0)  # unit columns, not orthogonal


class CountsRows(Power):
    def extra(self, X, query):
        return {"n_samples_": X.shape[0]}


class StopsEarly(Power):
    def steps(self, X):
        A = X.toarray() if hasattr(X, "toarray") else X
        norms = np.linalg.norm(np.nan_to_num(A), axis=1)
        return 2 if np.mean(norms > 2 * self.clip_norm) < 0.5 else 3


class BranchesOnMaximum(Power):
    def normalised(self, Y):
        return orthonormal(Y) * self.sign

    def iterate(self, session, query, Q, X):
        self.__dict__["sign"] = 1 if abs(X).max() > 100 else -1
        out = super().iterate(session, query, Q, X)
        del self.__dict__["sign"]
        return out


class Warns(Power):
    def extra(self, X, query):
        clipped = integers.row_norms(next(query._source.blocks())) > self.clip_norm
        if clipped.mean() > 0.5:
            warnings.warn("most rows were clipped", UserWarning, stacklevel=2)
        return {}


class ReadsTwice(Power):
    def step(self, session, query, Q, t):
        bounded = query.gram_product(Q)
        grant = session.grant(bounded.bound, 1 / self.n_iter)
        value = grant.open(bounded.answer).value
        session._read(bounded.answer, grant)
        return value


class ReadsOutside(Power):
    def extra(self, X, query):
        return {"n_iter_": int(query.gram().answer(1e-6).trace() > 0)}


class KeepsRows(Power):
    def extra(self, X, query):
        return {"_fit_X": X}


class WritesInput(Power):
    def iterate(self, session, query, Q, X):
        if isinstance(X, np.ndarray) and X.flags.writeable:
            X[:] = integers.clip_rows(X, self.clip_norm)
        return super().iterate(session, query, Q, X)


class PaysLater(Power):
    def step(self, session, query, Q, t):
        bounded = query.gram_product(Q)
        grant = session.grant(bounded.bound, 1 / self.n_iter)
        early = bounded.answer(grant.step)
        return grant.open(lambda step: early).value

    def iterate(self, session, query, Q, X):
        G = X.T @ X  # a private statistic, before anything is paid
        Q = orthonormal(np.asarray(G @ Q) + Q)
        return super().iterate(session, query, Q, X)


# -- tiers ---------------------------------------------------------------------------------------


def query_of(adjacency, clip_norm=1.0):
    return lambda data: RowQuery(data, clip_norm=clip_norm, adjacency=adjacency)


def sensitivity(release, *public, adjacency="add_remove"):
    def tier(_):
        testing.check_sensitivity(
            query_of(adjacency), release, *public, adjacency=adjacency, max_starts=80, n_climb=5
        )

    return tier


def order(release, *public):
    return lambda _: check_order_invariance(query_of("add_remove"), release, *public, data=X)


def lazy(_):
    testing.check_charge_before_read(query_of("add_remove"), "gram", data=X)


def transcript(estimator):
    testing.transcript_audit(estimator, worst_case_pair(estimator)).check()


def statistical(estimator):
    estimator = estimator.set_params(epsilon=epsilon_from_mu_delta(1.0, 1e-6))
    with testing.seeded_entropy(0):
        testing.audit(estimator, worst_case_pair(estimator), 500).check()


@cache
def check(name):
    (asked,) = (check for check in checks.CHECKS if check.__name__ == "check_" + name)
    return lambda estimator: asked(type(estimator).__name__, estimator)


# -- what each check sees --------------------------------------------------------------------------

PCA = DPPCA(n_components=2, clip_norm=1.0)
# (check, estimator, slip of the package); a toy has a bug of its own.
SEEN = {
    "calibration": (check("noise_calibration"), PCA, "less noise than the ledger says"),
    "many runs": (statistical, PCA, "less noise than the ledger says"),
    "sensitivity": (
        sensitivity("gram", adjacency="replace"), PCA, "positive sum under replace",
    ),
    "transcript of neighbours": (
        transcript, DPPCA(clip_norm=1.0, adjacency="replace", center="none"),
        "positive sum under replace",
    ),
    "rows that are not cut": (sensitivity("gram"), PCA, "rows that are not cut"),
    "rows that are a little longer": (
        sensitivity("gram"), PCA, "rows that are a unit longer than their bound",
    ),
    "public argument": (
        sensitivity("gram_product", SKEW), Power(), "iterate that is taken for orthonormal",
    ),
    "iterate of a fit": (
        transcript, Skewed(epsilon=8.0), "iterate that is taken for orthonormal",
    ),
    "noise that is used again": (
        check("noise_calibration"), Power(), "the same noise in every release",
    ),
    "noise in one column": (check("noise_calibration"), PCA, "noise in one column"),
    "un-noised count": (check("null_release"), CountsRows(), None),
    "data-dependent stop": (check("null_release"), StopsEarly(), None),
    "branch on a maximum": (check("null_release"), BranchesOnMaximum(), None),
    "warning about rows": (check("null_release"), Warns(), None),
    "receipt": (check("receipt"), Power(), "a line at half of its price"),
    "second read through the gate": (check("receipt"), ReadsTwice(), None),
    "second read past the gate": (check("null_release"), ReadsOutside(), None),
    "early value": (lazy, PCA, "moment that is computed before it is paid"),
    "statistic before the first payment": (check("pays_first"), PaysLater(), None),
    "floats": (transcript, PCA, "noise that is added as floats"),
    "order of rows": (order("gram"), PCA, "sum over rows in float32"),
    "bound from data": (sensitivity("gram"), PCA, "bound from the largest entry"),
    "bad rows": (check("bad_rows"), Power(), "a bad entry that counts as zero in its row"),
    "global generator": (check("system_entropy"), PCA, "words of numpy's global generator"),
    "entropy": (check("system_entropy"), PCA, "the same noise in every release"),
    "seeds": (check("seeded_noise"), PCA, "one seed at two budgets"),
    "budgets": (check("bad_budgets"), PCA, "any epsilon for NaN"),
    "tiny epsilon": (
        check("tiny_epsilon"), PCA, "a tiny budget with the noise of a larger one",
    ),
    "branch, tiny epsilon": (check("tiny_epsilon"), BranchesOnMaximum(), None),
    "company": (
        check("company"), DPPersonalizedRegressor(loss="huber"),
        "one clip of residuals for a batch of users",
    ),
    "warm start": (
        check("null_release"), FirstRelease(1, clip_norm=1.0),
        "sketch of a stream that starts from rows",
    ),
    "route by storage": (
        check("null_release"), DPPCA(1, clip_norm=1.0), "route by what a CSR matrix stores",
    ),
    "storage form": (
        check("storage_form"), DPPCA(1, clip_norm=1.0), "route by what a CSR matrix stores",
    ),
    "attributes": (check("documented_attributes"), KeepsRows(), None),
    "input": (check("input_unmodified"), WritesInput(), None),
}  # fmt: skip
WIDE = ("warm start", "route by storage", "storage form")  # seen where few columns are many


def right(estimator):
    return Power() if isinstance(estimator, Power) else estimator


def test_every_slip_is_of_a_line_that_is_there():
    missing = {bug for bug, (file, line, _) in PLANTED.items() if source(file).count(line) != 1}
    assert not missing


@pytest.mark.deep
def test_every_slip_is_code():
    """One was not: any test fails for a module that cannot be imported."""
    for file, line, slip in PLANTED.values():
        ast.parse(source(file).replace(line, slip))


def test_the_first_tier_names_tests_that_are_there(request):
    """Of the files that are collected now: all, where the whole tier runs."""
    assert not request.config.chosen_and_gone


@cache
def source(file):
    return (Path(skdp.__file__).parent / file).read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SEEN)
def test_a_check_sees_the_bugs_of_its_kind(kind, monkeypatch):
    run, estimator, slip = SEEN[kind]
    if kind in WIDE:
        monkeypatch.setattr(_base, "GRAM_FEATURES", 2)
        monkeypatch.setattr(_base.spectral, "FEWEST_KEPT", 2)
        monkeypatch.setattr(_incremental_pca, "MOST_DENSE", 2)
    with planted(slip) if slip else nullcontext(), pytest.raises(AssertionError) as caught:
        run(estimator)
    print(kind, "->", str(caught.value)[:230])


# Many bugs are caught by one check of one estimator: it is silent for all of them, or for none.
SILENT = {(run, repr(right(estimator))): kind for kind, (run, estimator, _) in SEEN.items()}


@pytest.mark.deep
@pytest.mark.parametrize("kind", SILENT.values())
def test_the_same_check_is_silent_on_the_right_code(kind):
    run, estimator, _ = SEEN[kind]
    run(right(estimator))


@pytest.mark.deep
@pytest.mark.parametrize("check", checks.CHECKS, ids=[check.__name__ for check in checks.CHECKS])
def test_every_check_passes_on_the_toy(check):
    if check.__name__ == "check_joblib":
        pytest.skip("worker processes cannot import a class from a test")
    check("Power", Power())
    check("Power", Power(3, adjacency="replace", epsilon=4.0))
