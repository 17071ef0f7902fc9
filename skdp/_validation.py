"""Parameter checks in scikit-learn's wording. They are always on, whatever its configuration."""

import math
from collections.abc import Mapping
from numbers import Integral, Real

import numpy as np

FLOATS = [np.float64, np.float32]  # dtypes that a fit keeps


def _fail(estimator, name, expected, value):
    raise ValueError(
        f"The {name!r} parameter of {type(estimator).__name__} must be {expected}. "
        f"Got {value!r} instead."
    )


def _is_real(value):
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:  # an int beyond the largest float
        return False


def check_real(estimator, name, low, high, *, closed="neither", also=()):
    """Return a float parameter in the interval (or one of the strings `also`).

    `closed` says which ends belong to it: "neither", "left", "right" or "both". NaN, booleans and
    strings are errors.
    """
    value = getattr(estimator, name)
    if isinstance(value, str) and value in also:
        return value
    left = "[" if closed in ("left", "both") else "("
    right = "]" if closed in ("right", "both") else ")"
    expected = f"a float in the range {left}{float(low)}, {float(high)}{right}"
    if also:
        expected += f" or a str among {set(also)}"
    if not _is_real(value):
        _fail(estimator, name, expected, value)
    number = float(value)  # a float32 would overflow beside the ends
    above = number >= low if left == "[" else number > low
    below = number <= high if right == "]" else number < high
    if not (above and below):
        _fail(estimator, name, expected, value)
    return number


def check_int(estimator, name, low, *, also=(), none=False):
    """Return an integer parameter of at least `low` (or None, or one of the strings `also`)."""
    value = getattr(estimator, name)
    if (none and value is None) or (isinstance(value, str) and value in also):
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        extra = (" or None" if none else "") + (f" or a str among {set(also)}" if also else "")
        _fail(estimator, name, f"an int in the range [{low}, inf){extra}", value)
    return int(value)


def check_option(estimator, name, options, otherwise=""):
    """Return a string parameter that is one of `options`; `otherwise` names what is no string."""
    value = getattr(estimator, name)
    if not isinstance(value, str) or value not in options:
        _fail(estimator, name, f"a str among {set(options)}{otherwise}", value)
    return value


def check_bool(estimator, name):
    """Return a boolean parameter."""
    value = getattr(estimator, name)
    if not isinstance(value, bool):
        _fail(estimator, name, "an instance of 'bool'", value)
    return value


def check_split(estimator, defaults):
    """Return shares that sum to 1: the defaults, or the caller's for exactly those releases."""
    name, value = "budget_split", estimator.budget_split
    if isinstance(value, str) and value == "auto":
        shares = dict(defaults)
    else:
        if not isinstance(value, Mapping) or set(value) != set(defaults):
            _fail(estimator, name, f"'auto' or a dict with the keys {sorted(defaults)}", value)
        if not all(_is_real(share) and 0 < share < math.inf for share in value.values()):
            _fail(estimator, name, "a dict of positive shares", value)
        shares = {key: float(share) for key, share in value.items()}
    total = math.fsum(shares.values())
    return {key: share / total for key, share in shares.items()}


def check_clip_norm(estimator):
    """Check `clip_norm`: positive, finite unless epsilon is infinite, or "auto"."""
    value = check_real(estimator, "clip_norm", 0, math.inf, closed="right", also=("auto",))
    if value == "auto":
        return
    if not 1e-60 <= value <= 1e60 and value != math.inf:
        _fail(estimator, "clip_norm", "a float between 1e-60 and 1e60, 'auto' or inf", value)
    if value == math.inf and estimator.epsilon != math.inf:
        raise ValueError(
            "clip_norm=inf leaves one row unbounded; it needs epsilon=inf. Use a number, or 'auto' "
            "for a private quantile of the norms."
        )


def check_n_jobs(estimator):
    """Check `n_jobs`: None, or an int other than 0."""
    value = estimator.n_jobs
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value == 0:
        _fail(estimator, "n_jobs", "None or an int other than 0", value)
    if abs(value) > 2**15:
        _fail(estimator, "n_jobs", "None or an int of at most 32768 in magnitude", value)


def check_center_option(estimator):
    """Check a `center` that is a word; True and False are those of other classes."""
    if estimator.center is None or isinstance(estimator.center, str | bool):
        check_option(estimator, "center", ("dp", "none"), ", or an array of public centres")


def check_bounds(estimator, name):
    """Return public bounds (low, high) of an entry, which hold 0."""
    value = getattr(estimator, name)
    expected = (
        "a pair of floats (low, high) with low <= 0 <= high and low < high, one for all entries "
        "(columns of unlike ranges: map them by PublicScaler(bounds=[(low, high), ...]) first)"
    )
    try:
        low, high = value
    except (TypeError, ValueError):
        _fail(estimator, name, expected, value)
    if not (_is_real(low) and _is_real(high) and -math.inf < low <= 0 <= high < math.inf):
        _fail(estimator, name, expected, value)
    if not low < high:
        _fail(estimator, name, expected, value)
    return float(low), float(high)


def check_range(estimator, name):
    """Return public bounds (low, high), numbers or arrays, as float arrays; None for "auto"."""
    value = getattr(estimator, name)
    if isinstance(value, str) and value == "auto":
        return None
    unbounded = estimator.epsilon == math.inf
    try:
        low, high = (np.asarray(end) for end in value)
        numeric = low.dtype.kind in "iuf" and high.dtype.kind in "iuf"
        low, high = low.astype(np.float64), high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            width, largest = high - low, np.maximum(np.abs(low), np.abs(high))
        fine = numeric and max(low.ndim, high.ndim) <= 1 and width.size > 0
        fine = fine and bool(np.all(width > 0 if unbounded else width >= 1e-60))
        fine = fine and (unbounded or bool(np.all(largest <= 1e60)))
    except (TypeError, ValueError, OverflowError):
        fine = False
    if not fine:
        kind = "numbers" if unbounded else "finite numbers"
        expected = (
            f"'auto' or a pair (low, high) of {kind}, or two arrays (lows, highs) with one of them "
            "for each column, with low < high"
        )
        _fail(estimator, name, expected, value)
    return low, high


def spread_range(estimator, name, bounds, size, of):
    """Return one pair of bounds for each of `size` columns (or targets), or None."""
    if bounds is None:
        return None
    try:
        return tuple(np.broadcast_to(end, (size,)).copy() for end in bounds)
    except ValueError:
        given = max(end.size for end in bounds)
        raise ValueError(
            f"The {name!r} parameter of {type(estimator).__name__} has {given} bounds, but there "
            f"are {size} {of}."
        ) from None


def check_shape(estimator, name):
    """Return a public shape (n_rows, n_columns) of positive integers."""
    value = getattr(estimator, name)
    expected = "a pair of positive integers (n_rows, n_columns)"
    try:
        m, n = value
    except (TypeError, ValueError):
        _fail(estimator, name, expected, value)
    for side in (m, n):
        if isinstance(side, bool) or not isinstance(side, Integral) or side < 1:
            _fail(estimator, name, expected, value)
    return int(m), int(n)
