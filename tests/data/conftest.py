"""The rows of `tools.places` in files."""

import numpy as np
import pytest
import scipy.sparse as sp

from tools.places import ENDS, S, X


@pytest.fixture(scope="module")
def npy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npy")
    for i, (a, b) in enumerate(ENDS):
        np.save(folder / f"{i}.npy", X[a:b])
    return [folder / f"{i}.npy" for i in range(len(ENDS))]


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npz")
    for i, (a, b) in enumerate(ENDS):
        sp.save_npz(folder / f"{i}.npz", S[a:b], compressed=i > 0)
    return [folder / f"{i}.npz" for i in range(len(ENDS))]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    path = tmp_path_factory.mktemp("map") / "all.npy"
    np.save(path, X)
    return np.load(path, mmap_mode="r")
