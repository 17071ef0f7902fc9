"""Private scorers, for models whose prediction for a row depends on that row alone."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length
from sklearn.utils.metadata_routing import MetadataRequest

from skdp._limits import LARGEST_SIZE
from skdp._validation import ColumnBounds, Seed, as_labels, check_labels, is_real, kind_of
from skdp.exceptions import PrivacyError, unheard
from skdp.model_selection._proven import (
    apply,
    as_entries,
    as_numbers,
    as_rows,
    each_row,
    fast_map,
    in_a_batch,
    n_rows,
    public_row,
)
from skdp.privacy.gate.bounds import PrivacyBudget
from skdp.privacy.gate.session import PrivacySession
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.fits import budget_losses
from skdp.privacy.ledger.routes import handed_on
from skdp.privacy.noise.words import make_source
from skdp.queries.regression import LossQuery
from skdp.units import ADJACENCIES, UNITS, unit_named

_COUNT_SHARE = 0.2  # budget fraction of the count, which only the mean needs: sums order the runs
_ROW_UNITS = tuple(name for name, unit in UNITS.items() if unit.in_one_row or unit.of_groups)


def scored_unit(name):
    """Return the unit if one changes the loss of one row, or the mean loss of a group, or raise."""
    unit = unit_named(name)
    if unit.name not in _ROW_UNITS:
        raise PrivacyError(
            f"one {name} can change the losses of many rows, so it has no private score."
        )
    return unit


def _distance(x, found):
    """Squared distance of rows, as sums along rows."""
    x = x.toarray() if sp.issparse(x) else x
    return np.sum(np.square(np.ascontiguousarray(x - found)), axis=1)


def _share_lost(origin, x, found):
    """Return the fraction of each row's squared distance from an origin that the projection loses.

    It lies in [0, 1] whatever the scale of the rows is. The result for a row that is not finite is
    NaN.
    """
    whole = _distance(x, origin)
    return np.divide(_distance(x, found), whole, out=np.zeros_like(whole), where=whole != 0)


# name -> (method of the model, function (target, prediction) -> loss)
SCORER_LOSSES = {
    "squared_error": ("predict", lambda y, found: (y - found) ** 2),
    "absolute_error": ("predict", lambda y, found: np.abs(y - found)),
    "zero_one": ("predict", np.not_equal),
    "reconstruction": ("reconstruct", _distance),
    "share_lost": ("reconstruct", _share_lost),  # given the origin of the model first
    "missed_items": ("recommend", lambda x, found: found),  # which are the losses
}
SHARES = ("zero_one", "share_lost", "missed_items")  # between 0 and 1, whatever the data are


def _by_row(method, loss, X, y, found):
    """Return one loss for each row, the mean over its targets.

    Shapes are made equal first: a column (n, 1) minus n numbers would broadcast to n^2 losses.
    """
    if method != "predict":
        return loss(X, found)
    y, found = (np.reshape(values, (len(values), -1)) for values in (y, np.asarray(found)))
    if y.shape[1] != found.shape[1]:
        raise ValueError(f"y has {y.shape[1]} target(s), the model predicts {found.shape[1]}.")
    return np.mean(np.ascontiguousarray(loss(y, found)), axis=1)


def _row_loss(method, loss, model, X, y):
    return _by_row(method, loss, X, y, apply(model, method, X))


def _origin(model, X):
    """Return the reconstruction of a row whose projection is zero: the model's mean, or zeros."""
    if public_row(X) is None:  # there is none for this data frame: use the number of components
        last = model[-1] if isinstance(model, Pipeline) else model
        return model.inverse_transform(np.zeros((1, len(last.components_))))
    return model.inverse_transform(np.zeros_like(_of_public_row(model.transform, X)))


def _of_public_row(function, X):
    """Call a function with a row of zeros, or with one of ones if zeros fail, as in a logarithm."""
    with np.errstate(all="ignore"):
        try:
            return unheard(function, public_row(X))
        except Exception:
            with suppress(Exception):
                return unheard(function, public_row(X, 1.0))
            raise


def _of_its_own_type(y):
    """Return the target of a row as it were alone: other rows decide the dtype of a batch."""
    return np.asarray(y.tolist()) if y is not None and y.dtype.kind == "O" else y


def _public_target(model, y):
    """Return a public target of the same kind as y: a known class, or 0."""
    classes = getattr(model, "classes_", None)
    value = np.zeros(1) if classes is None else np.ravel(np.asarray(classes))[:1]
    return np.resize(value, (1, *y.shape[1:]))


@dataclass(eq=False, repr=False)
class PrivateScorer:
    """Scorer that releases minus the mean of a bounded loss with differential privacy.

    Called as scikit-learn's scorers are, ``scorer(model, X, y)``: each call is one release that
    spends its (`epsilon`, `delta`), and is charged to the open `PrivacyLedger`.
    `make_private_scorer` is another name of this class, in the words of scikit-learn.

    Each loss is clipped to `bounds`. Measured from their midpoint, the sum of losses changes by at
    most (high - low)/2 if a row is added or removed, and by high - low if one is replaced. The
    number of rows is released too under "add_remove" (a quarter of the budget), and public under
    "replace". R^2 and AUC have no private scorer, because one row can change them by their whole
    range.

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "zero_one", "reconstruction", "share_lost", \
            "missed_items"} or callable
        "reconstruction" is the squared distance of a row from ``inverse_transform(transform(x))``,
        "share_lost" its fraction of the squared distance from the model's mean, in (0, 1).
        "missed_items" is for recommenders: the fraction of a row's hidden items that is not among
        the best 20 (1 - recall), in (0, 1); one half if the row has nothing to hide.
        A callable (model, X, y) -> losses of the rows of X receives one row at a time, and must not
        read anything else that is private.
    bounds : tuple of two floats
        (low, high), from knowledge of the problem and not from the data. Narrow bounds need less
        noise; losses are clipped to them.
    epsilon, delta : float, default=1.0, 1e-6
        What one call spends. `DPGridSearchCV` sets its own.
    adjacency, privacy_unit : str, default="add_remove", "row"
        What the guarantee protects, as in the estimator. With "group" the loss of a user is the
        mean over the user's rows, predicted as for an unknown user.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system; anything else is not private.

    Notes
    -----
    Losses are computed row by row, so that no bit depends on other rows, as it does in a batched
    prediction. This is fast for most models of this package, also for data frames of numbers,
    categories and text behind steps that `check_pipeline` has proven. Others take 0.1 to 10 ms per
    row. Nullable numbers and numeric categories are read as 64-bit floats.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA
    >>> from skdp.model_selection import make_private_scorer
    >>> X = np.random.default_rng(0).standard_normal((5000, 4)) / 4
    >>> pca = DPPCA(2, epsilon=1.0, clip_norm=1.0).fit(X)
    >>> scorer = make_private_scorer("reconstruction", (0.0, 1.0), epsilon=1.0)
    >>> bool(-0.2 < scorer(pca, X) < -0.05)
    True
    """

    loss: str
    bounds: ColumnBounds | None
    _: KW_ONLY
    epsilon: float = 1.0
    delta: float = 1e-6
    adjacency: str = "add_remove"
    privacy_unit: str = "row"
    random_state: Seed = None

    _reservation_key = None  # of a pickle inside a PrivacyLedger, and while a search is paid for

    def __getstate__(self):
        state = {k: v for k, v in vars(self).items() if k != "_reservation_key"}
        key = handed_on(self._reservation_key)
        return dict(state, _reservation_key=key) if key else state

    def __post_init__(self):
        if not callable(self.loss) and self.loss not in SCORER_LOSSES:
            raise ValueError(
                f"'loss' must be a function (model, X, y) -> losses of rows, or one of "
                f"{sorted(SCORER_LOSSES)}. Got {self.loss!r}. For accuracy use 'zero_one'. R^2 "
                "and AUC have no private score: one row can change them by their full range."
            )
        low, high = self.bounds if np.shape(self.bounds) == (2,) else (None, None)
        low, high = (float(b) if is_real(b) else math.nan for b in (low, high))
        if not (-LARGEST_SIZE < low < high < LARGEST_SIZE and high - low > 1e-12 * max(-low, high)):
            raise ValueError(
                "'bounds' must be two finite numbers (low, high), low < high: losses are clipped "
                f"to them, so they may not come from the data. Got {self.bounds!r}."
            )
        self.bounds = low, high  # as floats: sums of narrow numbers of numpy overflow
        for name, options in (("adjacency", ADJACENCIES), ("privacy_unit", _ROW_UNITS)):
            if getattr(self, name) not in options:
                raise ValueError(f"{name!r} must be one of {options}. Got {getattr(self, name)!r}.")

    @property
    def private_losses(self) -> Any:
        """What one call spends."""
        return budget_losses(PrivacyBudget(self.epsilon, self.delta))

    def get_metadata_routing(self) -> MetadataRequest:
        """Return what metadata a call takes: `groups`, for the unit "group".

        Returns
        -------
        routing : MetadataRequest
            The requests of this scorer.
        """
        request = MetadataRequest(owner=self)
        request.score.add_request(param="groups", alias=UNITS[self.privacy_unit].of_groups)
        return request

    def suits(self, model: Any) -> bool:
        """Whether a model has the method that the loss asks for; a function is not known."""
        method = "" if callable(self.loss) else SCORER_LOSSES[self.loss][0]
        return hasattr(model, "inverse_transform" if method == "reconstruct" else method or "fit")

    def check_meaning(self, unit: Any, adjacency: Any) -> Any:
        """Raise if the scorer's unit or adjacency differs from that of the fits."""
        if (self.privacy_unit, self.adjacency) != (unit, adjacency):
            raise PrivacyError(
                f"the scorer protects one {self.privacy_unit} ({self.adjacency}), and the fits one "
                f"{unit} ({adjacency}): the two do not add up. Give make_private_scorer the same "
                "'privacy_unit' and 'adjacency'."
            )

    def __call__(self, model, X, y=None, *, groups=None):
        """Release minus the mean loss of the rows; the larger, the better.

        Parameters
        ----------
        model : fitted estimator
            It must be public: a private estimator that was fitted.
        X, y : array
            Private rows and targets.
        groups : array, default=None
            Users of the rows, for the unit "group".
        """
        session = PrivacySession(
            PrivacyBudget(self.epsilon, self.delta), adjacency=self.adjacency,
            unit=self.privacy_unit, observer=routes.Account(),
            source=make_source(self.random_state, "PrivateScorer"),
        )  # fmt: skip
        return self.score_of(*self.release(model, X, y, groups, session)[:2])

    def release(self, model: Any, X: Any, y: Any, groups: Any, session: Any) -> Any:
        """Return (total, number of units, noise): totals order models scored on the same rows."""
        unit = scored_unit(session.unit)
        private_count = session.adjacency == "add_remove" and unit.by_rows
        try:
            routes.charge(session, "PrivateScorer", self._reservation_key)
            query, n = self._query(model, X, y, groups, unit, private_count)
            ask = session.ask(query)
            if private_count:  # first: if the smaller share is too small, nothing is spent
                n = max(1.0, float(ask.count(share=_COUNT_SHARE).value))
            total = ask.total(share=1 - _COUNT_SHARE if private_count else 1.0)
            routes.settle(session)
        except BaseException:
            routes.settle(session, "failed")
            raise
        return -float(total.value), n, total.noise_scale

    def score_of(self, total: float, n: float) -> float:
        """Return the mean score of n units whose losses lie about the middle of their bounds."""
        low, high = self.bounds
        return 0.0 - min(max(low + (high - low) / 2 - total / n, low), high)  # no -0.0

    def _query(self, model, X, y, groups, unit, private_count):
        """Return the query, and the number of units where it is public."""
        last = model[-1] if isinstance(model, Pipeline) else model
        kept = getattr(last, "_fit_keeps", "") and last.private_state
        if kept and getattr(last, "group_column", None) is not None and not unit.of_groups:
            raise PrivacyError(f"losses of rows would come from {kept}: score its public_copy().")
        self._check_kind(model, y)
        X = as_rows(X)
        if y is not None:
            labels = np.asarray(as_labels(y))  # text in an object array is as in a list: a batch
            labels = np.asarray(as_labels(labels.tolist())) if labels.dtype.kind == "O" else labels
            y = labels if labels.ndim == 1 else as_entries(y)
        check_consistent_length(X[0] if isinstance(X, tuple) else X, y, groups)
        owners = None
        if unit.of_groups:
            if groups is None:
                raise ValueError("A score of groups needs 'groups': pass them to the scorer.")
            owners = np.unique(check_labels(groups), return_inverse=True)[1]
        n = 1.0 if private_count else float(n_rows(X) if owners is None else owners.max() + 1)
        losses, bounds = self._losses_of(model, X, y), tuple(map(float, self.bounds))
        facts = {"adjacency": "add_remove" if private_count else "replace", "owners": owners}
        return LossQuery(losses, lambda: n_rows(X), bounds, **facts), max(n, 1.0)

    def _check_kind(self, model, y):
        """Refuse targets of another kind than the predictions: no loss would be a number of use."""
        method = "" if callable(self.loss) else SCORER_LOSSES[self.loss][0]
        known = kind_of(getattr(model, "classes_", None)) if self.loss == "zero_one" else "numbers"
        kind = kind_of(y)
        if method == "predict" and kind and known and kind != known:
            raise ValueError(
                f"the loss {self.loss!r} of this model needs y of {known}, and y is {kind}: pass "
                "labels as the model was fitted with, and score them by 'zero_one'."
            )

    def _losses_of(self, model, X, y):
        """Return a function that computes the losses; what fails for all rows alike fails here."""
        method, loss = ("", self.loss) if callable(self.loss) else SCORER_LOSSES[self.loss]
        one, batch = loss, None
        if method:
            if loss is _share_lost:
                loss = partial(_share_lost, _origin(model, X))
            if method == "predict" and y is None:
                raise ValueError(f"the loss {self.loss!r} needs y.")
            one = partial(_row_loss, method, loss)
            batch = fast_map(model, X, method)
        if public_row(X) is not None:
            target = None if y is None else _public_target(model, y)
            _of_public_row(lambda row: one(model, row, target), X)

        def by_batch(_, rows, targets):
            found = batch(rows)
            rows = as_numbers(rows) if method == "reconstruct" else None  # the others need none
            return _by_row(method, loss, rows, targets, found)

        one = one if batch is None else by_batch  # single rows are computed as in a batch
        # In a batch one entry that is no number would make all rows fail.
        mixed = not in_a_batch(model, X)
        mixed = mixed or (y is not None and y.dtype.kind == "O")

        def losses():
            if batch is not None and not mixed:
                # Targets of a kind that no loss has fail: the kind of a list follows its values.
                with suppress(Exception), np.errstate(all="ignore"):
                    return np.asarray(by_batch(model, X, y), np.float64)
            return each_row(lambda x, t: one(model, x, _of_its_own_type(t)), X, y)

        return losses

    def __repr__(self):
        loss = getattr(self.loss, "__qualname__", repr(self.loss))
        return f"make_private_scorer({loss}, {self.bounds!r})"


def own_scorer(estimator: Any) -> PrivateScorer | None:
    """Return the private scorer that needs no bounds but those the estimator has; None if none.

    Classifiers: the share of wrong labels; projections: the share of a row that is lost; regressors
    with `target_bounds`: the squared error, up to half of their range (no target is farther from
    the middle, so that larger errors are worse than no model, and would cost four times the noise);
    recommenders: the share of hidden items missed.
    """
    if is_classifier(estimator):
        return PrivateScorer("zero_one", (0.0, 1.0))
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    if hasattr(last, "recommend"):
        return PrivateScorer("missed_items", (0.0, 1.0))
    if hasattr(last, "inverse_transform"):
        return PrivateScorer("share_lost", (0.0, 1.0))
    bounds = getattr(last, "target_bounds", "auto")
    largest = 0.0 if isinstance(bounds, str) else float(np.max(np.ptp(bounds, axis=0))) / 2
    return PrivateScorer("squared_error", (0.0, largest**2)) if largest else None


make_private_scorer = PrivateScorer  # the word that scikit-learn has for what makes a scorer
