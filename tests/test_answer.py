"""One type for what is public, wherever it comes from."""

import numpy as np
import pytest

from skdp.answer import Answer, released_count
from skdp.privacy.gate.bounds import Bound, Bounded, PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.noise.words import SystemSource
from skdp.privacy.streams.continual import paid_stream


def test_every_verb_gives_the_same_type():
    budget = PrivacyBudget(1.0, 1e-6)
    session = PrivacySession(budget, source=SystemSource(), adjacency="add_remove", unit="row")
    bound = Bound("sums", (2,), 1.0, slack=0.0)

    def nothing(step):
        return np.zeros(2, np.int64)

    stream = paid_stream(session, bound, 0.3, 2)
    stream.add(nothing)
    accumulator = session.accumulate(bound, 0.3)
    answers = [session.release(Bounded(bound, nothing), 0.4), accumulator.open(), stream.open()]
    assert [type(answer) for answer in answers] == [Answer] * 3
    assert all(answer.noise_scale > 0 and answer.value.any() for answer in answers)


@pytest.mark.parametrize(
    ("value", "noise_scale", "n"),
    [(80.0, 3.0, 80.0), (np.float64(-5), 3.0, 6.0), (np.array(0.2), 0.0, 1.0), (0.2, 0.4, 1.0)],
)
def test_a_released_count_can_be_divided_by(value, noise_scale, n):
    assert released_count(*Answer(value, noise_scale)) == n
