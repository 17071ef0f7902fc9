"""The configuration of a secure sum: masks, colluders, drop-outs, and a curious client."""

import pickle

import pytest

from skdp.exceptions import PrivacyWarning
from skdp.federated import AggregationAbortedError, AggregationConfig
from skdp.privacy.noise.integers import PART_SIGMA_INT


@pytest.mark.parametrize(("n_clients", "n_dropouts"), [(2, 0), (3, 1), (12, 0)])
def test_without_colluders_a_client_can_subtract_its_own_noise(n_clients, n_dropouts):
    needed = rf"for it mu is 1\.\d+ times .* needs {n_dropouts + 3} clients or more"
    with pytest.warns(PrivacyWarning, match=needed):
        config = AggregationConfig(n_clients, n_colluders=0, n_dropouts=n_dropouts)
    assert AggregationConfig(n_dropouts + 3, 1, n_dropouts).against_clients == 1.0
    left = (config.n_honest - 1) * PART_SIGMA_INT**2 - 1 / 12  # variance, without its own part
    ratio = config.effective_sigma / left**0.5
    assert config.against_clients == pytest.approx(ratio, rel=1e-12)
    assert config.against_clients > 1


def test_auto_follows_the_rules_against_a_lying_server():
    for n, colluders, dropouts in [(60, 9, 40), (100, 1, 0), (100, 5, 20), (1000, 30, 50)]:
        config = AggregationConfig(n, colluders, dropouts)
        k, t = config.degree, config.shares_needed
        assert k == n - 1 or (k % 2 == 0 and k >= 20)
        assert k >= min(n - 1, colluders + 2 * dropouts + 1) and t == k - dropouts
        assert 2 * t > k + colluders or k == n - 1
        assert config.against_clients == 1.0  # a curious client has its place


@pytest.mark.parametrize(("counts", "message"), [
    ([1], r"'n_clients' parameter of AggregationConfig must be an int in the"),
    ([5, -1], "'n_colluders' parameter"), ([5, 1, True], "'n_dropouts' parameter"),
    ([5, 2, 2], r"n_colluders \+ n_dropouts \+ 2"),
])  # fmt: skip
def test_configurations_that_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        AggregationConfig(*counts)


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(AggregationAbortedError("gone", opened=True)))
    assert error.opened and str(error) == "gone"
