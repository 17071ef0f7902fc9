"""The public face of a query: releases, narrowed queries, and nothing else."""

import numpy as np
import pytest

from skdp.answer import Answer
from skdp.exceptions import PrivacyError
from skdp.privacy.gate.ask import Ask
from skdp.privacy.gate.bounds import Bound, Bounded, PrivateQuery

VECTOR = Bound("vector", (4,), 2.0)


class Verbs:
    """A session that answers with what it was asked for."""

    def release(self, bounded, share):
        return Answer(bounded.answer(1.0), share)

    def choose(self, bounded, share):
        return bounded.bound.name

    def forfeit(self, share):
        self.left_out = share


class Query(PrivateQuery):
    _rows = 3

    def size(self):
        return self._rows

    def total(self, factor=1):
        return Bounded(VECTOR, lambda step: np.full(4, factor))

    def best(self):
        return Bounded(Bound("best", (4,), 1.0, linf=1.0), None)

    def narrowed(self):
        return Query()


def test_an_ask_hands_out_releases_only():
    ask = Ask(Verbs(), Query())
    assert ask.total(2, share=0.1).value.tolist() == [2] * 4
    assert ask.narrowed().total(share=0.1).noise_scale == 0.1
    assert ask.best(share=0.5) == "best"
    for name in ("_rows", "_read", "nothing"):
        with pytest.raises(AttributeError, match="no release"):
            getattr(ask, name)
    with pytest.raises(PrivacyError, match="neither a release"):
        ask.size()
    with pytest.raises(TypeError, match="share"):
        ask.total()


def test_what_is_left_out_is_paid():
    verbs = Verbs()
    Ask(verbs, Query()).forfeit(0.25)
    assert verbs.left_out == 0.25
