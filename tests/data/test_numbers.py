"""Numbers of rows that are kept where the rows are."""

from functools import partial

import numpy as np

from skdp.data.blocks import row_source
from skdp.data.numbers import RowColumns


def first(block):
    return (block[:, 0],)


def shifted(columns, by):
    return columns["first"] + np.sum(by)


def test_a_search_asks_of_the_same_numbers():
    """They are put in order once, until others are asked for; arrays tell of no equality."""
    X = np.arange(12.0).reshape(6, 2)
    columns = RowColumns(row_source(X), first, "first")
    one = columns.numbers(partial(shifted, by=1.0))
    assert columns.numbers(partial(shifted, by=1.0)) is one
    other = columns.numbers(partial(shifted, by=2.0))
    assert other is not one
    assert np.array_equal(one.ordered + 1.0, other.ordered)
    assert columns.numbers(partial(shifted, by=1.0)) is not one
    by = np.ones(2)
    array = columns.numbers(partial(shifted, by=by))
    by *= 2.0
    again = columns.numbers(partial(shifted, by=by))
    assert again is not array
    assert np.array_equal(again.ordered, X[:, 0] + 4.0)
