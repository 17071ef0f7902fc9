"""A synthetic stream of events."""

import numpy as np
import pytest

from skdp.datasets import make_event_stream


@pytest.mark.deep
def test_event_stream():
    rows, columns, deltas, times = events = make_event_stream(
        100_000, (60, 40), 3, n_steps=8, deleted=0.2, random_state=0
    )
    assert deltas.sum() == 100_000 - 2 * 20_000
    assert (np.diff(times) >= 0).all() and set(times) == set(range(8))
    counts = np.zeros((60, 40))
    for cut in range(2500, 100_001, 2500):  # nothing is taken back before it arrived
        counts[:] = 0
        np.add.at(counts, (rows[:cut], columns[:cut]), deltas[:cut])
        assert counts.min() >= 0
    values = np.linalg.svd(counts, compute_uv=False)
    assert values[2] > 1.5 * values[3]
    assert np.array_equal(
        events.rows,
        make_event_stream(100_000, (60, 40), 3, n_steps=8, deleted=0.2, random_state=0)[0],
    )
    with pytest.raises(ValueError, match="'deleted' parameter"):
        make_event_stream(10, deleted=0.5)
