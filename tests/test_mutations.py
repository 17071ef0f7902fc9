"""Planted privacy bugs, each caught by a named tier of `skdp.testing`; and no tier cries wolf.

The table (planted bug -> tier -> seconds) is printed at the end: ``pytest tests/test_mutations.py
-s``.
"""

import dataclasses
import math
import time
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.utils.validation import validate_data

from skdp import DPPCA, DPIncrementalPCA, DPPersonalizedRegressor
from skdp._validation import check_real
from skdp.base import BaseDPEstimator, atomic
from skdp.data import integers
from skdp.decomposition import _base, _pca
from skdp.privacy.accounting import losses as accounting
from skdp.privacy.accounting.losses import epsilon_from_mu_delta
from skdp.privacy.gate import session as gate
from skdp.privacy.noise import integers as noise
from skdp.privacy.noise import words
from skdp.queries.rows import RowQuery
from skdp.queries.sums import Neighbours
from skdp.solvers import local_fits
from skdp.solvers.linalg import orthonormal
from skdp.testing import audit, check_lazy, check_sensitivity, seeded_entropy, transcript_audit
from tools import checks
from tools.fit_checks import check_order_invariance
from tools.pairs import worst_case_pair

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 4))
V = orthonormal(RNG.standard_normal((4, 2)))
SKEW = V @ np.array([[1.0, 0.9], [0.0, 0.1]])  # unit columns, not orthogonal: norm 1.35


def entrywise(function, Z):
    if not sp.issparse(Z):
        return function(Z)
    return sp.csr_array((function(Z.data), Z.indices, Z.indptr), shape=Z.shape)


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
    ledger_ : tuple of LedgerEntry
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


class OneStepMore(Power):
    def steps(self, X):
        return self.n_iter + 1


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
        check_sensitivity(
            query_of(adjacency), release, *public, adjacency=adjacency, max_starts=80, n_climb=5
        )

    return tier


def order(release, *public):
    return lambda _: check_order_invariance(query_of("add_remove"), release, *public, data=X)


def lazy(release, *public):
    return lambda _: check_lazy(query_of("add_remove"), release, *public, data=X)


def transcript(estimator):
    transcript_audit(estimator, worst_case_pair(estimator)).check()


def statistical(estimator):
    estimator = estimator.set_params(epsilon=epsilon_from_mu_delta(1.0, 1e-6))
    with seeded_entropy(0):
        audit(estimator, worst_case_pair(estimator), 500).check()


@cache
def check(name):
    return lambda estimator: getattr(checks, "check_" + name)(type(estimator).__name__, estimator)


# -- planted bugs: (tier name, tier, estimator, plant) ---------------------------------------------


def smaller_noise(factor):
    def plant(mp):
        draw = noise.integer_gaussian

        def smaller(words, shape, *args):
            return np.rint(draw(words, shape, *args) / factor).astype(np.int64)

        mp.setattr(noise, "integer_gaussian", smaller)

    return plant


def reused_noise(mp):
    kept, draw = {}, gate.Grant.draw
    mp.setattr(gate.Grant, "draw", lambda self: kept.setdefault(self.bound.shape, draw(self)))


def one_column(mp):
    draw = gate.Grant.draw

    def first_column(self):
        noise = draw(self)
        return noise * (np.arange(noise.shape[-1]) == 0) if noise.ndim else noise

    mp.setattr(gate.Grant, "draw", first_column)


def float_addition(mp):
    def add(exact, drawn):
        normal = np.random.default_rng(int(drawn.flat[0] & 0xFFFF)).standard_normal(exact.shape)
        return exact + noise.EFFECTIVE_SIGMA * normal

    mp.setattr(gate, "wrapping_sum", add)


def other_adjacency(mp):
    mp.setattr(Neighbours, "positive", lambda self, level=1.0, size=2: level)


def no_clip(mp):
    def rounded(self, Z):
        with np.errstate(all="ignore"):
            large = entrywise(lambda z: np.nan_to_num(np.rint(z / self.unit)), Z)
            return entrywise(lambda z: np.clip(z, -(2.0**25), 2.0**25), large)

    mp.setattr(integers.IntegerRows, "__call__", rounded)


def clip_then_round(mp):
    def rounded(self, Z):
        with np.errstate(all="ignore"):
            clipped = integers.clip_rows(Z, self.clip_norm)
            return entrywise(lambda z: np.nan_to_num(np.rint(z / self.unit)), clipped)

    mp.setattr(integers.IntegerRows, "__call__", rounded)


def norm_is_one(mp):
    true = RowQuery.gram_product

    def claimed(self, V):
        bounded = true(self, V)
        bound = dataclasses.replace(
            bounded.bound, l2=self.neighbours.positive(self.clip_norm**2, V.shape[1])
        )
        return gate.Bounded(bound, bounded.answer)

    mp.setattr(RowQuery, "gram_product", claimed)


def float_sum(mp):
    def gram(self):
        bound = gate.Bound("gram", (self.n_features,) * 2, self.clip_norm**2, symmetric=True)

        def answer(step):
            G = np.zeros(bound.shape)
            for block in self._source.blocks():
                A = integers.clip_rows(block, self.clip_norm)
                G += A.T.astype(np.float32) @ A.astype(np.float32)
            return np.rint((G + G.T) / 2 / step).astype(np.int64)

        return gate.Bounded(bound, answer)

    mp.setattr(RowQuery, "gram", gram)


def eager_gram(mp):
    lazy_gram = RowQuery.gram

    def gram(self):
        bounded = lazy_gram(self)
        early = bounded.answer(gate.gaussian_step(bounded.bound, 0.3))
        return gate.Bounded(bounded.bound, lambda step: early)

    mp.setattr(RowQuery, "gram", gram)


def bound_from_data(mp):
    whole = RowQuery.gram

    def gram(self):
        bounded = whole(self)
        blocks = (sp.csr_array(block).toarray() for block in self._source.blocks())
        largest = max((float(np.abs(block).max(initial=1e-3)) for block in blocks), default=1e-3)
        l2 = min(self.clip_norm, largest) ** 2
        return gate.Bounded(gate.Bound("gram", bounded.bound.shape, l2, True, 0.0), bounded.answer)

    mp.setattr(RowQuery, "gram", gram)


def keep_bad_rows(mp):
    def careless(self, Z):
        Z = entrywise(lambda z: np.where(np.isfinite(z), z, 0.0), Z)
        return right(self, Z)

    right = integers.IntegerRows.__call__
    mp.setattr(integers.IntegerRows, "__call__", careless)


def no_limit(mp):
    """No limit on shares, and the session's own look at the sum taken out too."""

    def blind(self, losses):
        delta = self.budget.delta - self.budget.sampler_delta
        return min(self.budget.epsilon, accounting.epsilon_from_losses(losses, delta))

    mp.setattr(gate.PrivacySession, "affordable", lambda self, bound, share, *args: share)
    mp.setattr(gate.PrivacySession, "left", lambda self, kind="gaussian": 1.0)
    mp.setattr(gate.PrivacySession, "_composed_epsilon", blind)


def global_noise(mp):
    mp.setattr(
        words.SystemSource,
        "words",
        lambda self, *key: lambda n: np.random.randint(0, 2**64, n, dtype=np.uint64),
    )


def fixed_source(mp):
    source = words.SeededSource(5)
    mp.setattr(words.SystemSource, "words", lambda self, *key: source.words(*key))


def key_without_scale(mp):
    draw = words.SeededSource.words
    mp.setattr(words.SeededSource, "words", lambda self, serial, name, scale: draw(self, serial))


def nan_epsilon(mp):
    def careless(estimator, name, low, high, **kwargs):
        value = getattr(estimator, name)
        if name == "epsilon" and not value <= 0:
            return 1.0
        return check_real(estimator, name, low, high, **kwargs)

    mp.setattr("skdp.base.check_real", careless)


def noise_floor(mp):
    """A small budget gets no more noise than a middling one."""
    step = gate.gaussian_step
    mp.setattr(gate, "gaussian_step", lambda bound, mu: step(bound, max(mu, 0.01)))


def half_ledger(mp):
    pay = gate.PrivacySession.pay

    def forgetful(self, line, *args):
        pay(self, line._replace(loss=line.loss._replace(value=line.loss.value / 2)), *args)

    mp.setattr(gate.PrivacySession, "pay", forgetful)


def one_median(mp):
    """The clip of residuals from all users of a batch at once, not from each user's own."""
    mp.setattr(
        local_fits,
        "_huber_width",
        lambda R: local_fits._HUBER * np.median(np.abs(R)) * np.ones((len(R), 1, 1)),
    )


def warm_sketch(mp):
    """A sketch of wide rows that starts from some of the rows."""
    mp.setattr("skdp.decomposition._incremental_pca.MOMENT_FEATURES", 2)
    facts = DPIncrementalPCA._facts

    def warm(self, session, X):
        found, shares = facts(self, session, X)
        rows = next(X.blocks())
        rows = rows.toarray() if sp.issparse(rows) else np.nan_to_num(rows)
        size = found["sketch"].shape[1]
        start = np.clip(rows[:size].T, -1, 1) + found["sketch"][:, : len(rows)]
        return found | {"sketch": orthonormal(np.nan_to_num(start))}, shares

    mp.setattr(DPIncrementalPCA, "_facts", warm)


def route_by_storage(mp):
    """Another way where a CSR matrix happens to store every entry."""
    mp.setattr(_base, "GRAM_FEATURES", 2)
    mp.setattr(_base, "SCREENED_FEATURES", 2)
    sparse = _pca.is_sparse

    def is_sparse(source):
        return sparse(source) and source.whole().nnz < math.prod(source.whole().shape)

    mp.setattr(_pca, "is_sparse", is_sparse)


def nothing(mp):
    pass


PCA = DPPCA(n_components=2, clip_norm=1.0)
NULL = "null release"
MUTATIONS = {
    "noise / sqrt 2": ("calibration", check("noise_calibration"), DPPCA(), smaller_noise(2**0.5)),
    "noise / sqrt 2, many runs": ("statistical audit", statistical, PCA, smaller_noise(2**0.5)),
    "noise / sqrt k": ("calibration", check("noise_calibration"), Power(4), smaller_noise(2.0)),
    "sensitivity of the other adjacency": (
        "sensitivity", sensitivity("gram", adjacency="replace"), PCA, other_adjacency,
    ),
    "the same, seen in one fit": (
        "transcript audit", transcript,
        DPPCA(clip_norm=1.0, adjacency="replace", center="none"), other_adjacency,
    ),
    "no clip": ("sensitivity", sensitivity("gram"), PCA, no_clip),
    "no clip, seen in one fit": ("transcript audit", transcript, Power(), no_clip),
    "clip, then round": ("sensitivity", sensitivity("gram"), PCA, clip_then_round),
    "no orthonormalisation": (
        "sensitivity", sensitivity("gram_product", SKEW), Power(), norm_is_one,
    ),
    "no orthonormalisation of an iterate": (
        "transcript audit", transcript, Skewed(epsilon=8.0), norm_is_one,
    ),
    "reused noise": ("calibration", check("noise_calibration"), Power(), reused_noise),
    "noise in one column": ("calibration", check("noise_calibration"), PCA, one_column),
    "un-noised count": (NULL, check("null_release"), CountsRows(), nothing),
    "data-dependent stop": (NULL, check("null_release"), StopsEarly(), nothing),
    "branch on a maximum": (NULL, check("null_release"), BranchesOnMaximum(), nothing),
    "warning about clipped rows": (NULL, check("null_release"), Warns(), nothing),
    "T off by one": ("receipt", check("receipt"), OneStepMore(), no_limit),
    "ledger line at half price": ("receipt", check("receipt"), Power(), half_ledger),
    "a second read through the gate": ("receipt", check("receipt"), ReadsTwice(), nothing),
    "a second read past the gate": (NULL, check("null_release"), ReadsOutside(), nothing),
    "value computed before paying": ("lazy query", lazy("gram"), PCA, eager_gram),
    "statistic before the first payment": (
        "pays first", check("pays_first"), PaysLater(), nothing,
    ),
    "float addition": ("transcript audit", transcript, PCA, float_addition),
    "float32 sum over rows": ("order of rows", order("gram"), PCA, float_sum),
    "bound taken from the data": ("sensitivity", sensitivity("gram"), PCA, bound_from_data),
    "infinite row dropped entry by entry": (
        "bad rows", check("bad_rows"), Power(), keep_bad_rows,
    ),
    "numpy's global generator": ("entropy", check("system_entropy"), PCA, global_noise),
    "the same noise in every fit": ("entropy", check("system_entropy"), PCA, fixed_source),
    "seed used at two budgets": ("seeds", check("seeded_noise"), PCA, key_without_scale),
    "NaN as epsilon": ("budgets", check("bad_budgets"), PCA, nan_epsilon),
    "no more noise for a tiny budget": ("tiny epsilon", check("tiny_epsilon"), PCA, noise_floor),
    "branch on a maximum, tiny budget": (
        "tiny epsilon", check("tiny_epsilon"), BranchesOnMaximum(), nothing,
    ),
    "clip width shared by a batch of users": (
        "company", check("company"), DPPersonalizedRegressor(loss="huber"), one_median,
    ),
    "sketch warm-started from rows": (
        NULL, check("null_release"), DPIncrementalPCA(1, clip_norm=1.0), warm_sketch,
    ),
    "route by what a CSR matrix stores": (
        NULL, check("null_release"), DPPCA(1, clip_norm=1.0), route_by_storage,
    ),
    "the same, seen in one matrix": (
        "storage form", check("storage_form"), DPPCA(1, clip_norm=1.0), route_by_storage,
    ),
    "rows kept on the estimator": (
        "documented attributes", check("documented_attributes"), KeepsRows(), nothing,
    ),
    "clipping in place": ("input", check("input_unmodified"), WritesInput(), nothing),
}  # fmt: skip
RIGHT = {CountsRows, StopsEarly, BranchesOnMaximum, Warns, OneStepMore, ReadsTwice, ReadsOutside,
         PaysLater, KeepsRows, WritesInput, Skewed}  # fmt: skip
TABLE = []


@pytest.fixture(scope="module", autouse=True)
def table():
    yield
    print("\n" + "\n".join(f"{bug:40} {tier:22} {s:6.2f} s" for bug, tier, s in TABLE))


@pytest.mark.thorough
@pytest.mark.parametrize("bug", MUTATIONS)
def test_planted_bug_is_caught(bug, monkeypatch):
    tier, run, estimator, plant = MUTATIONS[bug]
    with monkeypatch.context() as mp:
        plant(mp)
        start = time.process_time()
        with pytest.raises(AssertionError) as caught:
            run(estimator)
        print(bug, "->", str(caught.value)[:230])
        TABLE.append((bug, tier, time.process_time() - start))


def right(estimator):
    return Power() if type(estimator) in RIGHT else estimator


# Many bugs are caught by one check of one estimator: it is silent for all of them, or for none.
SILENT = {(run, repr(right(estimator))): bug for bug, (_, run, estimator, _) in MUTATIONS.items()}


@pytest.mark.deep
@pytest.mark.parametrize("bug", SILENT.values())
def test_the_same_tier_is_silent_on_the_right_code(bug):
    _, run, estimator, _ = MUTATIONS[bug]
    run(right(estimator))


def test_a_dozen_bugs_and_each_tier():
    assert len(MUTATIONS) >= 12
    assert len({tier for tier, *_ in MUTATIONS.values()}) >= 10


@pytest.mark.deep
@pytest.mark.parametrize("check", checks.CHECKS, ids=[check.__name__ for check in checks.CHECKS])
def test_every_check_passes_on_the_toy(check):
    if check.__name__ == "check_joblib":
        pytest.skip("worker processes cannot import a class from a test")
    check("Power", Power())
    check("Power", Power(3, adjacency="replace", epsilon=4.0))
