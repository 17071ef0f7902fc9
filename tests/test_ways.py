"""The ways cover what goes together, and what does not is refused by its words."""

import itertools
import re

import pytest

from skdp import DPRidge, DPRidgeClassifier, DPTraceRegressor
from tools import ways
from tools.data import null_release_data

# Other names of a value of the axis; words of scikit-learn, and loops of streams; and what needs
# candidates as wide as the data (tests/solvers/test_personalization.py).
ALIASES = {"randomized", "arpack", "full", "covariance_eigh", "dense", "exponential", "gram"}
OTHER = {"power_iteration_normalizer", "mechanism", "affinity"}


@pytest.mark.parametrize("cls", ways.AXES, ids=lambda cls: cls.__name__)
def test_each_pair_is_in_a_way_or_goes_together_with_nothing(cls):
    """By brute force over all values, without the search that made the ways."""
    covered = set()
    for estimator in [*ways.ESTIMATORS, *ways.FURTHER]:
        if type(estimator) is cls:
            covered |= ways.pairs_of(ways.taken(estimator))
    axes = {name: values for name, values in ways.AXES[cls].items() if len(values) > 1}
    for values in itertools.product(*axes.values()):
        params = dict(zip(axes, values, strict=True))
        if ways.goes_together(cls, params):
            assert not ways.pairs_of(params) - covered


def test_a_missing_way_is_seen():
    """Without some of them the search asks for more; and with all of them for none."""
    for cls in ways.AXES:
        known = [e for e in [*ways.ESTIMATORS, *ways.FURTHER] if type(e) is cls]
        assert not list(ways.covering(cls, known))
        if "adjacency" in ways.AXES[cls]:
            assert list(ways.covering(cls, [e for e in known if e.adjacency != "replace"]))


def refusals():
    for cls, rules in ways.REFUSED.items():
        for rule, words in rules:
            for values in itertools.product(*rule.values()) if words else ():
                params = dict(zip(rule, values, strict=True))
                yield pytest.param(cls, params, words, id=f"{cls.__name__} {params}")


@pytest.mark.parametrize(("cls", "params", "words"), list(refusals()))
def test_what_does_not_go_together_is_refused(cls, params, words):
    """The words are those of this rule: others are kept."""
    axes = ways.AXES[cls] | {name: [value] for name, value in params.items()}
    rules = [rule for rule in ways.REFUSED[cls] if not ways.breaks(params, rule[0])]
    whole = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    estimator = cls(
        **next(way for way in whole if not any(ways.breaks(way, rule) for rule, _ in rules))
    )
    data = null_release_data(estimator)["dense"]["ordinary"]
    with pytest.raises(ValueError, match=words):
        data.fit(estimator)


@pytest.mark.parametrize("cls", ways.AXES, ids=lambda cls: cls.__name__)
def test_documented_options_are_values_of_an_axis(cls):
    """An option that is added to an estimator asks for a way."""
    for name, options in ways.documented_options(cls):
        if name not in OTHER and "," in options:
            left = (
                set(re.findall(r'"(\w+)"', options))
                - ALIASES
                - set(map(str, ways.AXES[cls].get(name, ())))
            )
            assert not left, f"{name} of {cls.__name__} may be {left}: tests/tools/ways.py"


# Parameters that a fit does not read here, or that have tests of their own: columns of groups
# (tests/test_groups.py), shapes of what comes flat or by updates, seeds; a large budget for all.
ALONE = {"group_column", "random_state", "affinity", "matrix_shape", "epsilon"}
KEYS = {DPRidge, DPRidgeClassifier}  # whose budget fractions have other names for sparse rows
PRINTED = {cls for cls in map(type, ways.FURTHER) if "papers" in cls.__module__}


@pytest.mark.parametrize(
    "cls", [cls for cls in ways.AXES if cls not in PRINTED | {DPTraceRegressor}], ids=repr
)
def test_each_parameter_has_two_values_in_the_ways(cls):
    """A new parameter asks for a way."""
    known = [e.get_params() for e in [*ways.ESTIMATORS, *ways.FURTHER] if type(e) is cls]
    alone = {name for name in known[0] if len({repr(each[name]) for each in known}) == 1}
    assert alone <= ALONE | ({"budget_split"} if cls in KEYS else set())
