"""Loaders, on small files of the same format that are written here; nothing goes to a network."""

import gzip
import hashlib
import zipfile

import numpy as np
import pytest

from skdp.datasets import _fetch, fetch_movielens, fetch_snap_graph

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
    address = folder.as_uri()
    monkeypatch.setattr(_fetch, "MOVIELENS_URL", address + "/{archive}.zip")
    monkeypatch.setattr(_fetch, "SNAP_URL", address + "/{file}")
    return folder


def publish(server, version="100k", checksum=True):
    name, separator, heading = FORMATS[version]
    lines = "".join(separator.join(map(str, row)) + "\n" for row in RATINGS)
    path = server / (name.split("/")[0] + ".zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, heading + lines)
        archive.writestr(name.split("/")[0] + "/README", "terms")
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    if checksum:
        (server / (path.name + ".md5")).write_text(f"MD5 ({path.name}) = {digest}\n")
    return path


@pytest.mark.parametrize("version", FORMATS)
def test_ratings(server, tmp_path, version):
    path = publish(server, version)
    data = fetch_movielens(version, data_home=tmp_path / "home")
    assert data.user_ids.tolist() == [1, 2, 3] and data.item_ids.tolist() == [7, 10, 20]
    assert data.data.toarray().tolist() == [[0, 5, 0], [0, 0, 3], [1, 4, 0]]
    assert data.timestamps.toarray().max() == 103
    assert data.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()  # from here on the cache serves
    again = fetch_movielens(
        version, data_home=tmp_path / "home", download_if_missing=False, return_X=True
    )
    assert (again != data.data).nnz == 0


def test_published_checksum_is_demanded(server, tmp_path):
    options = {"data_home": tmp_path / "home", "n_retries": 0}
    publish(server, checksum=False)
    with pytest.raises(OSError, match="md5"):
        fetch_movielens(**options)
    (server / "ml-100k.zip.md5").write_text("0" * 32 + "  ml-100k.zip\n")
    with pytest.raises(OSError, match="publisher's checksum file"):
        fetch_movielens(**options)
    assert list((tmp_path / "home" / "skdp").iterdir()) == []  # nothing half-checked stays


def test_first_download_is_pinned(server, tmp_path):
    publish(server)
    home = tmp_path / "home"
    right = fetch_movielens(data_home=home).sha256
    assert fetch_movielens(data_home=home, sha256=right).sha256 == right
    with pytest.raises(OSError, match="differs from the expected"):
        fetch_movielens(data_home=home, sha256="0" * 64)
    cached = home / "skdp" / "ml-100k.zip"
    cached.write_bytes(cached.read_bytes() + b"x")
    with pytest.raises(OSError, match="differs from the expected"):
        fetch_movielens(data_home=home)


def test_wanted_checksum_is_demanded_of_a_download(server, tmp_path):
    publish(server)
    with pytest.raises(OSError, match="'sha256' asks for"):
        fetch_movielens(data_home=tmp_path / "home", sha256="0" * 64)


def test_offline(server, tmp_path):
    home = tmp_path / "home"
    with pytest.raises(OSError, match="download_if_missing"):
        fetch_movielens(data_home=home, download_if_missing=False)
    with pytest.raises(OSError, match="Without a network, put the file into the cache"):
        fetch_movielens(data_home=home, n_retries=1, delay=0)
    with pytest.raises(ValueError, match="'version' parameter"):
        fetch_movielens("3k", data_home=home)


def test_archive_without_ratings(server, tmp_path):
    with zipfile.ZipFile(server / "ml-100k.zip", "w") as archive:
        archive.writestr("ml-100k/README", "terms")
    digest = hashlib.md5((server / "ml-100k.zip").read_bytes()).hexdigest()
    (server / "ml-100k.zip.md5").write_text(digest)
    with pytest.raises(OSError, match="does not hold one file"):
        fetch_movielens(data_home=tmp_path / "home")


def test_graph(server, tmp_path):
    text = "# Directed graph\n# FromNodeId\tToNodeId\n5\t9\n9\t5\n9\t9\n7\t5\n"
    with gzip.open(server / "ca-GrQc.txt.gz", "wt") as file:
        file.write(text)
    graph = fetch_snap_graph("ca-GrQc", data_home=tmp_path / "home")
    assert graph.nodes.tolist() == [5, 7, 9]
    assert graph.data.toarray().tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="'name' parameter"):
        fetch_snap_graph("web")
