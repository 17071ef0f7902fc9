"""Entropy that does not vary, and a test of bytes, for the tests of secure aggregation."""

import hashlib
import itertools
import os
import ssl

import numpy as np
import pytest
from scipy.stats import chi2


@pytest.fixture
def fixed_entropy(monkeypatch):
    """Make the operating system's bytes a fixed stream: statistics below do not vary."""
    count = itertools.count()

    def urandom(size):
        return hashlib.shake_256(b"fixed%d" % next(count)).digest(size)

    monkeypatch.setattr(os, "urandom", urandom)
    monkeypatch.setattr(ssl, "RAND_bytes", urandom)


@pytest.fixture
def check_uniform():
    def check(data):
        """Bytes, chi-square with 255 degrees of freedom, at the probability of 6 sigma."""
        counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
        expected = len(data) / 256
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert chi2.isf(1 - 1e-9, 255) < statistic < chi2.isf(1e-9, 255)

    return check
