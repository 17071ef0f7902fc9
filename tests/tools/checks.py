"""Privacy checks for any estimator with the interface of `skdp.base.BaseDPEstimator`.

They complement scikit-learn's `parametrize_with_checks`: that one asks whether an estimator is a
good scikit-learn estimator, this one whether it keeps its privacy promise. Each check is a public
function ``check(name, estimator)`` that raises AssertionError and says what can be seen.

The checks hook into the gate (`PrivacySession`): an estimator that releases numbers by other means
is not covered, except by the checks that compare whole fits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from sklearn.base import clone

from tools.fit_checks import (
    check_bad_budgets,
    check_company,
    check_documented_attributes,
    check_input_unmodified,
    check_joblib,
    check_noise_calibration,
    check_pickle_and_clone,
    check_receipt,
    check_scaling,
    check_seeded_noise,
    check_storage_form,
    check_system_entropy,
    check_worst_case_pair,
)
from tools.null_checks import (
    check_bad_rows,
    check_failed_fit,
    check_null_release,
    check_null_release_can_fail,
    check_pays_first,
    check_tiny_epsilon,
)

Check = Callable[[str, Any], None]

CHECKS: tuple[Check, ...] = (
    check_null_release, check_null_release_can_fail, check_bad_rows, check_pays_first,
    check_receipt, check_noise_calibration, check_worst_case_pair, check_system_entropy,
    check_seeded_noise, check_bad_budgets, check_failed_fit, check_documented_attributes,
    check_pickle_and_clone, check_joblib, check_input_unmodified, check_scaling, check_tiny_epsilon,
    check_company, check_storage_form,
)  # fmt: skip


def parametrize_with_dp_checks(estimators: list[Any]) -> Any:
    """Parametrize a pytest test with estimators and privacy checks.

    All checks, for all of them: one that does not apply skips itself, and none is expected to fail.

    Parameters
    ----------
    estimators : list of estimator instances
        What to check.

    Returns
    -------
    decorator : pytest.mark.parametrize

    Examples
    --------
    >>> from skdp import DPPCA
    >>> from tools.checks import parametrize_with_dp_checks
    >>> @parametrize_with_dp_checks([DPPCA(), DPPCA(adjacency="replace")])
    ... def test_keeps_its_promise(estimator, check):
    ...     check(estimator)
    """
    import pytest

    cases = []
    for estimator in estimators:
        shown, name = "".join(repr(estimator).split()), type(estimator).__name__
        subject = clone(estimator)  # one for all: checks fit clones, and clones take their time
        for check in CHECKS:
            case = pytest.param(subject, partial(check, name), id=f"{shown}-{check.__name__}")
            cases.append(case)
    return pytest.mark.parametrize(("estimator", "check"), cases)
