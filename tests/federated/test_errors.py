"""Errors of secure sums."""

import pickle

from skdp.federated import AggregationAborted


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(AggregationAborted("gone", opened=True)))
    assert error.opened and str(error) == "gone"
