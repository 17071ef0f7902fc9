"""Users whose rows lie in blocks: on Dask workers, or in files read one at a time.

All rows of a user must lie in one block: a user in two blocks would send two contributions, each
clipped alone, and count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdp.data.blocks import RowSource
from skdp.data.dask_rows import DaskParts, checked_array, lazy_blocks
from skdp.data.files import BlockFiles
from skdp.data.users import Batch, UserRows

__all__ = ["DaskUsers", "UserForm", "UsersInFiles"]

FloatArray = NDArray[np.float64]
Labels = NDArray[Any]

_SPREAD = (
    "The rows of a user lie in more than one block, where they would count as two users. Sort the "
    "rows by user and cut the blocks between users."
)


@dataclass(frozen=True)
class UserForm:
    """How targets and labels are read; public, so that it can travel.

    Attributes
    ----------
    encode : callable
        From the targets of a block to float64 columns.
    check : callable
        From the labels of a block to labels of one kind (it raises for a missing one).
    scale_targets : bool
        As in `UserRows`.
    n_features, n_outputs : int
        Public shapes.
    """

    encode: Callable[[Any], FloatArray]
    check: Callable[[Any], Labels]
    scale_targets: bool
    n_features: int
    n_outputs: int

    def users(self, X: Any, y: Any, labels: Any) -> UserRows:
        """Return the users of one block."""
        if isinstance(X, BlockFiles):
            X = X.whole()
        if X.ndim != 2 or X.shape[1] != self.n_features or not len(y) == len(labels) == X.shape[0]:
            raise ValueError("a block, its targets and its labels differ in length")
        codes = np.unique(self.check(labels), return_inverse=True)[1]
        rows = X.tocsr() if sp.issparse(X) else X
        return UserRows(rows, self.encode(y), codes, self.scale_targets)


class _Seen(NamedTuple):
    """The users of some blocks, sorted, and whether no two of these blocks share one."""

    labels: Labels
    apart: bool


@dataclass(frozen=True)
class _SeenIn:
    check: Callable[[Any], Labels]

    def __call__(self, labels: Any) -> _Seen:
        return _Seen(np.unique(self.check(labels)), True)


def _both(a: _Seen, b: _Seen) -> _Seen:
    """Labels of unlike kinds may be cast to equal ones: then we refuse what would be right."""
    labels = np.unique(np.concatenate([a.labels, b.labels]))
    return _Seen(labels, a.apart and b.apart and len(labels) == len(a.labels) + len(b.labels))


def _is_apart(seen: _Seen) -> bool:
    return bool(seen.apart)


class DaskUsers(DaskParts):
    """Users on Dask workers; a part is a block of rows, their targets and their labels.

    Parameters
    ----------
    X, y, labels : dask.array.Array
        Rows, and the targets and users of the same rows, in the same blocks.
    form : UserForm
        How they are read.
    """

    def __init__(self, X: Any, y: Any, labels: Any, form: UserForm) -> None:
        columns = [lazy_blocks(part) for part in (checked_array(X), y, labels)]
        if len({len(column) for column in columns}) > 1:
            raise ValueError(
                "X, y and groups need the same blocks: rechunk y and groups to the rows of X. How "
                "many each has is withheld: it may tell the number of rows."
            )
        parts = [list(part) for part in zip(*columns, strict=True)]
        super().__init__(parts, form.users, form.n_features)
        self.n_outputs = form.n_outputs
        self._labels = DaskParts([[part[2]] for part in parts], _first, 0), form.check

    def check_apart(self) -> None:
        """Raise unless all rows of each user lie in one block. No label comes to the driver."""
        labels, check = self._labels
        if not labels.reduce(_SeenIn(check), _both, _is_apart):
            raise ValueError(_SPREAD)


def _first(labels: Any) -> Any:
    return labels


class UsersInFiles:
    """Users whose rows lie in files, read one file at a time (a `RowSource` of batches).

    Parameters
    ----------
    files : BlockFiles
        Rows.
    y, labels : arrays
        Targets and users of all rows, in the order of the files.
    form : UserForm
        How they are read.
    """

    def __init__(self, files: BlockFiles, y: Any, labels: Any, form: UserForm) -> None:
        self.n_features, self.n_outputs = form.n_features, form.n_outputs
        ends = np.cumsum([0, *(file.n_rows() for file in files.files())])
        self._parts = [
            _Part(file, y[int(a) : int(b)], labels[int(a) : int(b)], form)
            for file, a, b in zip(files.files(), ends[:-1], ends[1:], strict=True)
        ]

    def check_apart(self) -> None:
        """Raise unless all rows of each user lie in one file."""
        seen = [np.unique(part.form.check(part.labels)) for part in self._parts]
        if len(np.unique(np.concatenate(seen))) != sum(map(len, seen)):
            raise ValueError(_SPREAD)

    def n_rows(self) -> int:
        """Return the private number of users."""
        return sum(len(np.unique(part.labels)) for part in self._parts)

    def parts(self, n: int) -> list[RowSource]:
        """Cut into `n` sets of files."""
        out: list[RowSource] = []
        for i in range(min(n, len(self._parts))):
            some = object.__new__(UsersInFiles)
            some.n_features, some.n_outputs = self.n_features, self.n_outputs
            some._parts = self._parts[i::n]
            out.append(some)
        return out

    def blocks(self) -> Iterator[Batch]:
        """Yield batches of users, file by file."""
        for part in self._parts:
            yield from part.form.users(part.file, part.y, part.labels).blocks()


class _Part(NamedTuple):
    file: BlockFiles
    y: Any
    labels: Any
    form: UserForm
