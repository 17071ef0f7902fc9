"""One type for what is public, wherever it comes from."""

import numpy as np

from skdp.answer import Answer
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
