"""One budget over many fits: a ledger that every fit inside it must pay, before data are touched.

How a fit finds its ledgers: `skdp.privacy.ledger.routes`. What composes: `filters`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from skdp.exceptions import BudgetExceededError, PrivacyError
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.ledger.balances import Terms
from skdp.privacy.ledger.books import Book
from skdp.privacy.ledger.disjoint import Chooser, part_of, parts_of
from skdp.privacy.ledger.files import FileBook
from skdp.privacy.ledger.fits import LedgerFit
from skdp.privacy.ledger.reservations import RUN
from skdp.privacy.ledger.routes import COUNTERS, pay_for
from skdp.privacy.ledger.scope import OPEN, OpenLedger, adopt, announce, around, is_ours
from skdp.privacy.ledger.views import as_html, as_lines, changes


class PrivacyLedger:
    """One budget for all fits inside a ``with`` block, charged before any data are touched.

    Everything released inside satisfies (`epsilon`, `delta`)-differential privacy as a whole, in
    one privacy unit and one adjacency, also if each fit is chosen by the answers of those before.
    Gaussian fits compose exactly, as the root of the sum of their squared mu; later fits of other
    kinds as Gaussians that dominate them; a fit's own delta only sets its noise. All fits count
    as fits to the same people: folds and disjoint parts get no discount. Not covered: scores on
    private rows (so a choice made by an exact score), projected private rows, and
    estimators without privacy.

    Parameters
    ----------
    epsilon, delta : float
        Total budget, in (0, inf) and [0, 1). With delta=0 only fits with delta=0 can be paid.
    mu : float
        In place of them, a budget of Gaussian DP: squares of mu add up, and later parts of other
        kinds count as the Gaussian that dominates them.
    rho : float
        In place of them, a budget of zero-concentrated DP: mu^2/2 for a Gaussian fit, epsilon^2/2
        for a pure one, eta^2/8 for bounded range; they add up.
    adjacency : {"add_remove", "replace"} or None, default=None
        None: the first fit decides. A "replace" ledger takes "add_remove" fits at twice their loss
        (a replacement is a removal and an addition); the reverse is refused.
    unit : str or None, default=None
        Privacy unit of all fits; None: the first fit decides. That groups stay the same groups is
        up to the caller.
    allow_seeded : bool, default=False
        Take fits with a `random_state`, which are not private; `spent` is then flagged.
    path : str or path-like, default=None
        A file that keeps the ledger, made with mode 0600 if it is not there. A charge is on the
        disk before any data are read, a program that is killed leaves what it had charged, and the
        next one goes on with the same terms. Many processes may have it open; those that this one
        started charge it.
    dataset : str, default=None
        A file may keep the ledgers of many datasets, each with its own budget and unit: the name
        of one of them, which is added if it is not there (`open` takes those that are). None: the
        only one.

    Notes
    -----
    A fit reserves its budget when it starts and settles to what it was granted when it ends. One
    that fails before its first release spends nothing. One that fails later keeps what it was
    granted: that it failed, and how, is a function of the answers.

    A refused fit raises and touches no data. Whoever swallows the error (a grid search makes it a
    nan score) meets it again at the end of the block. To stop in time, ask `remaining`.

    Which rows a fit gets may not depend on other private rows: under "add_remove" use
    `skdp.model_selection.IndependentKFold`.

    A clone or a pickle that is made inside is fitted only if it was paid for by name: `pay_for`.
    Searches whose folds or scores cannot be counted are refused there.

    A fit pays every ledger that is open in its process, in whatever thread it runs. A fit in a
    process that descends from this one (joblib, multiprocessing, Dask on this machine) charges the
    file of the ledger; without a `path` it raises PrivacyError. The limit: processes of other
    machines, and those that were not started from here, know no ledger.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA, PrivacyLedger
    >>> X = np.random.default_rng(0).standard_normal((10_000, 3))
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
    ) -> None:
        terms = Terms(epsilon, delta, adjacency, unit, allow_seeded, mu, rho)
        if path is None and dataset is not None:
            raise ValueError("'dataset' names a part of a file: give its 'path' too.")
        self._keep(Book(terms) if path is None else FileBook(os.fspath(path), terms, dataset))

    def _keep(self, book: Book) -> None:
        """Work with a book."""
        terms = book.terms
        self.epsilon, self.delta = terms.epsilon, terms.delta
        self.mu, self.rho, self.allow_seeded = terms.mu, terms.rho, terms.allow_seeded
        self.path = book.path if isinstance(book, FileBook) else None
        self.dataset = book.dataset if isinstance(book, FileBook) else None
        self._book = book
        self._refused = self._book.refused
        self._token = self._book.token
        adopt(self._token)
        self._lock = threading.Lock()
        self._withdraw: Callable[[], None] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], dataset: str | None = None) -> PrivacyLedger:
        """Return the ledger of a dataset that a file has already, with the terms it has there.

        Parameters
        ----------
        path : str or path-like
            A file made by ``PrivacyLedger(..., path=..., dataset=...)`` or by
            ``python -m skdp.ledger add``.
        dataset : str, default=None
            Its name; not needed if the file has one dataset only.

        Returns
        -------
        PrivacyLedger
        """
        ledger = cls.__new__(cls)
        ledger._keep(FileBook(os.fspath(path), dataset=dataset))
        return ledger

    def __enter__(self) -> PrivacyLedger:
        if not is_ours(self._token):
            raise PrivacyError("a PrivacyLedger works in the process that made it only.")
        with self._lock:
            if self._token in around()[0]:
                raise PrivacyError("this PrivacyLedger is open already.")
            self._withdraw = announce(self._token, self.path or "")
            OPEN[self._token] = OpenLedger(self._book, RUN.get(), self.path or "", os.getpid())
        self._refused.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        OPEN.pop(self._token, None)
        if self._withdraw is not None:
            self._withdraw()
        if kind is not None or not self._refused:
            return
        for_budget = [refusal for refusal in self._refused if refusal[0] is BudgetExceededError]
        error, first = (for_budget or self._refused)[0]
        raise error(
            f"{len(self._refused)} fit(s) inside this PrivacyLedger were refused and the error was "
            f"swallowed (a grid search turns it into a nan score). First: {first}"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a PrivacyLedger cannot be copied or pickled: it would be spent twice.")

    def remaining(self, delta: float | None = None) -> float:
        """Return the largest epsilon that one more fit can have.

        Parameters
        ----------
        delta : float, default=None
            Of that fit; None: of the ledger, 1e-6 for budgets that have none.

        Returns
        -------
        float
            Affordable (tried, not estimated) for a fit of Gaussian releases with the ledger's
            adjacency, in the part of the data that is open (`disjoint`); 0.0 if there is none.
            With ``delta=0``, for a pure fit.
        """
        return self._book.balance().remaining(delta, part_of(self._token))

    @contextmanager
    def disjoint(
        self, key: str, parts: Sequence[str], *, whole_groups: bool = False
    ) -> Iterator[Chooser]:
        """Fit to parts of the data that no unit shares, for the price of the dearest part.

        Which part a unit belongs to has to follow from a public rule that looks at this unit
        alone (for a label, an entry or an interaction, not at what is protected): parallel
        composition. Blocks with the same `key`, today or tomorrow, are parts of one rule.

        Parameters
        ----------
        key : str
            Name of the rule, a column for instance.
        parts : sequence of str
            Names of all its parts; public.
        whole_groups : bool, default=False
            That the rule puts all rows of a group into one part, for the unit "group".

        Yields
        ------
        part : callable
            ``with part(name):`` is the block of one part. A fit outside of such a block, in
            another thread or in another process is charged as a fit to everything.

        Raises
        ------
        PrivacyError
            By a fit of a unit for which it is false: edges, changes of bounded norm, replaced rows
            (a replacement may leave one part and enter another).

        Examples
        --------
        >>> import numpy as np
        >>> from skdp import DPPCA, PrivacyLedger
        >>> X = np.random.default_rng(0).standard_normal((10_000, 3))
        >>> region = np.repeat(["north", "south"], 5000)
        >>> with PrivacyLedger(epsilon=1.0, delta=1e-6) as ledger:
        ...     with ledger.disjoint(key="region", parts=["north", "south"]) as part:
        ...         for name in ("north", "south"):
        ...             with part(name):
        ...                 pca = DPPCA(1, epsilon=1.0, clip_norm=3.0).fit(X[region == name])
        >>> ledger.spent
        (ε=1, δ=1e-06) row
        """
        self._check_open()
        with parts_of(self._token, key, parts, whole_groups) as part:
            yield part

    @contextmanager
    def pay_for(
        self,
        fitted: object,
        n_samples: int | None = None,
        *,
        groups: object = None,
        cv: object = None,
        scoring: object = None,
    ) -> Iterator[None]:
        """Pay beforehand for what fits clones: a context in which it may be fitted.

        Inside a ledger, clones and pickles of private estimators are refused otherwise: other code
        made them, and nobody knows which rows they will get. All open ledgers are charged, before
        anything is touched. What was paid for and not used ends with the block; if nothing was
        used, it costs nothing. The fits may run in other processes of this machine.

        Parameters
        ----------
        fitted : estimator
            `GridSearchCV` or `RandomizedSearchCV` with private scorers: charged at once, as
            `search_cost` counts it. A private estimator and its `cv` (and private `scoring`): one
            cross-validation. Without `cv`, a composition of scikit-learn that fits a clone of a
            private estimator on all its rows (`VotingRegressor`, `MultiOutputRegressor`,
            `ColumnTransformer`, ...), or a private estimator whose clones you fit so: each fit is
            charged as one.
        n_samples : int, default=None
            Number of rows, where it is public.
        groups : array-like, default=None
            Users of the rows, for the unit "group".
        cv, scoring : object
            For an estimator: exactly as given to `~sklearn.model_selection.cross_validate`.

        Raises
        ------
        PrivacyError
            Where the folds cannot be counted, or scores without privacy decide.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from skdp import DPPCA, PrivacyLedger
        >>> from skdp.model_selection import IndependentKFold, make_private_scorer
        >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) / 3
        >>> scorer = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=0.1)
        >>> pca = DPPCA(clip_norm=1.0, epsilon=0.2)
        >>> search = GridSearchCV(
        ...     pca, {"n_components": [1, 2]}, scoring=scorer, cv=IndependentKFold(3)
        ... )
        >>> with PrivacyLedger(epsilon=2.0, delta=1e-5) as ledger:
        ...     with ledger.pay_for(search):
        ...         model = search.fit(X)
        >>> [entry.estimator for entry in ledger.entries]
        ['GridSearchCV (2 candidates)']
        """
        self._check_open()
        with pay_for(COUNTERS[-1](fitted, n_samples, groups=groups, cv=cv, scoring=scoring)):
            yield

    @property
    def entries(self) -> tuple[LedgerFit, ...]:
        """The fits that were charged, oldest first."""
        return tuple(self._book.balance().entries.values())

    def history(self) -> Any:
        """Return every change of a fit in the file, with its time, as a pandas DataFrame."""
        import pandas as pd

        registry = self._in_file().registry()
        return pd.DataFrame(changes([registry.choose(self.dataset)]))

    @property
    def head(self) -> str:
        """A hash over everything that the file has now, of all datasets: keep it elsewhere.

        ``python -m skdp.ledger verify FILE --head HASH`` says whether that is still there.
        """
        return self._in_file().registry().head

    def _in_file(self) -> FileBook:
        if not isinstance(self._book, FileBook):
            raise ValueError("only a PrivacyLedger with a 'path' keeps its history.")
        return self._book

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why fits were refused, since the ledger was last opened."""
        return tuple(text for _, text in self._refused)

    @property
    def spent(self) -> PrivacySpent:
        """The receipt of everything so far, fits that still run with their whole budget."""
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
        delta : float, default=None
            For the epsilon that was spent; None: of the ledger.

        Returns
        -------
        str
            Notebooks show the ledger itself as a table.
        """
        return "\n".join(as_lines(self._book.balance(), self._refusals_text(), delta))

    def _repr_html_(self) -> str:
        return as_html(self._book.balance(), self._refusals_text())

    def _refusals_text(self) -> str:
        return f" Refused: {len(self.refusals)}."

    def _check_open(self) -> None:
        if self._token not in around()[0]:
            raise PrivacyError("open the PrivacyLedger first: with PrivacyLedger(...) as ledger.")

    def __repr__(self) -> str:
        budget = {name: getattr(self, name) for name in ("epsilon", "delta", "mu", "rho")}
        given = ", ".join(
            f"{name}={value!r}" for name, value in budget.items() if value is not None
        )
        return f"PrivacyLedger({given})"
