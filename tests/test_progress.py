"""Callbacks receive names and numbers of releases, and nothing of the data."""

import numpy as np
import pytest

import skdp
from skdp.datasets import make_block_graph
from skdp.exceptions import PrivacyError
from tools.outcomes import refuses

# Few rows, or noise alone: warnings of fits are not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

pytest.importorskip("sklearn.callback")
RNG = np.random.default_rng(0)
X, M = RNG.standard_normal((300, 6)), RNG.standard_normal((2000, 2, 2))


class Spy:
    """Records the arguments of hooks."""

    def __init__(self):
        self.events, self.data = [], []

    def setup(self, estimator, context):
        self.events.append(("setup", None))

    def on_fit_task_begin(
        self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None
    ):
        self.events.append(("begin", context.task_name))
        self.data += [X, y, metadata, fitted_estimator]
        self.data += [v for v in vars(estimator).values() if isinstance(v, np.ndarray)]

    def on_fit_task_end(
        self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None
    ):
        self.events.append(("end", context.task_name))
        self.data += [X, y, metadata, fitted_estimator]
        return True  # asks to stop: nothing does

    def teardown(self, estimator, context):
        self.events.append(("teardown", None))


FITS = {
    "pca": (skdp.DPPCA(1, clip_norm=3.0), (X,)),
    "graph": (skdp.DPSpectralEmbedding(1), make_block_graph(30, 2, 5.0, 12.0, random_state=0)[:1]),
    "trace": (skdp.DPTraceRegressor(1), (M, M[:, 0, 0])),
    "increments": (skdp.DPIncrementalPCA(2), (X,)),
    "dense": (skdp.DPLowRankFactorizer(2), (X,)),
    "sketches": (skdp.DPLowRankFactorizer(2, method="two_sketch"), (X,)),
    "ridge": (skdp.DPRidge(), (X, X[:, 0])),
    "classes": (skdp.DPRidgeClassifier(classes=[0, 1]), (X, np.arange(300) % 2)),
    "scaler": (skdp.DPStandardScaler(), (X,)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FITS)
def test_tasks_are_the_ledger(name):
    estimator, data = FITS[name]
    spy = Spy()
    estimator.set_callbacks(spy).fit(*data)
    expected = [("setup", None), ("begin", "fit")]
    for line in estimator.releases_:
        expected += [("begin", line.name), ("end", line.name)]
    assert spy.events == [*expected, ("end", "fit"), ("teardown", None)]
    assert all(value is None for value in spy.data)
    assert not any(name.startswith("_callback") for name in vars(estimator))
    estimator.set_callbacks()


def test_callbacks_do_not_change_the_result():
    def components(callbacks):
        with pytest.warns(match="random_state"):
            model = skdp.DPPCA(2, clip_norm=3.0, random_state=0).set_callbacks(*callbacks).fit(X)
        return model.components_

    assert np.array_equal(components([]), components([Spy()]))


def test_a_parameter_that_changes_without_a_callback_ends_the_fit():
    class Made:  # what makes an object need not name its parameters
        def __new__(cls, *args, **kwargs):
            return super().__new__(cls)

    class Changing(Made, skdp.DPPCA):
        def _fit_session(self, *args):
            self.delta = 1e-7
            return super()._fit_session(*args)

    refuses(PrivacyError, "'delta' was changed during", Changing(1).fit, X)


@pytest.mark.parametrize("text", ["stop", "'adjacency' was changed during the fit"])
def test_failed_fit_is_torn_down_and_leaves_nothing(text):
    class Failing(Spy):
        def on_fit_task_begin(self, estimator, context):
            super().on_fit_task_begin(estimator, context)
            if text != "stop":  # changes it, and changes it back
                estimator.adjacency = "replace" if context.task_name == "fit" else "add_remove"
            elif context.task_name == "count":
                raise PrivacyError(text)

    spy = Failing()
    estimator = skdp.DPPCA(1, clip_norm=3.0).set_callbacks(spy)
    before = dict(vars(estimator))
    refuses(PrivacyError, text, estimator.fit, X)
    assert spy.events[-1] == ("teardown", None)
    assert vars(estimator) == before


def test_removed_and_refused():
    spy = Spy()
    estimator = skdp.DPPCA(1, clip_norm=3.0).set_callbacks(spy)
    estimator.set_callbacks().fit(X)
    assert spy.events == []
    for wrong in (Spy, 1):
        refuses(TypeError, "FitCallback protocol", estimator.set_callbacks, wrong)


def test_a_stream_of_many_releases_works_with_a_callback():
    model = skdp.DPIncrementalPCA(2, clip_norm=1.0, max_releases=3).set_callbacks(Spy())
    for part in np.array_split(X, 3):
        model.partial_fit(part)
    assert model.n_stream_releases_ == 3
    options = {"privacy_unit": "entry", "sketch": "sparse", "max_releases": 2}
    factorizer = skdp.DPLowRankFactorizer(2, matrix_shape=X.shape, **options).set_callbacks(Spy())
    for _ in range(2):
        factorizer.update_matrix(X / 2).release()
    assert factorizer.n_stream_releases_ == 2
