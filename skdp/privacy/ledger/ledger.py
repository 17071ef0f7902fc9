"""One budget over many fits: a ledger that every fit inside it must pay, before data are touched.

How a fit finds its ledgers: `skdp.privacy.ledger.routes`. What composes: `filters`.
"""

from __future__ import annotations

import html
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NoReturn

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.losses import as_text, epsilon_from_losses
from skdp.privacy.accounting.receipts import PrivacySpent, aligned, html_table
from skdp.privacy.ledger.balances import BUDGETS, Balance, Chooser, Terms, part_of, parts_of
from skdp.privacy.ledger.books import Book, Dataset, FileBook, Registry, read_registry
from skdp.privacy.ledger.filters import USUAL_DELTA
from skdp.privacy.ledger.fits import LedgerFit, adopt, is_ours
from skdp.privacy.ledger.routes import COUNTERS, RUN, charged
from skdp.privacy.ledger.scope import OPEN, LedgerFile, OpenLedger, announce, around
from skdp.privacy.store import is_database

# Reports of a ledger: tables as text and HTML, and the history as records.


_COLUMNS = ("fit", "estimator", "unit", "adjacency", "epsilon", "loss", "state", "note")


def _cells(fit: LedgerFit, delta: float) -> tuple[str, ...]:
    adjacency = fit.adjacency + (" (twice)" if fit.factor > 1 else "")
    state = fit.state + (" SEEDED" if fit.seeded else "")
    unit = fit.unit if fit.part is None else f"{fit.unit} in {fit.part.key}={fit.part.name}"
    alone = f"{epsilon_from_losses(fit.losses, delta):.4g}"
    return fit.estimator, unit, adjacency, alone, as_text(fit.losses), state, fit.note


def _table(balance: Balance) -> list[tuple[str, ...]]:
    delta = balance.terms.cap.delta
    fits = balance.entries.items()
    rows = [_COLUMNS, *((str(number), *_cells(fit, delta)) for number, fit in fits)]
    noted = any(row[-1] for row in rows[1:])
    return rows if noted else [row[:-1] for row in rows]


def summary(balance: Balance, delta: float | None = None) -> str:
    """Say what was spent, at a delta, and what is left."""
    spent = balance.spent(delta)
    others = (("mu", spent.mu), ("rho", spent.rho))
    known = ", ".join(f"{name}={value:.4g}" for name, value in others if value is not None)
    rules = sorted({fit.part.key for fit in balance.entries.values() if fit.part is not None})
    parts = f" For each of {', '.join(rules)}, only the most expensive part counts."
    return (
        f"Budget {balance.terms.cap.text()}; spent {spent.statement()}"
        + (f" In other measures: {known}." if known else "")
        + (parts if rules else "")
        + f" Left for one more fit: epsilon={balance.remaining():.4g}."
        + " No fit was charged: only fits in the ledger's 'with' block are." * (not balance.entries)
    )


def as_lines(balance: Balance, more: str = "", delta: float | None = None) -> list[str]:
    """Return the fits and the summary as aligned text."""
    return [*aligned(_table(balance)), summary(balance, delta) + more]


def as_html(balance: Balance, more: str = "", delta: float | None = None) -> str:
    """Return the fits and the summary as HTML."""
    text = html.escape(summary(balance, delta) + more)
    head, *rows = _table(balance)
    return f"{html_table(rows, head)}<p>{text}</p>"


def changes(datasets: Iterable[Dataset]) -> list[dict[str, Any]]:
    """Return every change of a fit as a record, oldest first."""
    records = []
    for dataset in datasets:
        delta = dataset.terms.cap.delta
        for change in dataset.changes:
            row = {"at": change.at, "dataset": dataset.name, "fit": change.number}
            row |= dict.fromkeys(_COLUMNS[1:], "") | {"state": "took nothing"}
            if change.fit is not None:
                row |= zip(_COLUMNS[1:], _cells(change.fit, delta), strict=True)
            records.append(row)
    return sorted(records, key=itemgetter("at"))


# If all fits of a search fail, scikit-learn raises an error of its own, "the model is
# misconfigured", which quotes the errors of the fits. These types are recognised in its text.
_KINDS = {kind.__name__: kind for kind in (PrivacyError, BudgetExceededError)}
_QUOTED = re.compile(rf"(?ms)^skdp\.exceptions\.({'|'.join(_KINDS)}): (.*?)(?=\n-----|\Z)")


class PrivacyLedger:
    """One budget for all fits inside a ``with`` block, charged before any data are touched.

    Everything released inside satisfies (`epsilon`, `delta`)-differential privacy as a whole, for
    one privacy unit and one adjacency, even if each fit depends on earlier released values. Values
    of mu^2 add up over Gaussian fits; a later fit of another kind counts as a Gaussian that
    dominates it. All fits count as fits to the same people, unless `partition` says otherwise. Not
    covered: scores on private rows and choices made by them, projected private rows, and estimators
    without privacy.

    Parameters
    ----------
    epsilon, delta : float or None, default=None
        Total budget, in (0, inf) and [0, 1). With an epsilon, None is delta=1e-6. With delta=0 only
        fits with delta=0 are accepted.
    mu : float or None, default=None
        Instead, a budget of Gaussian DP: values of mu^2 add up, and later parts of other kinds
        count as the Gaussian that dominates them.
    rho : float or None, default=None
        Instead, a budget of zero-concentrated DP: mu^2/2 for a Gaussian fit, epsilon^2/2 for a pure
        one, eta^2/8 for bounded range; they add up.
    adjacency : {"add_remove", "replace"} or None, default=None
        None: the first fit decides. A "replace" ledger charges "add_remove" fits twice (a
        replacement is a removal and an addition); the reverse is rejected.
    unit : str or None, default=None
        Privacy unit of all fits; None: the first fit decides. You ensure that groups are the same
        in all fits.
    allow_seeded : bool, default=False
        Whether to accept fits with a `random_state`, which are not private; `spent` then says
        "SEEDED".
    path : str or path-like, default=None
        A file for the ledger, created with mode 0600 if it does not exist (and a lock file, `path`
        + ".lock"). A charge is on the disk before data are read. If a program is killed, its
        charges remain, and the next program continues with the same budget. Many processes may have
        the file open; processes that this one starts charge it too. A process rejects a file that
        is older than what it read there before.
    dataset : str, default=None
        Name of one of several ledgers in the file, each with its own budget and unit. It is added
        if it does not exist (`open` takes existing ones only). None: the only one.
    note : str, default=""
        Who fits, and what for. The report and the history show it for each fit; a stream is one
        fit, with the note of the ledger that its first batch was charged to.

    Notes
    -----
    A fit reserves its budget when it starts, and is charged what it was granted when it ends. A fit
    that fails before its first release costs nothing. A later failure keeps the charge, because it
    may depend on released values.

    A rejected fit raises an error and reads no data. If the calling code hides the error (a grid
    search records nan), the end of the block raises it again. `remaining` says what is left.

    The rows of a fit must not depend on other private rows: under "add_remove" use
    `skdp.model_selection.IndependentKFold`.

    Clones and pickles made inside are rejected unless `charge` has paid for them. Searches whose
    folds or scores cannot be counted are rejected there.

    A fit charges every ledger that is open in its process, in any thread. A fit in a process
    started from this one (joblib, multiprocessing, Dask on this machine) charges the file of the
    ledger; without a `path` it raises PrivacyError. Processes on other machines, and those that
    were not started from here, are not counted.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA, PrivacyLedger
    >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) * np.geomspace(1, 0.1, 3)
    >>> with PrivacyLedger(epsilon=3.0, delta=1e-5) as ledger:
    ...     for n_components in (1, 2):
    ...         pca = DPPCA(n_components, epsilon=1.0, clip_norm=3.0).fit(X)
    >>> len(ledger.entries), round(ledger.spent.mu / pca.privacy_spent_.mu, 6)
    (2, 1.414214)
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        mu: float | None = None,
        rho: float | None = None,
        adjacency: str | None = None,
        unit: str | None = None,
        allow_seeded: bool = False,
        path: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        note: str = "",
    ) -> None:
        if epsilon is not None and delta is None:
            delta = USUAL_DELTA
        terms = Terms(epsilon, delta, adjacency, unit, allow_seeded, mu, rho)
        if path is None and dataset is not None:
            raise ValueError("'dataset' names a part of a file: give its 'path' too.")
        if path is None:
            self._keep(Book(terms, note))
        else:
            self._keep(FileBook(os.fspath(path), terms, dataset, note=note))

    def _keep(self, book: Book) -> None:
        """Work with a book."""
        terms = book.terms
        self.epsilon, self.delta = terms.epsilon, terms.delta
        self.mu, self.rho, self.allow_seeded = terms.mu, terms.rho, terms.allow_seeded
        self.path = book.path if isinstance(book, FileBook) else None
        self.dataset = book.dataset if isinstance(book, FileBook) else None
        self.note = book.note
        self._book = book
        self._refused = self._book.refused
        self._token = adopt(self._book.token)
        self._lock = threading.Lock()
        self._withdraw: Callable[[], None] | None = None

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], dataset: str | None = None, *, note: str = ""
    ) -> PrivacyLedger:
        """Return the ledger of a dataset that a file has already, with the terms it has there.

        Parameters
        ----------
        path : str or path-like
            A file made by ``PrivacyLedger(..., path=..., dataset=...)`` or by
            ``python -m skdp.ledger add``.
        dataset : str, default=None
            Its name; not needed if the file has one dataset only.
        note : str, default=""
            Who fits, and what for.

        Returns
        -------
        PrivacyLedger
        """
        if not (os.path.exists(path) and is_database(os.path.realpath(path))):
            raise PrivacyError(
                f"{os.fspath(path)!r} is no PrivacyLedger file: PrivacyLedger(epsilon=..., "
                "path=...) makes one."
            )
        ledger = cls.__new__(cls)
        ledger._keep(FileBook(os.fspath(path), dataset=dataset, note=note))
        return ledger

    def __enter__(self) -> PrivacyLedger:
        if not is_ours(self._token):
            raise PrivacyError("a PrivacyLedger works in the process that made it only.")
        mine = False
        try:
            with self._lock:
                if self._token in around()[0]:
                    raise PrivacyError("this PrivacyLedger is open already.")
                mine = True
                self._refused.clear()
                file = LedgerFile(self.path or "", self.note)
                self._withdraw = announce(self._token, file)
                OPEN[self._token] = OpenLedger(self._book, RUN.get(), file, os.getpid())
            return self
        except BaseException:
            if mine:  # otherwise nothing would close it
                self._leave()
            raise

    def _leave(self) -> None:
        with self._lock:  # two threads may leave at once
            OPEN.pop(self._token, None)
            if self._withdraw is not None:
                self._withdraw()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None = None, *_: object
    ) -> None:
        try:
            if not self._is_open():
                return
            self._leave()
        except BaseException:  # on an interrupt nothing else would close it
            if self._is_open() or self._token not in OPEN:
                self._leave()
            raise
        quoted = _QUOTED.findall(str(error)) if isinstance(error, ValueError) else []
        rejected = self._refused or [(_KINDS[name], text) for name, text in quoted]
        if not rejected or (kind is not None and not quoted):
            return
        for_budget = [refusal for refusal in rejected if refusal[0] is BudgetExceededError]
        refused, first = (for_budget or rejected)[0]
        raise refused(
            f"{len(rejected)} fit(s) inside this PrivacyLedger were rejected, and the calling code "
            "hid the errors (a grid search makes them nan scores). Catch them outside the block. "
            f"First: {first}"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a PrivacyLedger cannot be copied or pickled: it would be spent twice.")

    def remaining(self, delta: float | None = None) -> float:
        """Return the largest epsilon that one more fit can have.

        Parameters
        ----------
        delta : float or None, default=None
            Delta of that fit. None takes that of the ledger, or 1e-6 if its budget is mu or rho.

        Returns
        -------
        float
            Accepted by this ledger for a fit of Gaussian releases with its adjacency, in the part
            of the data that is open (`partition`); 0.0 if no fit is accepted. With ``delta=0``,
            for a pure fit.
        """
        return self._book.balance().remaining(delta, part_of(self._token))

    @contextmanager
    def partition(
        self, key: str, parts: Sequence[str], *, whole_groups: bool = False
    ) -> Iterator[Chooser]:
        """Fit to disjoint parts of the data, at the cost of the most expensive part.

        This is parallel composition. A public rule must assign each unit to a part, and read that
        unit alone. For a label, an entry or an interaction it must not read the protected value,
        only what is public. Blocks with the same `key`, also later, are parts of one rule.

        Parameters
        ----------
        key : str
            Name of the rule, a column for instance.
        parts : sequence of str
            Names of all its parts; public.
        whole_groups : bool, default=False
            For the unit "group": states that all rows of a group lie in one part.

        Yields
        ------
        part : callable
            ``with part(name):`` is the block of one part. A fit outside of such a block, in
            another thread or in another process, is charged as a fit to all rows.

        Raises
        ------
        PrivacyError
            For edges, changes of bounded norm, and replaced rows, which may leave one part and
            enter another.

        Examples
        --------
        >>> import numpy as np
        >>> from skdp import DPPCA, PrivacyLedger
        >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) * np.geomspace(1, 0.1, 3)
        >>> region = np.repeat(["north", "south"], 5000)
        >>> with PrivacyLedger(epsilon=1.0, delta=1e-6) as ledger:
        ...     with ledger.partition(key="region", parts=["north", "south"]) as part:
        ...         for name in ("north", "south"):
        ...             with part(name):
        ...                 pca = DPPCA(1, epsilon=1.0, clip_norm=3.0).fit(X[region == name])
        >>> ledger.spent
        (epsilon=1, delta=1e-06) row
        """
        self._check_open()
        with parts_of(self._token, key, parts, whole_groups) as part:
            yield part

    @contextmanager
    def charge(
        self,
        fitted: object,
        n_samples: int | None = None,
        *,
        groups: object = None,
        cv: object = None,
        scoring: object = None,
        assume_all_rows: bool = False,
    ) -> Iterator[None]:
        """Charge in advance for code that fits clones, and allow it inside the block.

        A ledger otherwise rejects clones and pickles of private estimators, because it cannot know
        their rows. All open ledgers are charged before data are read. A search is charged for one
        call of its `fit`, with its current parameters and these rows. The unused part is returned
        only if nothing was used. The fits may run in other processes of this machine.

        Parameters
        ----------
        fitted : estimator
            `GridSearchCV` or `RandomizedSearchCV` with private scorers: charged in advance, as
            `search_cost` counts it. A private estimator with `cv` (and `scoring`): one
            cross-validation; the report says if scores are exact, as no ledger covers those.
            Without `cv`, an estimator of scikit-learn that fits clones on all its rows
            (`VotingRegressor`, `MultiOutputRegressor`, `ColumnTransformer`, ...): each fit is
            charged when it starts.
        n_samples : int, default=None
            Number of rows, if it is public.
        groups : array-like, default=None
            Users of the rows, for the unit "group".
        cv, scoring : object
            For an estimator: exactly as given to `~sklearn.model_selection.cross_validate`.
        assume_all_rows : bool, default=False
            For a private estimator without `cv`: you state that its clones in the block receive all
            rows unchanged, and that no exact score decides. Each fit is charged; the ledger and the
            receipt name your statement.

        Raises
        ------
        PrivacyError
            If the code that fits the clones is unknown, if the folds cannot be counted, or if
            scores without privacy decide.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from skdp import DPPCA, PrivacyLedger
        >>> from skdp.model_selection import IndependentKFold, make_private_scorer
        >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) * [0.3, 0.3, 0.1]
        >>> scorer = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.1)
        >>> pca = DPPCA(clip_norm=1.0, epsilon=0.2)
        >>> search = GridSearchCV(
        ...     pca, {"n_components": [1, 2]}, scoring=scorer, cv=IndependentKFold(3)
        ... )
        >>> with PrivacyLedger(epsilon=2.0, delta=1e-5) as ledger:
        ...     with ledger.charge(search):
        ...         model = search.fit(X)
        >>> [entry.estimator for entry in ledger.entries]
        ['GridSearchCV (2 candidates)']
        """
        self._check_open()
        settings = {"groups": groups, "cv": cv, "scoring": scoring}
        with charged(COUNTERS[-1](fitted, n_samples, **settings, assume_all_rows=assume_all_rows)):
            yield

    @property
    def entries(self) -> tuple[LedgerFit, ...]:
        """The fits that were charged, oldest first."""
        return tuple(self._book.balance().entries.values())

    def history(self) -> Any:
        """Return every change of a fit in the file, with its time, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(changes([self._in_file().choose(self.dataset)]))

    @property
    def file_hash(self) -> str:
        """A hash over everything that the file has now, of all datasets: keep it elsewhere.

        ``python -m skdp.ledger verify FILE --hash HASH`` checks whether the file still has it.
        """
        return self._in_file().file_hash

    def _in_file(self) -> Registry:
        if not isinstance(self._book, FileBook):
            raise ValueError("only a PrivacyLedger with a 'path' keeps its history: use report().")
        return read_registry(self._book.path)

    @property
    def rejected_fits(self) -> tuple[str, ...]:
        """Reasons of the fits that were rejected since the ledger was last opened."""
        return tuple(text for _, text in self._refused)

    @property
    def spent(self) -> PrivacySpent:
        """The receipt of all fits so far. Fits that still run count with their whole budget."""
        return self._book.balance().spent()

    def spent_at(self, delta: float) -> PrivacySpent:
        """Return the receipt of everything so far at another delta.

        Parameters
        ----------
        delta : float
            In [0, 1).

        Returns
        -------
        PrivacySpent
            Its `epsilon` belongs to this delta; `mu` and `rho` are the same at each.
        """
        return self._book.balance().spent(delta)

    def report(self, delta: float | None = None) -> str:
        """Return the charged fits as aligned text, with what was spent and what is left.

        Parameters
        ----------
        delta : float or None, default=None
            Delta at which the spent epsilon is stated; None takes that of the ledger.

        Returns
        -------
        str
            Notebooks show the ledger itself as a table.
        """
        return "\n".join(as_lines(self._book.balance(), self._refusals_text(), delta))

    def _repr_html_(self) -> str:
        return as_html(self._book.balance(), self._refusals_text())

    def _refusals_text(self) -> str:
        return f" Refused since this object was opened: {n}." if (n := len(self._refused)) else ""

    def _is_open(self) -> bool:
        """Whether this very object is open here: another may have the same data."""
        opened = OPEN.get(self._token)
        return opened is not None and opened.book is self._book and opened.process == os.getpid()

    def _check_open(self) -> None:
        if not self._is_open():
            raise PrivacyError("open the PrivacyLedger first: with PrivacyLedger(...) as ledger.")

    def __repr__(self) -> str:
        budget = {name: getattr(self, name) for name in BUDGETS}
        given = ", ".join(f"{name}={x!r}" for name, x in budget.items() if x is not None)
        return f"PrivacyLedger({given})"
