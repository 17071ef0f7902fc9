"""The made table has the columns that default fits are judged on."""

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from skdp.datasets import make_table


def test_columns_of_a_real_table():
    X, y, names = make_table(5000, names=True, random_state=0)
    column = dict(zip(names, X.T, strict=True))
    assert X.shape == (5000, len(names))
    for share in (50, 20, 5, 1):
        assert set(np.unique(column[f"dummy_{share}"])) == {0.0, 1.0}
        assert abs(column[f"dummy_{share}"].mean() - share / 100) < 0.03
    assert np.mean(column["amount"] == 0) > 0.8
    assert np.ptp(column["constant"]) == np.ptp(column["zero"]) == 0
    assert len(np.unique(column["id"])) == 5000
    assert np.corrcoef(column["income"], column["income_copy"])[0, 1] > 0.999
    assert np.std(column["ppm"]) < 1e-5 < 1e3 < np.std(column["income"])
    Z = StandardScaler().fit_transform(X)
    assert 0.7 < Ridge().fit(Z, y).score(Z, y) < 0.9
    again, same = make_table(5000, random_state=0)
    np.testing.assert_array_equal(X, again)
    np.testing.assert_array_equal(y, same)
