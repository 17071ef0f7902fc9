"""The public face of a query: releases, restricted queries, and nothing else."""

import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy.gate.bounds import Ask, Bound, Bounded, PrivateQuery

VECTOR = Bound("vector", (4,), 2.0)


class Session:
    """A session that answers with what it was asked for."""

    def answer(self, path, bounded, share):
        return path, bounded.bound, share


class Query(PrivateQuery):
    _rows = 3

    def size(self):
        return self._rows

    def total(self, factor=1):
        return Bounded(VECTOR, None)

    def restricted(self, level):
        return Query()


def test_an_ask_hands_out_releases_only():
    ask = Ask(Session(), Query())
    assert ask.total(2, share=0.1) == ((("total", (2,)),), VECTOR, 0.1)
    path, _, _ = ask.restricted(3.0).restricted(2.0).total(share=0.1)
    assert path == (("restricted", (3.0,)), ("restricted", (2.0,)), ("total", ()))
    for name in ("_rows", "_read", "nothing"):
        with pytest.raises(AttributeError, match="no release"):
            getattr(ask, name)
    with pytest.raises(PrivacyError, match="neither a release"):
        ask.size()
    with pytest.raises(TypeError, match="share"):
        ask.total()
