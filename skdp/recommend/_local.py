"""The local model: each person flips the cells of the own history, and trusts nobody."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from skdp._inputs import check_histories
from skdp._links import DocLinkMixin
from skdp._types import Seed
from skdp._validation import check_int, check_real
from skdp.base import BaseDPEstimator, atomic
from skdp.data.histories import binary_rows
from skdp.queries.histories import InteractionHistories
from skdp.recommend._lists import ListsMixin
from skdp.solvers.local_histories import fit_reports


@dataclass(frozen=True)
class LocalHistory:
    """One person's flipped history: it may be published.

    Attributes
    ----------
    ones : ndarray of int
        Places in the list of items that are ones after flipping.
    n_cells : int
        Length of the list of items.
    noise_scale : float
        Standard deviation of the unbiased estimate (y - p)/(1 - 2p) of each cell.
    privacy_spent : PrivacySpent
        The receipt: pure epsilon-local differential privacy for one interaction.
    """

    ones: np.ndarray = field(repr=False)
    n_cells: int
    noise_scale: float
    privacy_spent: object


class _Flipper(BaseDPEstimator):
    """One release of one history: each cell of the public items is flipped by itself."""

    _privacy_units = {"interaction": ("add_remove", "replace")}
    _pure_dp = True
    privacy_unit = "interaction"
    delta = 0.0

    def __init__(self, items, *, epsilon, adjacency, random_state):
        self.items = items
        self.epsilon = epsilon
        self.adjacency = adjacency
        self.random_state = random_state

    @atomic
    def fit(self, X):
        items = checked_items(self.items)
        row = check_array(X, accept_sparse="csr", dtype=np.float64)
        if row.shape[0] != 1 or items[-1] >= row.shape[1]:
            raise ValueError(
                f"a report is made of one history of at least {items[-1] + 1} items, as 'items' "
                f"says. Got shape {row.shape}."
            )
        session = self._open_session(pure=True)
        ask = session.ask(InteractionHistories(sp.csr_array(row), adjacency=self.adjacency))
        return self._close_session(session, {"cells_": ask.cells(items, 0.0, share=1.0)})


class LocalReporter:
    """Flips a person's own history on the own device: nobody else sees the history.

    A report is `epsilon`-differentially private (delta is 0) for one interaction that is there or
    not, whoever collects it. A history of d interactions is protected by d times epsilon, and two
    reports of one person add up.

    Parameters
    ----------
    items : array-like of int
        The public items that are reported on, in ascending order, the same for everybody. Each of
        their cells is flipped with probability p = 1/(1 + e^epsilon), so some items that matter
        (of an earlier release, of a catalogue) are better than all.
    epsilon : float, default=1.0
        Budget of each report.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        One interaction more or less, or moved to another item (half of epsilon for each cell).
    random_state : None or seed, default=None
        For tests: a seeded report is not private.

    See Also
    --------
    LocalRecommender : What the server makes of the reports.

    Examples
    --------
    >>> from skdp.recommend import LocalReporter
    >>> reporter = LocalReporter([0, 2, 3], epsilon=2.0)
    >>> report = reporter.report([1, 0, 0, 1, 0])  # items 1 and 4 are not reported on
    >>> report.n_cells, report.privacy_spent.delta
    (3, 0.0)
    """

    def __init__(
        self,
        items: ArrayLike,
        *,
        epsilon: float = 1.0,
        adjacency: str = "add_remove",
        random_state: Seed = None,
    ) -> None:
        self.items = items
        self.epsilon = epsilon
        self.adjacency = adjacency
        self.random_state = random_state

    def report(self, row: Any) -> Any:
        """Return a report of one history; each call spends `epsilon`.

        Parameters
        ----------
        row : array-like or sparse matrix of shape (n_items,) or (1, n_items)
            The private history: positive entries are interactions.

        Returns
        -------
        report : LocalHistory
        """
        row = row if getattr(row, "ndim", 1) == 2 else np.atleast_2d(np.asarray(row, dtype=float))
        flipper = _Flipper(
            self.items, epsilon=self.epsilon, adjacency=self.adjacency,
            random_state=self.random_state,
        ).fit(row)  # fmt: skip
        cells, noise_scale = flipper.cells_
        ones = cells.indices.astype(np.int64)
        return LocalHistory(ones, cells.shape[1], noise_scale, flipper.privacy_spent_)


class LocalRecommender(DocLinkMixin, ListsMixin, BaseEstimator):
    """A recommender from local reports: the server needs no trust, and all it computes is free.

    Each report is pure epsilon-differentially private for one interaction before it arrives.
    Popularity and tastes are read through the known noise; the weight of the tastes is chosen on
    reports that were left out, from one half of their cells to the other. The filter may be
    published, and devices score their true histories with it; lists that are made of the reports
    themselves may be published too.

    Parameters
    ----------
    items : array-like of int
        The public items that are reported on, as in `LocalReporter`.
    n_items : int
        Number of items of the catalogue.
    n_components : int, default=16
        Number of directions, popularity included.
    item_exponent : float, default=0.5
        As in `DPRecommender`.

    Attributes
    ----------
    filter_ : object
        The public filter: `scores(rows)` of all items.
    counts_ : ndarray of shape (n_items,)
        Unbiased counts; zero where no item was reported on.
    counts_noise_scale_ : float
        Standard deviation of their noise.
    kept_items_ : ndarray of int
        The items of the reports.
    blend_ : float
        Chosen weight of the tastes; 0 is popularity alone.
    rank_ : int
        Number of tastes in the filter.
    n_features_in_ : int
        Number of items.
    n_reports_ : int
        How many reports there are.
    privacy_spent_ : PrivacySpent
        The receipt that covers every report, of whoever sent one.

    See Also
    --------
    DPRecommender : The same from a curator who is trusted with the histories.

    Examples
    --------
    >>> from skdp.datasets import make_histories
    >>> from skdp.recommend import LocalRecommender, LocalReporter
    >>> R = make_histories(400, 50, 8, 3, random_state=0)
    >>> reporter = LocalReporter(range(50), epsilon=4.0)
    >>> reports = [reporter.report(R[[u]]) for u in range(60)]  # each on the device of u
    >>> model = LocalRecommender(range(50), 50, 4).fit(reports)
    >>> items, scores = model.recommend(R[[1]], n=5)  # on the device again
    >>> items.shape
    (1, 5)
    """

    def __init__(
        self, items: ArrayLike, n_items: int, n_components: int = 16, *, item_exponent: float = 0.5
    ) -> None:
        self.items = items
        self.n_items = n_items
        self.n_components = n_components
        self.item_exponent = item_exponent

    def fit(self, reports: Any) -> Self:
        """Fit the filter to reports; costs nothing, and may be done again with more of them.

        Parameters
        ----------
        reports : iterable of LocalHistory
            Reports on `items`, all of one epsilon.

        Returns
        -------
        self : LocalRecommender
        """
        check_int(self, "n_items", 1)
        check_int(self, "n_components", 1)
        check_real(self, "item_exponent", 0, 1, closed="both")
        items = checked_items(self.items)
        if items[-1] >= self.n_items:
            raise ValueError(f"'items' must be below n_items={self.n_items}. Got {items[-1]}.")
        reports = list(reports)
        Y, noise_scale = _stacked(reports, len(items))
        options = (int(self.n_items), int(self.n_components), float(self.item_exponent))
        found = fit_reports(Y, noise_scale, items, *options)
        self.filter_, self.kept_items_ = found.filter, items
        self.counts_, self.counts_noise_scale_ = found.counts.value, found.counts.noise_scale
        self.blend_, self.rank_ = found.filter.blend, found.filter.rank
        self.n_features_in_, self.n_reports_ = int(self.n_items), len(reports)
        self.privacy_spent_ = _receipt(reports)
        return self

    def _histories(self, R):
        check_is_fitted(self)
        rows = check_histories(R, "R")
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"R must have {self.n_features_in_} items, as the filter. Got {rows.shape[1]}."
            )
        return binary_rows(rows)


def checked_items(items):
    """Return item numbers in ascending order, each once."""
    given = items if isinstance(items, range) else np.asarray(items)
    found = np.asarray(given)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu" or found.min() < 0:
        raise ValueError(f"'items' must be item numbers from 0 on, at least one. Got {items!r}.")
    if np.unique(found).size != found.size or np.any(np.diff(found) < 0):
        raise ValueError("'items' must be in ascending order, each item once, for everybody.")
    return found.astype(np.intp)


def _stacked(reports, n_cells):
    """Return the reports as rows of a CSR array, and the noise of their cells."""
    if not reports:
        raise ValueError("no report was given.")
    kinds = {(report.n_cells, report.noise_scale) for report in reports}
    if kinds != {(n_cells, reports[0].noise_scale)}:
        raise ValueError(
            f"reports must be on the same {n_cells} items and of one epsilon. Got lists of "
            f"{sorted({n for n, _ in kinds})} items and {len({s for _, s in kinds})} noise scales."
        )
    ones = [np.asarray(report.ones) for report in reports]
    if not all(_are_places(places, n_cells) for places in ones):
        raise ValueError("a report names cells that are not among its items, or one of them twice.")
    sizes, columns = [len(places) for places in ones], np.concatenate(ones).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shape = (len(reports), n_cells)
    return sp.csr_array((np.ones(columns.size), columns, starts), shape=shape), kinds.pop()[1]


def _are_places(places, n_cells):
    """Whether a report from elsewhere counts no cell twice: nobody votes more than once."""
    if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
        return False
    inside = np.all((places >= 0) & (places < n_cells))
    return bool(inside and np.all(places[1:] > places[:-1]))


def _receipt(reports):
    """Return the receipt of the report that says most of its history."""
    receipts = [report.privacy_spent for report in reports]
    most = max(receipts, key=lambda spent: spent.epsilon)
    return replace(most, seeded=any(spent.seeded for spent in receipts))
