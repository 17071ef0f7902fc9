"""From pairs to a matrix and back to names."""

import numpy as np
import pytest

from skdp.recommend import histories_of_pairs

ITEMS = np.array(["jam", "tea", "ham", "oil"])


def test_each_pair_is_a_cell_whatever_the_order():
    rng = np.random.default_rng(0)
    who, what = rng.integers(0, 30, 400) * 7, ITEMS[rng.integers(0, 4, 400)]
    found = histories_of_pairs(who, what, items=ITEMS)
    expected = np.zeros((len(found.users), 4))
    for user, item in zip(who, what, strict=True):
        expected[np.flatnonzero(found.users == user)[0], np.flatnonzero(item == ITEMS)[0]] = 1.0
    assert np.array_equal(found.matrix.toarray(), expected)
    again = histories_of_pairs(who[::-1], what[::-1], items=ITEMS, users=found.users).matrix
    assert np.array_equal(again.toarray(), expected)
    assert found.matrix.has_canonical_format


def test_what_is_not_in_a_public_list_adds_nothing():
    who, what = ["ann", "bob", "eve"], ["tea", "pie", "jam"]
    found = histories_of_pairs(who, what, items=ITEMS, users=["bob", "ann", "zoe"])
    assert found.matrix.toarray().tolist() == [[0.0] * 4, [0.0, 1.0, 0.0, 0.0], [0.0] * 4]
    assert found.users.tolist() == ["bob", "ann", "zoe"]


def test_the_largest_value_of_a_pair_counts_and_names_come_back():
    values = [1.0, 5.0, 3.0]
    found = histories_of_pairs([1, 1, 2], ["tea"] * 3, items=ITEMS, values=values)
    assert found.matrix.toarray()[:, 1].tolist() == [5.0, 3.0]
    assert found.names([[1, -1]]).tolist() == [["tea", None]]


def test_one_strange_name_changes_no_other_pair():
    who, what = [1, 2, 2**53, 2**53 + 1], [7, 8, 7, 9]
    plain = histories_of_pairs(who, what, items=[7, 8, 9])
    for name in ("1", 1.5, None, float("nan"), ["a"], ("a", 1)):
        one = histories_of_pairs([*who, name], [*what, 8], items=[7, 8, 9]).matrix
        assert np.array_equal(one[:4].toarray(), plain.matrix.toarray())
        other = histories_of_pairs([*who, 5], [*what, name], items=[7, 8, 9]).matrix
        assert np.array_equal(other[:4].toarray(), plain.matrix.toarray())


def test_a_pair_without_a_user_adds_nothing():
    """Names that are missing equal nothing: each pair of one person would be a row of its own."""
    pandas = pytest.importorskip("pandas")
    for missing in (None, float("nan"), pandas.NA, pandas.NaT):
        found = histories_of_pairs([missing, 1, missing], ["tea", "jam", "jam"], items=ITEMS)
        assert found.users.tolist() == [1]
        assert found.matrix.toarray().tolist() == [[1.0, 0.0, 0.0, 0.0]]
    found = histories_of_pairs(np.array([np.nan, 2.0, np.nan]), ["tea"] * 3, items=ITEMS)
    assert found.users.tolist() == [2.0] and found.matrix.sum() == 1


def test_values_that_are_no_numbers_are_not_quoted():
    with pytest.raises(ValueError, match="must hold numbers") as caught:
        histories_of_pairs([1], ["tea"], items=ITEMS, values=["secret"])
    assert caught.value.__context__ is None and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1, 2], ["tea"], {"items": ITEMS}), "same length"),
        (([1], ["tea"], {"items": ["tea", "tea"]}), "repetitions"),
        (([1], ["tea"], {"items": ITEMS, "users": []}), "'users'"),
        (([1], ["tea"], {"items": ITEMS, "values": [1, 2]}), "values"),
    ],
)
def test_refusals(given, message):
    who, what, options = given
    with pytest.raises(ValueError, match=message):
        histories_of_pairs(who, what, **options)
