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

from tools import fit_checks, null_checks

Check = Callable[[str, Any], None]

CHECKS: tuple[Check, ...] = (
    null_checks.check_null_release, null_checks.check_null_release_can_fail,
    null_checks.check_bad_rows, null_checks.check_pays_first, fit_checks.check_receipt,
    fit_checks.check_noise_calibration, fit_checks.check_worst_case_pair,
    fit_checks.check_system_entropy, fit_checks.check_seeded_noise, fit_checks.check_bad_budgets,
    null_checks.check_failed_fit, fit_checks.check_documented_attributes,
    fit_checks.check_pickle_and_clone, fit_checks.check_joblib, fit_checks.check_input_unmodified,
    fit_checks.check_scaling, null_checks.check_tiny_epsilon, fit_checks.check_company,
    fit_checks.check_storage_form,
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
