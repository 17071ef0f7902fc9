"""Loaders, on small files of the same format that are written here; nothing goes to a network."""

import hashlib
import zipfile

import numpy as np
import pytest

from skdp.datasets import _fetch, fetch_movielens

RATINGS = np.array([[3, 10, 4, 100], [1, 10, 5, 101], [3, 7, 1, 102], [2, 20, 3, 103]])
FORMATS = {
    "100k": ("ml-100k/u.data", "\t", ""),
    "1m": ("ml-1m/ratings.dat", "::", ""),
    "20m": ("ml-20m/ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder in the place of the owners' servers."""
    folder = tmp_path / "server"
    folder.mkdir()
    address = folder.as_uri().replace("file://", "file://localhost", 1)
    monkeypatch.setattr(_fetch, "MOVIELENS_URL", address + "/{archive}.zip")
    return folder


def publish(server, monkeypatch, version="100k", ratings=True):
    """Write an archive, and pin it as the known one."""
    name, separator, heading = FORMATS[version]
    lines = "".join(separator.join(map(str, row)) + "\n" for row in RATINGS)
    path = server / (name.split("/")[0] + ".zip")
    with zipfile.ZipFile(path, "w") as archive:
        if ratings:
            archive.writestr(name, heading + lines)
        archive.writestr(name.split("/")[0] + "/README", "terms")
    pinned = (*_fetch._MOVIELENS[version][:4], sha256(path))
    monkeypatch.setitem(_fetch._MOVIELENS, version, pinned)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("version", FORMATS)
def test_ratings(server, tmp_path, monkeypatch, version):
    path = publish(server, monkeypatch, version)
    data = fetch_movielens(version, data_home=tmp_path / "home")
    assert data.user_ids.tolist() == [1, 2, 3] and data.item_ids.tolist() == [7, 10, 20]
    assert data.data.toarray().tolist() == [[0, 5, 0], [0, 0, 3], [1, 4, 0]]
    assert data.timestamps.toarray().max() == 103
    assert data.sha256 == sha256(path)
    path.unlink()  # from here on the cache serves
    again = fetch_movielens(
        version, data_home=tmp_path / "home", download_if_missing=False, return_X=True
    )
    assert (again != data.data).nnz == 0


def test_only_the_known_file_is_used(server, tmp_path, monkeypatch):
    home = tmp_path / "home"
    right = sha256(publish(server, monkeypatch))
    with monkeypatch.context() as patch:
        patch.setitem(_fetch._MOVIELENS, "100k", (*_fetch._MOVIELENS["100k"][:4], "0" * 64))
        with pytest.raises(OSError, match="differs from expected"):
            fetch_movielens(data_home=home)
    assert list((home / "skdp").iterdir()) == []  # nothing unchecked stays
    assert fetch_movielens(data_home=home).sha256 == right
    cached = home / "skdp" / "ml-100k.zip"
    cached.write_bytes(cached.read_bytes() + b"x")
    with pytest.raises(OSError, match="another SHA-256"):
        fetch_movielens(data_home=home, download_if_missing=False)
    with pytest.warns(UserWarning, match="re-downloading"):
        fetch_movielens(data_home=home)
    assert sha256(cached) == right


def test_offline(server, tmp_path):
    home = tmp_path / "home"
    with pytest.raises(OSError, match="download_if_missing"):
        fetch_movielens(data_home=home, download_if_missing=False)
    with pytest.raises(OSError, match="Without a network, put the file into the cache"):
        fetch_movielens(data_home=home, n_retries=0)
    with pytest.raises(ValueError, match="'version' parameter"):
        fetch_movielens("3k", data_home=home)


def test_archive_without_ratings(server, tmp_path, monkeypatch):
    publish(server, monkeypatch, ratings=False)
    with pytest.raises(OSError, match="does not hold one file"):
        fetch_movielens(data_home=tmp_path / "home")
