"""Data sets from their owners: download, check, cache, parse. No copy is part of the package.

A file is used only if its SHA-256 is the one that is written here.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import fetch_file, get_data_home
from sklearn.utils import Bunch

MOVIELENS_URL = "https://files.grouplens.org/datasets/movielens/{archive}.zip"

# version -> (archive, file inside, separator, lines of heading, SHA-256)
_MOVIELENS = {
    "100k": ("ml-100k", "u.data", "\t", 0,
             "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229"),
    "1m": ("ml-1m", "ratings.dat", "::", 0,
           "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20"),
    "20m": ("ml-20m", "ratings.csv", ",", 1,
            "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3"),
    "25m": ("ml-25m", "ratings.csv", ",", 1,
            "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa"),
    "32m": ("ml-32m", "ratings.csv", ",", 1,
            "e4a68655d7386b8f95f2f2424b2ff975dfdd15ffd59e0d864a14dca43e99d6ee"),
}  # fmt: skip


def fetch_movielens(
    version: str = "100k",
    *,
    data_home: Any = None,
    download_if_missing: bool = True,
    n_retries: int = 3,
    delay: float = 1.0,
    return_X: bool = False,
) -> Any:
    """Load MovieLens ratings (users by films), downloading them from GroupLens if necessary.

    The ratings are real people's: GroupLens allows research use under its own terms (see its README
    of each data set), and they may not be passed on without permission.

    Parameters
    ----------
    version : {"100k", "1m", "20m", "25m", "32m"}, default="100k"
        Which data set.
    data_home : str or path-like, default=None
        Folder of the cache; None is scikit-learn's.
    download_if_missing : bool, default=True
        If False, raise an OSError where the file is not in the cache.
    n_retries : int, default=3
        Number of retries.
    delay : float, default=1.0
        Seconds between retries.
    return_X : bool, default=False
        Return the matrix alone.

    Returns
    -------
    data : Bunch
        ``data`` (csr_array of shape (n_users, n_items), 0 where there is no rating), ``user_ids``
        and ``item_ids`` (of rows and columns), ``timestamps`` (csr_array like ``data``),
        ``sha256`` and ``DESCR``. The csr_array alone if `return_X`.
    """
    if version not in _MOVIELENS:
        raise ValueError(
            f"The 'version' parameter of fetch_movielens must be a str among "
            f"{sorted(_MOVIELENS)}. Got {version!r} instead."
        )
    archive, name, separator, heading, sha256 = _MOVIELENS[version]
    url = MOVIELENS_URL.format(archive=archive)
    path = _fetched(url, data_home, download_if_missing, sha256, n_retries, delay)
    with zipfile.ZipFile(path) as content:
        inside = [entry for entry in content.namelist() if Path(entry).name == name]
        if len(inside) != 1:
            raise OSError(f"{path} does not hold one file {name!r}; delete it to fetch it again.")
        text = content.read(inside[0]).decode("ascii")
    table = _numbers(text.replace(separator, ","), heading, 4)
    users, rows = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    items, columns = np.unique(table[:, 1].astype(np.int64), return_inverse=True)
    shape = (len(users), len(items))
    R = sp.csr_array((table[:, 2], (rows, columns)), shape=shape)
    if return_X:
        return R
    times = sp.csr_array((table[:, 3], (rows, columns)), shape=shape)
    text = f"MovieLens {version}, {len(table)} ratings, from {url}. Terms: GroupLens's README."
    return Bunch(
        data=R, user_ids=users, item_ids=items, timestamps=times, sha256=sha256, DESCR=text
    )


def _numbers(text, heading, n_columns):
    table = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=heading, ndmin=2)
    if table.shape[1] != n_columns:
        raise OSError(f"Expected {n_columns} columns in the data file, got {table.shape[1]}.")
    return table


def _fetched(url, data_home, download_if_missing, sha256, n_retries, delay):
    """Return the path of a file in the cache whose SHA-256 is right; download it if necessary."""
    folder = Path(get_data_home(data_home)) / "skdp"
    path = folder / url.rsplit("/", 1)[1]
    if not download_if_missing:
        if not path.exists():
            raise OSError(f"Data not found at {path} and `download_if_missing` is False")
        if _digest(path) != sha256:
            raise OSError(f"{path} has another SHA-256 than {sha256}. Delete it to fetch it again.")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return fetch_file(url, folder, path.name, sha256=sha256, n_retries=n_retries, delay=delay)
    except (URLError, TimeoutError) as error:
        raise OSError(
            f"Cannot download {url}: {error}. Without a network, put the file into the cache "
            "yourself (its folder is 'skdp' in scikit-learn's data home), or use a generator such "
            "as make_ratings."
        ) from error


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
