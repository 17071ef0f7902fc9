"""One BLAS thread while it is held, and as many as before when it is not."""

import threading
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from skdp.base import _NARROW, BaseDPEstimator, atomic
from skdp.data.blocks import one_blas_thread, quietly
from skdp.data.units import UserRows
from skdp.queries.users import UserQuery
from tools.outcomes import refuses


def blas_threads():
    return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("a BLAS without threads")
        yield


def test_overlaps_leave_as_many_as_there_were():
    entered, leave, seen = threading.Event(), threading.Event(), []

    def hold():
        with one_blas_thread():
            entered.set()
            leave.wait(10)
            seen.append(blas_threads())

    other = threading.Thread(target=hold)
    with one_blas_thread():
        other.start()
        assert entered.wait(10)
        assert blas_threads() == {1}
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {1}  # the other one still works
    leave.set()
    other.join()
    assert seen == [{1}]
    assert blas_threads() == {2}
    with one_blas_thread():
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_a_number_of_another_thread_is_overruled():
    """A notebook may have set one, which since threadpoolctl 3.8 no other thread could change."""
    seen = []

    def fit():
        with one_blas_thread():
            seen.append(blas_threads())
            threadpool_limits(2, user_api="blas")  # by other code in the middle of it
            seen.append(quietly(lambda _: blas_threads())(None))

    threadpool_limits(2, user_api="blas")  # this thread has it from here on
    other = threading.Thread(target=fit)
    other.start()
    other.join()
    assert seen == [{1}, {1}]
    assert blas_threads() == {2}


def test_an_error_restores_the_threads():
    with pytest.raises(RuntimeError), one_blas_thread():
        raise RuntimeError
    assert blas_threads() == {2}
    assert quietly(lambda _: blas_threads())(None) == {1}


def test_trouble_with_floats_is_silent_inside_and_only_there():
    """Results for one user are private: no warning reveals them."""
    with warnings.catch_warnings(action="error"):
        assert np.isnan(quietly(lambda x: np.log(x) * x)(np.zeros(1)))
        refuses(RuntimeWarning, None, np.log, np.zeros(1))


def test_sums_of_users_are_made_on_one():
    """With more, bits of a sum would depend on what else the process does."""
    seen, users = [], UserRows(np.ones((2, 1)), np.ones((2, 1)), np.arange(2), False)

    def local(batch):
        seen.append(blas_threads())
        return np.ones((batch.shape[0], 1))

    UserQuery(users, adjacency="add_remove").sums("mean", local, (((1,), 1.0),)).answer(1.0)
    assert seen == [{1}]


class _Seen(BaseDPEstimator):
    """Looks at the number of threads where an estimator fits."""

    @atomic
    def fit(self, X, y=None):
        self.threads_ = blas_threads()
        if y is not None:
            raise ValueError
        return self


@pytest.mark.parametrize(("width", "expected"), [(_NARROW, 1), (_NARROW + 1, 2)])
def test_fits_of_few_columns_take_one(width, expected, tmp_path):
    X, file = np.zeros((3, width)), tmp_path / "rows.npy"
    np.save(file, X)
    for rows in (X, X.tolist(), [file], (str(file), str(file))):
        assert _Seen().fit(rows).threads_ == {expected}
    assert _Seen().fit(X=X).threads_ == {expected}
    refuses(ValueError, None, _Seen().fit, X, y=1)
    assert blas_threads() == {2}
    for unknown in ([], [0.0], ["missing.npy"], [X], None):  # their errors come from the fit
        assert _Seen().fit(unknown).threads_ == {2}
