"""What can be seen of a fit, and where two differ."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp

from skdp import DPPCA
from tools.outcomes import difference, documented_attributes


class Point(NamedTuple):
    x: float
    y: tuple


@dataclasses.dataclass
class Box:
    value: object


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-15]), False),
        (np.ones(2), np.ones(2, np.float32), False),
        (np.ones(2), np.ones((1, 2)), False),
        (float("nan"), float("nan"), True),
        (1, 1.0, False),
        (Point(1.0, (2,)), Point(1.0, (2,)), True),
        (Point(1.0, (2,)), Point(1.0, (3,)), False),
        (Box(np.ones(2)), Box(np.ones(2)), True),
        (Box(np.ones(2)), Box(np.zeros(2)), False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": [1, None]}, {"a": [1, None]}, True),
        (sp.csr_array(np.eye(2)), sp.csr_array(np.eye(2)), True),
        (sp.csr_array(np.eye(2)), sp.csr_array(np.ones((2, 2))), False),
        (np.array(["a", None], object), np.array(["a", None], object), True),
        ("a", "b", False),
    ],
)
def test_difference(a, b, same):
    assert (difference(a, b) is None) is same


def test_documented_attributes():
    assert {"components_", "privacy_spent_", "feature_names_in_"} <= documented_attributes(DPPCA)
    assert "epsilon" not in documented_attributes(DPPCA)

    class Child(DPPCA):
        pass

    class Bare:
        """No section."""

    class Pair:
        """Two in a line.

        Attributes
        ----------
        a_, b_ : float
            Both : here.

        Notes
        -----
        c_ : no attribute
        """

    assert documented_attributes(Child) == documented_attributes(DPPCA)
    assert documented_attributes(Bare) == set()
    assert documented_attributes(Pair) == {"a_", "b_"}
