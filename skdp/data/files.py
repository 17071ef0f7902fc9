"""Rows in files: npy blocks, memory-mapped one at a time, and npz blocks of CSR matrices."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.lib.npyio import NpzFile

from skdp.data.blocks import Block, DenseRows, RowSource, SparseRows, cuts

_FORMS = "npy files of 2-D arrays of numbers, or npz files of CSR matrices (scipy.sparse.save_npz)"
_PARSER = threading.Lock()  # of headers: the one of Python 3.11 fails at times where threads meet


class _Piece(NamedTuple):
    """Rows start to stop of one file."""

    path: str
    start: int
    stop: int
    sparse: bool


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sparse: bool


def _dtype_of_member(archive: NpzFile, name: str) -> np.dtype[Any]:
    """Read the dtype of an array in an npz file, and nothing more of it."""
    assert archive.zip is not None
    with archive.zip.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        dtype: np.dtype[Any] = read(member)[2]
    return dtype


def _opened_file(path: str) -> Any:
    """Map an npy file, or open an archive; nothing is unpickled."""
    with _PARSER:
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _read_header(path: str) -> _Header:
    """Return shape and dtype of a file; its rows are not read, and never unpickled."""
    found = _opened_file(path)
    if not isinstance(found, NpzFile):
        return _Header(found.shape, found.dtype, False)
    with found as archive:
        if "format" not in archive or archive["format"].item() not in (b"csr", "csr"):
            raise ValueError("not a CSR matrix")
        shape = tuple(int(size) for size in archive["shape"])
        return _Header(shape, _dtype_of_member(archive, "data.npy"), True)


def _checked_header(path: str) -> _Header:
    try:
        header = _read_header(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"The block {path!r} cannot be read. Blocks are {_FORMS}.") from error
    if len(header.shape) != 2 or header.dtype.kind not in "fiub":
        raise ValueError(
            f"The block {path!r} has {len(header.shape)} dimensions of dtype {header.dtype}. "
            f"Blocks are {_FORMS}."
        )
    return header


class BlockFiles:
    """Rows in a list of files, read block by block in each pass; never all at once.

    A file of a 2-D array (npy) is memory-mapped; one of a CSR matrix (npz) is loaded whole, one
    file at a time and thread. Files of one list are all of one kind.

    Parameters
    ----------
    paths : list of path
        The files. Only their headers are read here.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        names = [os.fspath(path) for path in paths]
        headers = [_checked_header(name) for name in names]
        first = headers[0]
        for name, header in zip(names, headers, strict=True):
            if header.shape[1] != first.shape[1] or header.sparse != first.sparse:
                raise ValueError(
                    f"The block {name!r} has {header.shape[1]} columns (sparse: {header.sparse}), "
                    f"{names[0]!r} has {first.shape[1]} (sparse: {first.sparse}). All blocks need "
                    "the same columns and kind."
                )
        self._pieces = [
            _Piece(name, 0, header.shape[0], header.sparse)
            for name, header in zip(names, headers, strict=True)
        ]
        self.n_features = int(first.shape[1])
        self.dtype = np.result_type(*(header.dtype for header in headers))
        self.sparse = first.sparse
        self.known_rows = self.n_rows()

    def _holding(self, pieces: list[_Piece]) -> BlockFiles:
        part = object.__new__(BlockFiles)
        part._pieces = pieces
        part.n_features, part.dtype, part.sparse = self.n_features, self.dtype, self.sparse
        return part

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return sum(piece.stop - piece.start for piece in self._pieces)

    def files(self) -> list[BlockFiles]:
        """Return one source for each file."""
        return [self._holding([piece]) for piece in self._pieces]

    def whole(self) -> Any:
        """Return the rows of one file: a memory map, or a CSR matrix."""
        (piece,) = self._pieces
        return _loaded(piece)[piece.start : piece.stop]

    def chunks(self, n_bytes: int) -> list[BlockFiles]:
        """Cut into sources of about `n_bytes` of dense rows (CSR files are not cut)."""
        row = self.n_features * self.dtype.itemsize
        out = []
        for piece in self._pieces:
            n = -(-(piece.stop - piece.start) * row // n_bytes)
            out += self._ranges(piece, 1 if piece.sparse else n)
        return [self._holding([piece]) for piece in out]

    @staticmethod
    def _ranges(piece: _Piece, n: int) -> list[_Piece]:
        return [
            piece._replace(start=start, stop=stop)
            for start, stop in cuts(piece.start, piece.stop, n)
        ]

    def parts(self, n: int) -> list[RowSource]:
        """Cut into about `n` sources: npy files by rows, npz files as they are."""
        held: list[list[_Piece]] = [[] for _ in range(n)]
        for i, piece in enumerate(self._pieces):
            for j, cut in enumerate(self._ranges(piece, 1 if piece.sparse else n)):
                held[(i + j) % n].append(cut)
        return [self._holding(pieces) for pieces in held if pieces]

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of one file after the other, in blocks of bounded memory."""
        for piece in self._pieces:
            yield from _opened(piece).blocks()


def _loaded(piece: _Piece) -> Any:
    """Map an npy file, or load a CSR matrix."""
    if not piece.sparse:
        return _opened_file(piece.path)
    matrix = sp.load_npz(piece.path)
    matrix.check_format(full_check=True)  # a bad index would be read from foreign memory
    return matrix


def _opened(piece: _Piece) -> RowSource:
    make = SparseRows if piece.sparse else DenseRows
    return make(_loaded(piece), piece.start, piece.stop)
