"""Entries and edges at different servers: A is the sum of parts; one entry is in one of them."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPTruncatedSVD, PrivacyLedger, federated
from skdp.exceptions import PrivacyError
from skdp.federated._messages import Call
from skdp.testing import seeded_entropy
from tools.federation import Wire, noise_of, plain_sum, secure_sum
from tools.outcomes import refuses

S, M, N = 5, 120, 80
CONFIG = federated.AggregationConfig(S, 1, 1)
UNITS = ["entry", "edge", "entry_change", "edge_change"]
BOUNDS = {"entry": {"unit_bound": (-1.0, 1.0)}, "edge": {"unit_bound": (-1.0, 1.0)}}


def matrix(unit, seed=0):
    """A leading pair that is spread over rows and columns, within the bounds."""
    rng = np.random.default_rng(seed)
    u, v = rng.choice([-1.0, 1.0], M), rng.choice([-1.0, 1.0], N)
    if "edge" in unit:
        A = np.outer(v, v) * 0.8
        np.fill_diagonal(A, 0.0)
        return A, v / math.sqrt(N)
    return np.outer(u, v) * 0.8, v / math.sqrt(N)


def parts_of(A, unit):
    """Entries at random holders; rows of a graph at the server of each node, so edges at two."""
    home = np.random.default_rng(1).integers(0, S, (len(A), 1) if "edge" in unit else A.shape)
    return [sp.csr_array(A * (home == i)) for i in range(S)]


def clients_of(unit, parts, **options):
    same = {"privacy_unit": unit, "epsilon": 8.0} | BOUNDS.get(unit, {})
    return [federated.PowerMethodClient(part, CONFIG, **same | options) for part in parts]


def estimator(unit, **options):
    same = {"privacy_unit": unit, "epsilon": 8.0} | BOUNDS.get(unit, {})
    return DPTruncatedSVD(1, **same | options)


def fit(unit, aggregator, **options):
    rows = N if "edge" in unit else M
    server = federated.FederatedPowerMethod(estimator(unit, **options), CONFIG)
    return server.fit(aggregator, n_features=N, n_samples=rows)


@pytest.mark.thorough
@pytest.mark.parametrize("unit", UNITS)
def test_same_releases_and_receipt_as_the_central_fit(unit):
    """The sums are those of the whole matrix, but for one rounding at each client."""
    A, v = matrix(unit)
    clients = clients_of(unit, parts_of(A, unit))
    wire = Wire(clients)
    with noise_of(0):
        svd = fit(unit, wire)
    whole = clients_of(unit, [A])[0]._query
    assert max(distance for _, _, distance in wire.gaps(whole)) <= 2 * S
    assert abs(svd.components_[0] @ v) > 0.999
    central = estimator(unit, algorithm=("power" if "edge" in unit else "alternating")).fit(A)
    names = [[line.name for line in fitted.releases_] for fitted in (svd, central, clients[0])]
    assert names[0] == names[1] == names[2]
    assert svd.privacy_spent_.epsilon == clients[0].close().epsilon == 8.0
    assert svd.privacy_spent_.unit == unit
    lossy = secure_sum(clients_of(unit, parts_of(A, unit)), CONFIG, lost=lambda i, kind: i == S - 1)
    with seeded_entropy(0):
        assert abs(fit(unit, lossy).components_[0] @ v) > 0.9


def test_a_client_believes_its_own_bounds():
    A, _ = matrix("entry")
    parts = parts_of(A, "entry")
    wide = clients_of("entry", parts, unit_bound=(-5.0, 5.0))
    refuses(federated.InvalidMessageError, "too fine", fit, "entry", plain_sum(wide))
    small = clients_of("entry", [part[:50] for part in parts])
    refuses(TypeError, "shape", fit, "entry", plain_sum(small))
    paid = small[1].releases_
    refuses(federated.AggregationAbortedError, None, fit, "entry", secure_sum(small, CONFIG))
    assert small[1].releases_ == paid
    query = federated.power_method.InteractionQuery(np.eye(3), degree_floor=1, adjacency="replace")
    asked = query, Call("columns", (np.array([1, 1]),)), federated.power_method._SIGNATURES
    refuses(PrivacyError, "not valid", federated._clients.checked_call, *asked)


def test_a_client_names_the_size_of_its_unit_in_a_ledger():
    """A loss for changes of one size does not add up with a loss for another size."""
    A, _ = matrix("entry_change")
    part = parts_of(A, "entry_change")[:1]
    with PrivacyLedger(mu=9.0) as ledger:
        clients_of("entry_change", part, unit_bound=1.0)
        refuses(PrivacyError, "do not compose", clients_of, "entry_change", part, unit_bound=2.0)
        ledger._refused.clear()
    assert [entry.unit for entry in ledger.entries] == ["entry_change change of norm at most 1.0"]


def test_what_is_no_sum_of_entries():
    aggregator = federated.UnmaskedAggregator([])
    for options in ({"algorithm": "gram"}, {"algorithm": "one_shot", "unit_bound": (0, 1)}):
        refuses(ValueError, "cannot use sums over clients", fit, "entry", aggregator, **options)
    for options in (
        {"unit_bound": (1.0, 2.0)}, {"unit_bound": -1.0}, {"unit_bound": (0, 1e155)},
        {"privacy_unit": "entry_change", "adjacency": "replace"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"unit_bound|adjacency"):
            federated.PowerMethodClient(np.eye(N), CONFIG, **{"privacy_unit": "entry"} | options)
    refuses(TypeError, "must be an AggregationConfig", federated.PowerMethodClient, np.eye(N), 3)
    # Rows may stand in the place of another argument: no error quotes them.
    said, rows = "Got a value of type ndarray", np.eye(N)
    refuses(TypeError, said, federated.PowerMethodClient, rows, rows)
    refuses(ValueError, said, federated.PersonalizedClient, rows, rows[0], CONFIG, CONFIG)
    with pytest.raises(ValueError, match="n_samples"):
        federated.FederatedPowerMethod(estimator("entry"), CONFIG).fit(aggregator, n_features=N)
