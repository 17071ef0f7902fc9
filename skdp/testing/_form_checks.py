"""Checks that a unit's part in a release depends neither on its company nor on how it is stored."""

import math

import numpy as np
import scipy.sparse as sp

from skdp.testing._data import contrasting_data, settings_of
from skdp.testing._formats import STORED
from skdp.testing._hooks import change, fixed_noise
from skdp.testing._null_checks import not_private, skip
from skdp.testing._outcomes import difference, fresh, outcome
from skdp.testing._transcripts import record_transcript, replay_answers

_SEED = 20240401


def check_storage_form(name, estimator):
    """One CSR matrix gives one fit, bit by bit, however its entries are stored."""
    families = contrasting_data(estimator)
    if "csr" not in families:
        return skip("takes no sparse input")
    data = families["csr"]["ordinary"]
    whole = data.X.toarray()
    with fixed_noise(_SEED):
        expected = outcome(fresh(estimator), data._replace(X=sp.csr_array(whole)))
        for form, store in STORED.items():
            seen = outcome(fresh(estimator), data._replace(X=store(whole)))
            found = difference(tuple(expected), tuple(seen))
            if found:
                raise AssertionError(f"{name}: the same matrix with {form} differs: {found}")
    return None


def _part(data, units, kept):
    """Return the rows of some units."""
    rows = np.isin(units, kept)
    take = {key: np.asarray(value)[rows] for key, value in data.fit_params.items()}
    y = None if data.y is None else np.asarray(data.y)[rows]
    return data._replace(X=data.X[rows], y=y, fit_params=take)


def _hostile(data, units):
    """Scale every third unit up and every fifth down: most of them are clipped, some by far."""
    X = np.array(data.X, np.float64)
    X[units % 3 == 0] *= 1e5
    X[units % 5 == 1] *= 1e-7
    y = data.y
    if y is not None and np.asarray(y).dtype.kind == "f":
        y = np.where(units % 4 == 1, 1e4, 1.0) * y
    return data._replace(X=X, y=y)


def check_company(name, estimator):
    """A unit adds the same integers in any company: no number of one unit reaches another's part.

    A fit on some of the units, and one on the others, are handed the answers of the fit on all:
    their exact answers add up to its exact answers, integer by integer (or up to the slack of a
    bound that says that sums are rounded too). Where neighbours replace a unit the number of units
    is public, and a fit on some of them does not ask the same questions.
    """
    settings = settings_of(estimator)
    if settings.unit not in ("row", "group") or settings.adjacency != "add_remove":
        return skip("the sum of two fits on parts is asked for rows and users that come and go")
    if not_private(estimator):
        return skip("epsilon is infinite: floats")
    data = contrasting_data(estimator)["dense"]["ordinary"]
    groups = data.fit_params.get("groups")
    units = np.arange(settings.n_rows) if groups is None else np.asarray(groups)
    data = _hostile(data, units)
    with record_transcript() as whole:
        failure = outcome(fresh(estimator), data).exception
    parts = []
    for kept in (units[units % 2 == 0], units[units % 2 == 1]):
        with replay_answers(whole) as part:
            failure = failure or outcome(fresh(estimator), _part(data, units, kept)).exception
        parts.append(part)
    if failure:
        raise AssertionError(f"{name}: {failure}")
    for openings in zip(whole, *parts, strict=True):
        bound, (exact, some, others) = openings[0].bound, (opening.exact for opening in openings)
        rounding = bound.l2_slack if bound.l2_slack >= math.sqrt(bound.size) else 0.0
        if np.linalg.norm(change(exact, some + others)) > rounding:
            raise AssertionError(
                f"{name}: what a unit adds to {bound.name!r} depends on other units"
            )
    return None
