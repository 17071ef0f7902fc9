"""What a configuration says about a client that is curious itself."""

import math

import pytest

from skdp.exceptions import PrivacyWarning
from skdp.federated import AggregationConfig
from skdp.federated.noise_parts import NoiseParts
from skdp.privacy.accounting.losses import epsilon_from_mu_delta, mu_from_epsilon_delta


@pytest.mark.parametrize(("n_clients", "n_dropouts"), [(2, 0), (3, 1), (12, 0)])
def test_without_colluders_a_client_sees_through_its_own_noise(n_clients, n_dropouts):
    with pytest.warns(PrivacyWarning, match="against another client mu is"):
        config = AggregationConfig(n_clients, n_colluders=0, n_dropouts=n_dropouts)
    claimed = NoiseParts(n_clients, 0, n_dropouts).effective_sigma
    left = NoiseParts(n_clients, 1, n_dropouts).effective_sigma
    assert config.against_clients == pytest.approx(claimed / left, rel=1e-12)
    assert config.against_clients > 1


def test_two_clients_who_trust_nobody():
    with pytest.warns(PrivacyWarning, match="1.41 times"):
        config = AggregationConfig(2, n_colluders=0)
    mu = mu_from_epsilon_delta(1.0, 1e-6) * config.against_clients
    assert config.against_clients == math.sqrt(2)
    assert epsilon_from_mu_delta(mu, 1e-6) == pytest.approx(1.45, abs=0.005)


def test_with_a_place_for_a_curious_client_the_receipt_holds():
    assert AggregationConfig(4, n_colluders=1).against_clients == 1.0
