"""Worst-case pairs of data sets: where the change that a release claims is reached."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.utils import get_tags

from skdp.regression import DPTraceRegressor
from skdp.regression._personalized_base import PersonalizedBase
from skdp.testing._data import FitData, settings_of, takes_labels, with_design

_MANY = 2000
_HUGE = 1e15  # shifts each step of a search for the clip norm, then is clipped

CANDIDATES: dict[object, Callable[..., Iterator[tuple[str, FitData, FitData]]]] = {}


def register_pairs(key):
    """Decorate a function estimator -> iterator of (name, data, neighbour).

    Parameters
    ----------
    key : str or type
        A privacy unit, or the class of an estimator (which goes before its unit).
    """

    def register(function):
        CANDIDATES[key] = function
        return function

    return register


def candidate_pairs(estimator) -> Iterator[tuple[str, FitData, FitData]]:
    """Yield (name, data, neighbour): hostile neighbours for this estimator's privacy unit.

    Parameters
    ----------
    estimator : estimator
        Its class, unit and adjacency choose the pairs.
    """
    unit = settings_of(estimator).unit
    for key in (*type(estimator).__mro__, unit):
        if key in CANDIDATES:
            return (
                (name, *(with_design(estimator, data) for data in _with_targets(estimator, *pair)))
                for name, *pair in CANDIDATES[key](estimator)
            )
    raise ValueError(f"No worst-case pairs for {type(estimator).__name__} and unit {unit!r}.")


def _with_targets(estimator, *pair):
    """Add targets where they are needed: the same for shared records, huge for a further one."""
    if not get_tags(estimator).target_tags.required or pair[0].y is not None:
        return pair
    shared = min(data.X.shape[0] for data in pair)
    rows = [np.arange(data.X.shape[0]) for data in pair]
    if takes_labels(estimator):
        return [data._replace(y=i % 2) for data, i in zip(pair, rows, strict=True)]
    pattern = np.array([1.0, -0.5, 2.0])
    return [
        data._replace(y=np.where(i < shared, pattern[i % 3], _HUGE))
        for data, i in zip(pair, rows, strict=True)
    ]


@register_pairs("label")
def _label_pairs(estimator):
    """Change one label: the largest contribution, and its opposite, or none."""
    settings = settings_of(estimator)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, settings.n_features))
    y = rng.standard_normal(400)
    changes = {"antipodal": -_HUGE, "from zero": 0.0}
    if settings.adjacency == "add_remove":
        changes = {"withheld": np.nan}
    for name, other in changes.items():
        targets = (np.append(y[:-1], last) for last in (_HUGE, other))
        yield name, *(FitData(X, target, assume_finite=True) for target in targets)


def _row_bases(estimator):
    """Yield an origin and rows that both neighbours share.

    Zero rows on as few columns as it takes (V is square there); rows that drown the noise in one
    direction (iterates that are not orthonormalised become parallel); ordinary rows.
    """
    k = getattr(estimator, "n_components", None)
    narrow = max(2, k) if isinstance(k, int) and not isinstance(k, bool) else 3
    center = getattr(estimator, "center", None)
    fixed = None if center is None or isinstance(center, str) else np.asarray(center, float)
    settings = settings_of(estimator)
    d = narrow if fixed is None else len(fixed)
    origin = np.zeros(d) if fixed is None else fixed
    yield origin, np.tile(origin, (d + 2, 1))
    yield origin, np.tile(origin + _HUGE / math.sqrt(d), (_MANY, 1))
    if fixed is None:
        rng = np.random.default_rng(0)
        yield np.zeros(settings.n_features), rng.standard_normal((30, settings.n_features))


@register_pairs("row")
def _row_pairs(estimator):
    replace = settings_of(estimator).adjacency == "replace"
    for origin, base in _row_bases(estimator):
        d = len(origin)
        spike, other = _HUGE * np.eye(d)[0], _HUGE * np.eye(d)[min(1, d - 1)]
        flat = np.full(d, _HUGE / math.sqrt(d))
        if not replace:
            rows = {"a huge row": spike, "a huge flat row": flat, "a NaN row": spike * np.nan}
            for name, row in rows.items():
                more = np.vstack([base, origin + row])
                yield name, FitData(base), FitData(more, assume_finite=True)
            continue
        obtuse = -0.25 * spike + math.sqrt(1 - 0.0625) * other
        partners = {"orthogonal": other, "antipodal": -spike, "obtuse": obtuse, "absent": 0 * spike}
        for name, row in partners.items():
            first, second = base.copy(), base.copy()
            first[-1], second[-1] = origin + spike, origin + row
            yield f"huge rows, {name}", FitData(first), FitData(second)


@register_pairs("group")
def _group_pairs(estimator):
    settings = settings_of(estimator)
    replace = settings.adjacency == "replace"
    for origin, base in _row_bases(estimator):
        d = len(origin)
        groups = np.arange(len(base)) % 3
        spike = _HUGE * np.eye(d)[:1]
        users = {"one huge row": spike, "huge rows": _HUGE * np.eye(d)}
        users["many huge rows"] = np.repeat(spike, _MANY, axis=0)
        for name, rows in users.items():
            labels = np.append(groups, np.full(len(rows), 3))

            def with_user(rows, labels=labels, base=base):
                return FitData(np.vstack([base, rows]), None, {"groups": labels})

            if replace:
                yield f"{name}, antipodal", with_user(rows), with_user(-rows)
                yield f"{name}, turned", with_user(rows), with_user(np.roll(rows, 1, axis=1))
            else:
                yield name, FitData(base, None, {"groups": groups}), with_user(rows)


def _small(estimator):
    k = getattr(estimator, "n_components", None)
    return max(2, k) if isinstance(k, int) and not isinstance(k, bool) else 3


def _ends(estimator):
    low, high = getattr(estimator, "entry_bounds", None) or (-1.0, 1.0)
    if settings_of(estimator).adjacency == "replace":
        return low, high
    return 0.0, (high if abs(high) >= abs(low) else low)


@register_pairs("entry")
def _entry_pairs(estimator):
    d = max(2, _small(estimator) + 1)
    old, new = _ends(estimator)
    for name, fill in (("empty", 0.0), ("full", new)):
        X = np.full((d + 2, d), float(fill))
        X[0, 0] = old
        Y = X.copy()
        Y[0, 0] = new
        yield f"one entry of an otherwise {name} matrix", FitData(X), FitData(Y)


@register_pairs("edge")
def _edge_pairs(estimator):
    n = max(4, _small(estimator) + 2)
    old, new = _ends(estimator)
    for name, fill in (("empty", 0.0), ("complete", new)):
        X = np.full((n, n), float(fill))
        np.fill_diagonal(X, 0.0)
        X[0, 1] = X[1, 0] = old
        Y = X.copy()
        Y[0, 1] = Y[1, 0] = new
        yield f"one edge of an otherwise {name} graph", FitData(X), FitData(Y)


@register_pairs("interaction")
def _interaction_pairs(estimator):
    d = max(3, _small(estimator) + 1)
    given = getattr(estimator, "degree_floor", 1)
    floor = given if isinstance(given, int) else 1  # a floor that is learnt is known to nobody
    replace = settings_of(estimator).adjacency == "replace"
    for degree in {0, 1, min(floor - 1, d - 2), d - 2}:
        if degree < 0:
            continue
        X = np.zeros((d + 2, d))
        X[0, 2 : 2 + degree] = 1.0
        Y = X.copy()
        Y[0, 0] = 1.0
        X[0, 1] = float(replace)
        yield f"degree {degree}", FitData(X), FitData(Y)


@register_pairs("entry_change")
@register_pairs("edge_change")
@register_pairs("mixed")
def _change_pairs(estimator):
    unit, d = settings_of(estimator).unit, max(3, _small(estimator) + 1)
    s = float(estimator.sensitivity) * (1 - 1e-12)
    square = unit != "entry_change"
    for name, fill in (("empty", 0.0), ("full", 100.0)):
        X = np.full((d if square else d + 2, d), fill)
        Y = X.copy()
        if unit == "mixed":
            Y[0, 0] += s
        else:
            Y[0, 1] += s
        if unit == "edge_change":
            Y[1, 0] += s
        yield f"one entry of an otherwise {name} matrix", FitData(X), FitData(Y)


@register_pairs("frobenius")
@register_pairs("spectral")
def _norm_pairs(estimator):
    d = max(2, _small(estimator))
    s = float(getattr(estimator, "sensitivity", 1.0)) * (1 - 1e-12)
    one = np.zeros((d + 1, d))
    one[0, 0] = s
    for name, change in (("one entry", one), ("orthogonal", s * np.eye(d + 1, d))):
        if name == "orthogonal" and settings_of(estimator).unit == "frobenius":
            change = change / math.sqrt(d)
        yield name, FitData(np.zeros((d + 1, d))), FitData(change)


@register_pairs(DPTraceRegressor)
def _record_pairs(estimator):
    """A record with a huge target is cut in every sum, and moves every rank."""
    if estimator.privacy_unit == "label":
        yield from _label_pairs(estimator)
        return
    rng = np.random.default_rng(0)
    d = settings_of(estimator).n_features
    X, y = rng.standard_normal((400, d)), rng.standard_normal(400)
    x = rng.standard_normal((1, d))
    if estimator.adjacency == "replace":
        first, second = (np.vstack([X, row]) for row in (x, -x))
        high, low = np.append(y, 1e15), np.append(y, -1e15)
        yield "antipodal", FitData(first, high), FitData(second, high)
        yield "antipodal, with its constant", FitData(first, high), FitData(first, low)
        return
    yield "one more", FitData(X, y), FitData(np.vstack([X, 1e3 * x]), np.append(y, 1e15))


@register_pairs(PersonalizedBase)
def _user_pairs(estimator):
    """Add or replace a user with large targets: every message of theirs is at its bound."""
    k = estimator.n_components if isinstance(estimator.n_components, int) else 2
    d, rng = max(4, k + 2), np.random.default_rng(0)
    classes = getattr(estimator, "classes", None)

    def data(users):
        y = np.concatenate([target for _, target in users])
        y = y if classes is None else np.asarray(classes)[(y > 0).astype(int)]
        owners = np.repeat(np.arange(len(users)), [len(X) for X, _ in users])
        return FitData(np.vstack([X for X, _ in users]), y, {"groups": owners})

    base = [(rng.standard_normal((9, d)), 3 * rng.standard_normal(9)) for _ in range(12)]
    for i in range(6):
        X, y = rng.standard_normal((8, d)), 1e3 * rng.standard_normal(8)
        if estimator.adjacency == "add_remove":
            yield f"user {i}", data(base), data([*base, (X, y)])
        else:
            yield f"user {i}", data([*base, (X, y)]), data([*base, (X[:, ::-1], -y)])
