"""Numbers of rows that are kept where the rows are."""

from functools import partial

import numpy as np

from skdp.data.blocks import row_source
from skdp.data.numbers import RowColumns


def first(block):
    return (block[:, 0],)


def shifted(columns, by):
    return columns["first"] + np.sum(by)


def test_numbers_are_a_function_of_kept_columns():
    X = np.arange(12.0).reshape(6, 2)
    columns = RowColumns(row_source(X), first, "first")
    for by in (1.0, np.ones(3)):
        numbers = columns.numbers(partial(shifted, by=by))
        total = numbers.sum(lambda values: np.asarray(values.sum(), np.int64))
        assert total == X[:, 0].sum() + 6 * np.sum(by)
