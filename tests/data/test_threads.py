"""What is computed for one user is that user's: no warning, and no thread that joins in."""

import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from skdp.data.blocks import one_blas_thread, quietly


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_trouble_with_floats_is_silent_inside_and_only_there():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(quietly(lambda x: np.log(x) * x)(np.zeros(1)))
        with pytest.raises(RuntimeWarning):
            np.log(np.zeros(1))


def test_blas_has_one_thread_inside_and_as_many_as_before_outside():
    before = blas_threads()
    with one_blas_thread():
        assert set(blas_threads()) <= {1}
        assert quietly(lambda _: blas_threads())(None) == [1] * len(before)
    assert blas_threads() == before
