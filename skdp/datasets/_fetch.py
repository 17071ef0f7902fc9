"""Data sets from their owners: download, check, cache, parse. No copy is part of the package.

A file is checked against the checksum that its owner publishes beside it, where there is one. The
SHA-256 of the first download is kept in the cache, and every later use must agree with it; a caller
who knows the right one can demand it with `sha256`.
"""

import gzip
import hashlib
import io
import os
import shutil
import tempfile
import time
import zipfile
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import get_data_home
from sklearn.utils import Bunch

__all__ = ["fetch_movielens", "fetch_snap_graph"]

MOVIELENS_URL = "https://files.grouplens.org/datasets/movielens/{archive}.zip"
SNAP_URL = "https://snap.stanford.edu/data/{file}"
_TIMEOUT = 30

# version -> (archive, file inside, separator, lines of heading)
_MOVIELENS = {
    "100k": ("ml-100k", "u.data", "\t", 0),
    "1m": ("ml-1m", "ratings.dat", "::", 0),
    "10m": ("ml-10m", "ratings.dat", "::", 0),
    "20m": ("ml-20m", "ratings.csv", ",", 1),
    "25m": ("ml-25m", "ratings.csv", ",", 1),
    "32m": ("ml-32m", "ratings.csv", ",", 1),
}
_SNAP = {
    "facebook": "facebook_combined.txt.gz",
    "ca-GrQc": "ca-GrQc.txt.gz",
    "ca-HepTh": "ca-HepTh.txt.gz",
    "email-Enron": "email-Enron.txt.gz",
}


def fetch_movielens(
    version="100k",
    *,
    data_home=None,
    download_if_missing=True,
    sha256=None,
    n_retries=3,
    delay=1.0,
    return_X=False,
):
    """Load MovieLens ratings (users by films), downloading them from GroupLens if necessary.

    The ratings are real people's: GroupLens allows research use under its own terms (see its README
    of each data set), and they may not be passed on without permission. The archive is checked
    against the MD5 that GroupLens publishes beside it.

    Parameters
    ----------
    version : {"100k", "1m", "10m", "20m", "25m", "32m"}, default="100k"
        Which data set.
    data_home : str or path-like, default=None
        Folder of the cache; None is scikit-learn's.
    download_if_missing : bool, default=True
        If False, raise an OSError where the file is not in the cache.
    sha256 : str, default=None
        Checksum that the archive must have. None accepts what the first download had.
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
    archive, name, separator, heading = _MOVIELENS[version]
    url = MOVIELENS_URL.format(archive=archive)
    path, found = _cached(
        url, data_home, download_if_missing, sha256, n_retries, delay, published_md5=True
    )
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
    return Bunch(data=R, user_ids=users, item_ids=items, timestamps=times, sha256=found, DESCR=text)


def fetch_snap_graph(
    name="facebook",
    *,
    data_home=None,
    download_if_missing=True,
    sha256=None,
    n_retries=3,
    delay=1.0,
):
    """Load a graph of the SNAP collection, downloading it from Stanford if necessary.

    Edges are taken without direction, loops are dropped. SNAP publishes no checksums: the first
    download is trusted, and later uses must agree with it.

    Parameters
    ----------
    name : {"facebook", "ca-GrQc", "ca-HepTh", "email-Enron"}, default="facebook"
        Which graph.
    data_home : str or path-like, default=None
        Folder of the cache; None is scikit-learn's.
    download_if_missing : bool, default=True
        If False, raise an OSError where the file is not in the cache.
    sha256 : str, default=None
        Checksum that the file must have. None accepts what the first download had.
    n_retries : int, default=3
        Number of retries.
    delay : float, default=1.0
        Seconds between retries.

    Returns
    -------
    data : Bunch
        ``data`` (symmetric csr_array of shape (n_nodes, n_nodes)), ``nodes`` (their identifiers),
        ``sha256`` and ``DESCR``.
    """
    if name not in _SNAP:
        raise ValueError(
            f"The 'name' parameter of fetch_snap_graph must be a str among {sorted(_SNAP)}. "
            f"Got {name!r} instead."
        )
    url = SNAP_URL.format(file=_SNAP[name])
    path, found = _cached(url, data_home, download_if_missing, sha256, n_retries, delay)
    with gzip.open(path, "rt", encoding="ascii") as file:
        lines = [",".join(line.split()) for line in file if not line.startswith("#")]
    pairs = _numbers("\n".join(lines), 0, 2).astype(np.int64)
    nodes, ends = np.unique(pairs, return_inverse=True)
    ends = ends.reshape(-1, 2)
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    upper = sp.csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(nodes),) * 2)
    text = f"SNAP graph {name}, {len(nodes)} nodes, {len(ends)} edges, from {url}."
    return Bunch(data=sp.csr_array(upper + upper.T), nodes=nodes, sha256=found, DESCR=text)


def _numbers(text, heading, n_columns):
    table = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=heading, ndmin=2)
    if table.shape[1] != n_columns:
        raise OSError(f"Expected {n_columns} columns in the data file, got {table.shape[1]}.")
    return table


# -- cache -----------------------------------------------------------------------------------------


def _cached(url, data_home, download_if_missing, sha256, n_retries, delay, *, published_md5=False):
    """Return the path of the cached file and its SHA-256; download and check it if necessary."""
    folder = Path(get_data_home(data_home)) / "skdp"
    path = folder / url.rsplit("/", 1)[1]
    pin = path.with_name(path.name + ".sha256")
    if not path.exists():
        if not download_if_missing:
            raise OSError(f"Data not found at {path} and `download_if_missing` is False")
        folder.mkdir(parents=True, exist_ok=True)
        _download(url, path, sha256, n_retries, delay, published_md5)
    found = _digest(path, "sha256")
    expected = sha256 or (pin.read_text(encoding="ascii").strip() if pin.exists() else found)
    if found != expected:
        raise OSError(
            f"{path} has an SHA-256 checksum ({found}) that differs from the expected one "
            f"({expected}); the file may be damaged. Delete it to fetch it again."
        )
    if not pin.exists():
        pin.write_text(found + "\n", encoding="ascii")
    return path, found


def _download(url, path, sha256, n_retries, delay, published_md5):
    """Fetch into a file beside the target, check it, then move it to its place."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        with _opened(url, n_retries, delay) as source, open(temporary, "wb") as target:
            shutil.copyfileobj(source, target)
        if published_md5:
            with _opened(url + ".md5", n_retries, delay) as source:
                words = source.read(1000).decode("ascii", "replace").replace("=", " ").split()
            found = _digest(temporary, "md5")
            if found not in [word.lower() for word in words]:
                raise OSError(
                    f"The MD5 of {url} is {found}; the publisher's checksum file says "
                    f"{' '.join(words)!r}. The download is damaged, or one of them was changed."
                )
        found = _digest(temporary, "sha256")
        if sha256 is not None and found != sha256:
            raise OSError(f"The SHA-256 of {url} is {found}; 'sha256' asks for {sha256}.")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _opened(url, n_retries, delay):
    """Open an address, with retries; an OSError that says what to do if it cannot be reached."""
    for left in range(n_retries, -1, -1):
        try:
            return urlopen(url, timeout=_TIMEOUT)
        except (URLError, TimeoutError) as error:
            known = isinstance(error, HTTPError) and error.code in (401, 403, 404, 410)
            if left == 0 or known:
                raise OSError(
                    f"Cannot download {url}: {error}. Without a network, put the file into the "
                    "cache yourself (its folder is 'skdp' in scikit-learn's data home), or use a "
                    "generator such as make_ratings or make_block_graph."
                ) from error
            time.sleep(delay)
    raise AssertionError("unreachable")


def _digest(path, algorithm):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
