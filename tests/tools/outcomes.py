"""What a fit lets the world see: attributes, warnings, exceptions; and whether two are the same."""

import dataclasses
import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp

from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger.ledger import PrivacyLedger
from skdp.testing._transcripts import record_transcript, replaced

_STATE = {"_sklearn_output_config", "_metadata_request", "_reservation_key", "_released_names"}
PRIVATE = "_private"  # per-user parts that are never published (joint differential privacy)


class Outcome(NamedTuple):
    """What can be seen of a fit."""

    attributes: dict[str, Any]
    warnings: tuple[str, ...]
    exception: str | None


def fitted_attributes(estimator) -> dict[str, Any]:
    """Return what fit has put on the estimator, the secrets of its owner aside."""
    params = set(estimator.get_params(deep=False))
    hidden = params | _STATE | {PRIVATE, "_acknowledged"}
    return {name: value for name, value in vars(estimator).items() if name not in hidden}


def outcome(estimator, data) -> Outcome:
    """Fit and return everything that can be seen of it."""
    failure = None
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            data.fit(estimator)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    seen = tuple(f"{w.category.__name__}: {w.message}" for w in caught)
    return Outcome(fitted_attributes(estimator), seen, failure)


def _array_difference(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{a.shape} and {b.dtype}{b.shape}"
    if np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
        return None
    first = np.ravel(a != b).argmax()
    return f"values differ, for instance {np.ravel(a)[first]!r} and {np.ravel(b)[first]!r}"


def _as_mapping(value):
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        return dict(vars(value))
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return None


def difference(a, b) -> str | None:
    """Say where two values differ (bit by bit; NaN equals NaN), or return None."""
    if type(a) is not type(b):
        return f"{type(a).__name__} and {type(b).__name__}"
    if sp.issparse(a):
        return difference(a.toarray(), b.toarray())
    if isinstance(a, np.ndarray):
        if a.dtype != object:
            return _array_difference(a, b)
        a, b = a.tolist(), b.tolist()
    if isinstance(a, float) and math.isnan(a) and math.isnan(b):
        return None
    if isinstance(a, str | bytes | int | float | np.generic) or a is None:
        return None if a == b else f"{a!r} and {b!r}"
    first, second = _as_mapping(a), _as_mapping(b)
    if first is None or second is None:
        return None if a == b else f"{a!r} and {b!r}"
    if list(first) != list(second):
        return f"{sorted(map(str, first))} and {sorted(map(str, second))}"
    for name in first:
        inner = difference(first[name], second[name])
        if inner:
            return f"{name}: {inner}"
    return None


def documented_attributes(cls) -> set[str]:
    """Return the names in the numpydoc "Attributes" section of a class docstring."""
    doc = inspect.getdoc(cls) or ""
    section = r"^( *)Attributes\n\1-{3,}\n(.*?)(?=^\1\S[^\n]*\n\1-{3,}$|\Z)"
    match = re.search(section, doc, re.M | re.S)
    if match is None:
        return set()
    indent, body = match.groups()
    heads = re.findall(rf"^{indent}(\w[\w, ]*?) ?:", body, re.M)
    return {name.strip() for head in heads for name in head.split(",")}


@contextmanager
def before_payment(action: Callable[[int], None]):
    """Call ``action(i)`` just before the i-th payment of the block (it may raise)."""
    count = [0]

    def make(original):
        def pay(self, *args, **kwargs):
            action(count[0])
            count[0] += 1
            return original(self, *args, **kwargs)

        return pay

    with replaced(PrivacySession, "pay", make):
        yield


def assert_refused(estimator, match, *data, method="fit", **fit_params):
    """A fit raises ValueError before it pays or reads, and leaves nothing on the estimator."""
    with record_transcript() as transcript, PrivacyLedger(1e3, 0.1, allow_seeded=True) as ledger:
        refuses(ValueError, match, getattr(estimator, method), *data, **fit_params)
        assert not ledger.entries
    assert not len(transcript)
    assert not fitted_attributes(estimator)


def refuses(error, match, call, *args, **params):
    """A call raises this error, and the error says so (None: whatever it says)."""
    with pytest.raises(error, match=match):
        call(*args, **params)


def messages_of(fit, *data, **fit_params) -> list[str]:
    """Call a method and return what its warnings say."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        fit(*data, **fit_params)
    return [str(warning.message) for warning in caught]
