"""Parts of rows on Dask workers: one task for each, an integer sum back, noise at home.

Clipping and rounding happen inside the block's task; tasks return one integer array each, which
tasks add up in a tree, so the driver receives the total alone. It draws the noise once, after the
total has come: a task that runs twice (a lost worker, a retry) makes the same integers again, and
is no second release.

What a task says is not private data either: a task never raises (Dask would log its arguments, and
send the message home), its key is random (Dask's own keys are hashes of data), and the block is
made inside the task wherever the graph allows it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdp.data.blocks import RowSource
from skdp.data.zipped import ZippedRows
from skdp.exceptions import PrivacyError

_FAN_IN = 8  # sums that one task of the tree adds
_ATTEMPTS = 3  # a public matrix that all its workers lost is sent again
_SMALL_BYTES = 2**14  # of a function that travels with each task: a broadcast is a round trip
Work = Callable[[Any], Any]


def _dask() -> Any:
    import dask

    return dask


class Sealed:
    """An argument that Dask neither looks into, nor hashes, nor prints."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<sealed>"


class Lazy(Sealed):
    """The graph of one block, run inside the task that uses the block."""

    def load(self) -> Any:
        """Return the block."""
        graph, key = self.value
        return _dask().get(graph, key)


def _opened(item: Any) -> Any:
    if isinstance(item, Lazy):
        return item.load()
    return item.value if isinstance(item, Sealed) else item


def _run(items: list[Any], build: Sealed, work: Sealed) -> Any:
    """Return what `work` makes of one part, or None if anything fails: the reason stays here."""
    try:
        with np.errstate(all="ignore"):
            part = build.value(*[_opened(item) for item in items])
            return None if part is None else work.value(part)
    except Exception:
        return None


def _combine(values: list[Any], combine: Sealed) -> Any:
    try:
        if any(value is None for value in values):
            return None
        total = values[0]
        for value in values[1:]:
            total = combine.value(total, value)
        return total
    except Exception:
        return None


def _add(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(a + b)


def _same(value: Any) -> Any:
    return value


def _client() -> Any:
    """Return the client of the cluster in use, or None (threads, processes, synchronous)."""
    owner = getattr(_dask().base.get_scheduler(), "__self__", None)
    return owner if hasattr(owner, "scatter") else None


def _pickled(value: Any) -> bytes:
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with Dask
    data: bytes = cloudpickle.dumps(value)
    return data


def _broadcast(work: Work) -> Any:
    """Send a function, and the public arrays in it, to all workers once; small ones by task."""
    sealed, client = Sealed(work), _client()
    if client is None or len(_pickled(sealed)) < _SMALL_BYTES:
        return sealed
    return client.scatter(sealed, broadcast=True, hash=False)


def _failure(kind: str) -> PrivacyError:
    reason = f" ({kind})" if kind else ""
    return PrivacyError(
        f"A block of rows could not be read or summed{reason}. Where and why is withheld: a "
        "worker's message may hold private values. Nothing was released by this step. Compute "
        "one block by hand to see what is wrong; if workers were killed, give them more memory "
        "or smaller blocks."
    )


def _computed(make: Callable[[], Any], forget: Callable[[], None]) -> Any:
    """Compute a total; the error of a cluster becomes one that holds no task, key or value.

    What is kept is forgotten before another attempt: it may have been lost with a worker.
    """
    kind = ""
    for _ in range(_ATTEMPTS):
        total = None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
                (total,) = _dask().compute(make())
        except Exception as error:
            kind = type(error).__name__
        if total is not None:
            return total
        forget()
        if "Cancelled" not in kind and "Timeout" not in kind:
            break  # only what was lost with a worker is worth sending again
    raise _failure(kind)  # outside the except block: no context, which would hold the message


def _tree(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:

    join = _dask().delayed(_combine, pure=False)
    sealed = Sealed(combine)
    while len(parts) > 1:
        parts = [join(parts[i : i + _FAN_IN], sealed) for i in range(0, len(parts), _FAN_IN)]
    return parts[0]


class DaskParts:
    """Parts on workers, each made of some blocks; sums over them (a `RemoteRows`).

    Parameters
    ----------
    parts : list of lists
        The blocks of each part: Dask objects, or what `lazy_blocks` returns.
    build : callable
        Makes a `RowSource` of the blocks of one part, on the worker.
    n_features : int
        Number of columns, public.
    """

    def __init__(
        self, parts: list[list[Any]], build: Callable[..., RowSource], n_features: int
    ) -> None:
        self._parts = parts
        self._build = build
        self.n_features = n_features

    def __getstate__(self) -> None:
        """Refuse to travel: a task that carried this would carry the graph of all rows."""
        raise PrivacyError("a source of rows cannot be pickled")

    def n_rows(self) -> int:
        """Return the private number of rows (of users, where a part is made of users)."""
        return int(self.sum_parts(_count))

    def _tasks(self, work: Any) -> list[Any]:

        run, build = _dask().delayed(_run, pure=False), Sealed(self._build)
        return [run(items, build, work) for items in self._blocks()]

    def _blocks(self) -> list[list[Any]]:
        return self._parts

    def forget(self) -> None:
        """Forget what was kept on workers: it is made again when it is needed."""

    def sum_parts(self, work: Work) -> NDArray[Any]:
        """Return the sum of ``work(part)``, made on the workers."""
        return np.asarray(
            _computed(lambda: _tree(self._tasks(_broadcast(work)), _add), self.forget)
        )

    def reduce(self, work: Work, combine: Callable[[Any, Any], Any], finish: Work) -> Any:
        """Combine ``work(part)`` on the workers; only ``finish`` of the whole comes home."""
        return _reduced(lambda: self._tasks(_broadcast(work)), combine, finish, self.forget)

    def keep(self, make: Work) -> _KeptThere:
        """Keep ``make(part)`` of each part on its worker."""
        return _KeptThere(self, make)

    def zipped(self, kept: _KeptThere) -> DaskParts:
        """Return the parts with columns that were kept of them."""
        return _DaskZipped(self, kept)


def _reduced(
    tasks: Callable[[], list[Any]],
    combine: Callable[[Any, Any], Any],
    finish: Work,
    forget: Callable[[], None],
) -> Any:
    def make() -> Any:
        whole = _tree(tasks(), combine)
        return _dask().delayed(_run, pure=False)([whole], Sealed(_same), Sealed(finish))

    return _computed(make, forget)


def _count(part: RowSource) -> NDArray[np.int64]:
    return np.asarray(part.n_rows(), np.int64)


class _KeptThere:
    """Numbers of single rows, on the workers: made once, made again only if they were lost."""

    def __init__(self, source: DaskParts, make: Work) -> None:
        self._source = source
        self._make = make
        self._held: list[Any] | None = None
        self._work: Any = None  # lost numbers are made again from it

    def held(self) -> list[Any]:
        """Return what is kept of each part."""
        if self._held is None:
            self._work = _broadcast(self._make)
            self._held = list(_dask().persist(*self._source._tasks(self._work)))
        return self._held

    def forget(self) -> None:
        """Make all of it again, from the rows on."""
        self._held = None
        self._source.forget()

    def _tasks(self, work: Any) -> list[Any]:
        run = _dask().delayed(_run, pure=False)
        return [run([kept], Sealed(_same), work) for kept in self.held()]

    def sum(self, work: Work) -> NDArray[Any]:
        """Return the sum of ``work(kept)``."""
        return np.asarray(
            _computed(lambda: _tree(self._tasks(_broadcast(work)), _add), self.forget)
        )

    def reduce(self, work: Work, combine: Callable[[Any, Any], Any], finish: Work) -> Any:
        """Combine ``work(kept)`` on the workers; only ``finish`` of the whole comes home."""
        return _reduced(lambda: self._tasks(_broadcast(work)), combine, finish, self.forget)


class _Zip:
    """Joins one part and its columns, on its worker."""

    def __init__(self, build: Callable[..., RowSource]) -> None:
        self.build = build

    def __call__(self, *blocks: Any) -> RowSource:
        return ZippedRows(self.build(*blocks[:-1]), blocks[-1])


class _DaskZipped(DaskParts):
    """Parts with columns that are kept on the workers."""

    def __init__(self, source: DaskParts, kept: _KeptThere) -> None:
        super().__init__([], _Zip(source._build), source.n_features)
        self._source, self._kept = source, kept

    def n_rows(self) -> int:
        """Return the private number of rows."""
        return self._source.n_rows()

    def _blocks(self) -> list[list[Any]]:
        return [
            [*blocks, kept]
            for blocks, kept in zip(self._source._blocks(), self._kept.held(), strict=True)
        ]

    def forget(self) -> None:
        """Forget what was kept on workers."""
        self._kept.forget()
