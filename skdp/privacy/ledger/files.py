"""A book in a file: it outlives the process, and many processes write to it.

A charge is on the disk before any data are read: the transaction ends with a sync of the file and
of its directory. Who is killed between the charge and the release leaves an open entry, which
counts with its whole budget. Writers wait for each other, so that check and charge are one step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import Book, Entries
from skdp.privacy.ledger.chain import make_file, transaction
from skdp.privacy.ledger.registry import (
    Dataset,
    Registry,
    add_dataset,
    fit_state,
    read_registry,
    registry_of,
)


class FileBook(Book):
    """Entries of one dataset in a database file, mode 0600.

    Parameters
    ----------
    path : str
        The file.
    terms : Terms or None, default=None
        A dataset that is new is made with them, another must have the same. None: read them.
    dataset : str or None, default=None
        Its name. None: the only one of the file.
    token : str or None, default=None
        In place of the name.
    """

    def __init__(
        self,
        path: str,
        terms: Terms | None = None,
        dataset: str | None = None,
        token: str | None = None,
    ) -> None:
        self.path = os.path.realpath(path)
        if terms is not None:
            make_file(self.path)
        with transaction(self.path) as chain:
            kept = (
                add_dataset(chain, self.path, dataset, terms)
                if token is None
                else registry_of(chain, self.path).with_token(token)
            )
        super().__init__(kept.terms)
        self.dataset, self.token = kept.name, kept.token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileBook) and (other.path, other.token) == (self.path, self.token)

    def __hash__(self) -> int:
        return hash((self.path, self.token))

    def registry(self) -> Registry:
        """Return what stands in the whole file."""
        return read_registry(self.path)

    @contextmanager
    def held(self) -> Iterator[Entries]:
        """Hold the entries; what was changed is on the disk when this is left."""
        with self._lock, transaction(self.path) as chain:
            kept = registry_of(chain, self.path).with_token(self.token)
            before, entries = kept.entries, kept.entries
            self._last = _last_number(kept)
            yield entries
            for number in sorted(before.keys() | entries.keys()):
                fit = entries.get(number)
                if fit != before.get(number):
                    state = None if fit is None else fit_state(fit)
                    chain.add(dataset=self.dataset, number=number, fit=state)


def _last_number(kept: Dataset) -> int:
    """Return the last number in use: that of a fit that cost nothing is not used again."""
    return max((change.number for change in kept.changes), default=0)
