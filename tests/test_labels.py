"""One label of another type changes no other record: no list is cast to a common dtype."""

import numpy as np
import pytest
from sklearn.base import clone

from skdp import DPRidge, DPRidgeClassifier
from skdp._validation import as_labels, check_labels, class_numbers
from skdp.federated import AggregationConfig, PersonalizedClient
from skdp.model_selection import IndependentKFold, WithinGroupKFold, make_private_scorer
from skdp.regression import DPPersonalizedClassifier
from skdp.testing import record_transcript, seeded_entropy
from tools.outcomes import refuses

# Tiny fits find little; the tests of the estimators cover their warnings.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

RNG = np.random.default_rng(0)
N, LARGE = 60, 2**53 + 1
X = RNG.standard_normal((N, 3))
Y = (X[:, 0] > 0).astype(int)
USERS = np.arange(N) // 5
ODD = ["x", "1", b"1", 0.5, 1e300, 2**64, (0, 1), [0, 1], object(), 1 + 2j]


def name_of(value):
    """The address of an object differs between test processes."""
    return "object" if type(value) is object else repr(value)


PLAIN = DPRidgeClassifier(classes=[0, 1], clip_norm=2.0, epsilon=1.0)
PERSONAL = DPPersonalizedClassifier(1, classes=[0, 1], epsilon=50.0)
OF_PERSONS = DPRidgeClassifier(classes=[0, 1], clip_norm=2.0, epsilon=10.0, privacy_unit="group")
MODELS = {"plain": (PLAIN, {}), "personal": (PERSONAL, {"groups": USERS}),
          "of persons": (OF_PERSONS, {"groups": USERS})}  # fmt: skip


def with_one(label, classes=(0, 1)):
    """Return labels as a list, the fourth of which is another."""
    y = [classes[code] for code in Y]
    y[3] = label
    return y


def coefficients(model, y, **options):
    with seeded_entropy(0):
        fitted = clone(model).fit(X, y, **options)
    return fitted.coef_ if hasattr(fitted, "coef_") else fitted.global_coef_


@pytest.mark.thorough
@pytest.mark.parametrize("odd", ODD, ids=name_of)
@pytest.mark.parametrize("name", MODELS)
def test_a_label_of_another_type_takes_only_itself_out(name, odd):
    model, options = MODELS[name]
    expected = coefficients(model, with_one(7), **options)
    assert not np.array_equal(expected, coefficients(model, list(1 - Y), **options))
    np.testing.assert_array_equal(expected, coefficients(model, with_one(odd), **options))


@pytest.mark.parametrize("name", MODELS)
def test_a_label_that_is_missing_is_an_error(name):
    model, options = MODELS[name]
    for missing in (None, np.ma.masked):
        with pytest.raises(ValueError, match="y contains NaN: leave out rows that have no target"):
            coefficients(model, with_one(missing), **options)


def test_a_client_of_several_users_reads_each_label_by_itself():
    """Otherwise one user of a client would remove the others."""
    sent = []
    for odd in (7, "x", 0.5, 2**64):
        client = PersonalizedClient(
            PERSONAL, X, with_one(odd), AggregationConfig(4, 1, 1), groups=USERS
        )
        units = np.ones(3), np.full(1, 0.5), 0.5
        sent.append(client._query.pooled_regression_moments(*units).answer(1e-6))
    assert np.any(sent[0])
    for other in sent[1:]:
        np.testing.assert_array_equal(other, sent[0])


@pytest.mark.parametrize("model", [PLAIN, PERSONAL], ids=["plain", "personal"])
def test_large_integers_beside_a_float_stay_apart(model):
    options = {"groups": USERS} if model is PERSONAL else {}
    model = type(model)(**model.get_params() | {"classes": [LARGE - 1, LARGE]})
    expected = coefficients(model, with_one(7, (LARGE - 1, LARGE)), **options)
    found = coefficients(model, with_one(0.5, np.array([LARGE - 1, LARGE])), **options)
    np.testing.assert_array_equal(expected, found)


def test_a_user_of_each_row_is_one_column():
    assert check_labels(USERS[:, None]).tolist() == USERS.tolist()
    for users in (np.zeros((N, 2)), [USERS], 3.0):
        refuses(ValueError, "'groups' must have one dimension", check_labels, users)


@pytest.mark.parametrize("odd", ["x", 0.5, LARGE, None])
def test_a_user_of_another_type_is_refused_before_any_cost(odd):
    """Next to a string 10 comes before 9, next to a float two users beyond 2**53 are one."""
    users = list(LARGE + USERS)
    users[3] = odd
    if odd == LARGE:
        assert check_labels(users).tolist() == users
        return
    fitted = PLAIN.fit(X, Y)
    with record_transcript() as transcript:
        for unit_of in (
            lambda: make_private_scorer("zero_one", (0, 1), privacy_unit="group")(
                fitted, X, Y, groups=users
            ),
            lambda: PERSONAL.fit(X, Y, groups=users),
            lambda: next(WithinGroupKFold(2).split(X, groups=users)),
            lambda: next(IndependentKFold(2).split(X, groups=users)),
        ):
            with pytest.raises(ValueError, match=r"[Uu]ser|[Gg]roup label"):
                unit_of()
    assert not transcript


@pytest.mark.thorough
@pytest.mark.parametrize("odd", [*ODD, None], ids=name_of)
def test_a_private_score_counts_each_label_by_itself(odd):
    others = np.arange(N) != 3
    numbers = DPRidge(clip_norm=2.0, target_bounds=(-1, 2))
    for model, loss in ((PLAIN, "zero_one"), (numbers, "squared_error")):
        model.fit(X, Y)
        scorer = make_private_scorer(loss, (0, 1))
        expected, found = (
            scorer._losses_of(model, X, np.asarray(as_labels(with_one(label))))
            for label in (7, odd)
        )
        np.testing.assert_array_equal(expected()[others], found()[others])


def test_what_is_exact_in_one_dtype_gets_it():
    for labels in ([1, 2], ["a", "bb"], [True, False], [0.5, 2.0], [1, 2.5], []):
        assert as_labels(labels).dtype == np.asarray(labels).dtype
    for labels in ([1, "1"], ["a\0", "a"], [LARGE, 0.5], [1, None], [[1], [1, 2]]):
        assert as_labels(labels).tolist() == labels
    given = np.array([1, 2])
    assert as_labels(given) is given


def test_classes_are_looked_up_by_value():
    classes = np.array([0, 1])
    assert class_numbers([1.0, True, "1", np.nan, [1]], classes).tolist() == [1, 1, -1, -1, -1]
    assert class_numbers(np.ma.masked_equal([0, 1], 1), classes).tolist() == [0, -1]
