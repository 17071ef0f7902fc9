"""Views of rows: what is bad stays bad."""

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.data.block_rows import dense, finite_rows
from skdp.data.views import selected


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_keep_the_bad_rows_of_their_sources_bad(sparse):
    """Also where nothing of such a row is stored in the kept columns."""
    X = np.array([[1.0, 0.0, 0.0], [0.0, np.nan, 2.0], [3.0, np.inf, 0.0], [0.0, 0.0, 0.0]])
    (block,) = selected([sp.csr_array(X) if sparse else X], np.array([0, 2]))
    np.testing.assert_array_equal(finite_rows(block), [True, False, False, True])
    np.testing.assert_array_equal(dense(block)[[0, 3]], X[[0, 3]][:, [0, 2]])
