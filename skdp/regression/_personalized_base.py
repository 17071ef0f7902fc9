"""What the personalised regressor and classifier share: users, heads, public copies, the fit."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted, check_X_y, column_or_1d

from skdp import _inputs, _validation
from skdp._limits import BLOCK
from skdp.base import BaseDPEstimator, FitsElsewhereMixin, atomic, no_warnings
from skdp.data.blocks import canonical
from skdp.data.units import GroupForm, UserRows, groups_of
from skdp.exceptions import (
    NoSignalWarning,
    PartialSignalWarning,
    PrivacyError,
    PrivacyUnitWarning,
    warn_caller,
)
from skdp.queries.users import UserQuery
from skdp.regression._plans import PersonalPlans
from skdp.solvers import personalization
from skdp.solvers.columns import CUT, FARTHEST, find_columns
from skdp.solvers.linalg import fix_signs
from skdp.solvers.scaling import Scaling
from skdp.solvers.user_heads import (
    Choice,
    Heads,
    all_rules,
    elect,
    fixed_choice,
    predicts_one_class,
    unshrunk,
)
from skdp.units import offered

# User labels: how they are passed, checked and looked up; and the head on a user's own device.


def positions(known, labels):
    """Return (index into the sorted known users, whether it is known) of each label."""
    if len({"USmM".find(given.dtype.kind) for given in (known, labels)}) > 1:
        raise ValueError(
            "Labels of users must have one type, in fit and in predict: use astype(str)."
        )
    index = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    found = known[index] == labels
    if (known.dtype.kind == "f") != (labels.dtype.kind == "f"):
        found &= np.abs(labels.astype(np.float64)) < 2.0**53  # beyond, two ids look equal
    return index, found


def same_kind(known, labels):
    """Raise unless both label arrays hold the same kind of label, so that joining merges none."""
    kinds = ["text" if array.dtype.kind in "US" else array.dtype.kind for array in (known, labels)]
    if kinds[0] != kinds[1] and not set(kinds) <= {"i", "u", "b"}:
        raise ValueError("User labels must have the type of the fitted ones: use astype(str).")


def within_bounds(X, bounds):
    """Return rows whose entries beyond the bounds (2, d) are folded; see `Scaling`."""
    low, high = bounds
    if sp.issparse(X) and ((low > 0).any() or (high < 0).any()):  # zeros are beyond
        X = X.toarray()
    X = canonical(X).copy() if sp.issparse(X) else X.copy()
    if sp.issparse(X):
        values, column = X.data, X.indices
        outside = np.flatnonzero((values < low[column]) | (values > high[column]))
        column = column[outside]
    else:
        values, outside = X, np.nonzero((low > X) | (high < X))
        column = outside[1]
    half = high[column] / 2 - low[column] / 2
    middle = low[column] + half
    values[outside] = middle + half * (half / (values[outside] - middle))
    return X


class UserHead(BaseEstimator):
    """A personal model on one user's device: public attributes, and the user's own rows.

    Fitting and predicting release nothing: both stay on the device.

    Parameters
    ----------
    public : estimator
        What ``public_copy()`` returns.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_outputs, n_features)
        The user's coefficients: private to the user.
    intercept_ : float or ndarray of shape (n_outputs,)
        The user's intercept.
    """

    def __init__(self, public: Any = None) -> None:
        self.public = public

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the head of this user to all its rows.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The user's rows.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self : UserHead
            The fitted head.
        """
        model = self.public._copy()
        model.adapt(X, y, groups=np.zeros(len(y), int))
        head = model._private["heads"][0]
        shape = np.atleast_2d(model.global_coef_).shape
        coef = head[: shape[0] * shape[1]].reshape(shape[::-1]).T
        intercept = head[shape[0] * shape[1] :][: shape[0]]
        self.coef_ = coef[0] if model.global_coef_.ndim == 1 else coef
        self.intercept_ = float(intercept[0]) if model.global_coef_.ndim == 1 else intercept
        self._model = model
        return self

    def predict(self, X: Any) -> Any:
        """Predict rows of this user.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            The user's rows.

        Returns
        -------
        y : ndarray of shape (n_rows,)
            Predictions.
        """
        check_is_fitted(self, "coef_")
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        return self._model.predict(X, groups=np.zeros(n, int))


# What may be published: public copies, and heads for devices.


class PublicationMixin(FitsElsewhereMixin):
    """Publication of a personalised estimator; its fit to users elsewhere has no heads."""

    def public_copy(self) -> Any:
        """Return a copy that may be published, without models of users, labels and counts.

        Returns
        -------
        public : object
            A fitted estimator of the same class. It predicts by the global model, until ``adapt``
            adds models of users. It warns if that model is of little use.
        """
        self._check_published()
        self._warn_of_global_model(PartialSignalWarning)
        return self._copy()

    def _warn_of_global_model(self, category):
        """Warn if the global model is of little use, from public attributes.

        A user's own model follows from that user's rows all the same. So a fit that has such models
        is silent: only what is for users without one warns.
        """
        level = "the mean of all users" if self._y_numeric else "the class frequencies"
        if not self.target_scale_found_:
            said, level = "could not find the range of the targets", "a guess"
            remedy = "Use more users or a larger 'epsilon'."
        elif not self.global_model_found_:
            said, level = "could use no global model", f"about {level}"
            remedy = "Use more users, a larger 'epsilon' or fewer columns."
        elif not self._y_numeric and predicts_one_class(self._public_model()[1]):
            said, level = "could use one class only", "it nearly always"
            category = PartialSignalWarning
            remedy = "Use predict_proba."
        else:
            return
        said += f": new users get {level}, until adapt() fits their models. {remedy}"
        warn_caller(f"{type(self).__name__} {said}", category)

    def _fit_elsewhere(self, *users):
        """Fit to users elsewhere, none of whom has a model here."""
        fitted = super()._fit_elsewhere(*users)
        fitted._warn_of_global_model(NoSignalWarning)
        return fitted

    def _check_published(self):
        check_is_fitted(self, "components_")
        if self.privacy_spent_.seeded or self.privacy_spent_.epsilon == math.inf:
            raise PrivacyError(
                "This fit is not private: its noise was seeded, or epsilon is infinite. Fit with "
                "random_state=None and a finite epsilon to publish the result."
            )

    def _copy(self):
        params = self.get_params(deep=False) | {"random_state": None}
        copy = type(self)(**params)
        for name, value in vars(self).items():
            if name.endswith("_") and not name.startswith("_") and name != "n_groups_":
                setattr(copy, name, value)
        return copy

    def make_head(self) -> Any:
        """Return a small estimator for one user's device, from public attributes only.

        Returns
        -------
        head : UserHead
            ``head.fit(X, y)`` fits the user's own rows; ``head.predict(X)`` predicts.
        """
        self._check_published()
        public = self._copy()
        if public.group_column is not None:  # a device has no column of users
            if (names := _validation.feature_names(self)) is not None:
                public.feature_names_in_ = names
            public.group_column = None
            public.n_features_in_ = public.components_.shape[1]
        return UserHead(public)


# What is learnt from all users.


def learn_base(estimator, ask, query, shares):
    """Release location and scale of columns and targets, and the moments of the global model.

    Return the scaling, the number of users, whether the scales of all columns were found, the
    budget fractions that are left, the model, and the whitener of scaled rows.
    """
    n = float(query.n_rows) if estimator.adjacency == "replace" else None
    public = {"n": n, "centered": estimator.fit_intercept}
    columns = find_columns(ask.columns(), query.n_features, shares["columns"], **public)
    scaling = personalization.scaling_of(columns)
    limited = np.isfinite(scaling.limit)
    shown = bool((limited & columns.found).all())
    fitted = {"intercept": estimator.fit_intercept}
    if not estimator._y_numeric:
        # A wrong scale costs a score one column, and users who start from the model go without it.
        guess = Scaling(columns.center, columns.deviation, np.full(len(limited), CUT))
        scaling = scaling._replace(center=np.where(limited, scaling.center, columns.center))
        size = limited, query.n_outputs, shares["global"]
        model, whitener = personalization.pooled_classes(ask.scaled(*guess), *size, **fitted)
        coef, level = scaling.of_scaled(*guess.of_raw(model.coef, model.intercept))
        whitener = whitener * np.where(limited, scaling.scale / guess.scale, 1.0)[:, None]
        model = model._replace(coef=coef, intercept=level)
        return scaling, columns.n, shown, shares, model, whitener
    n_noise = 0.0 if n else columns.count_noise()
    public["n"] = columns.n if estimator.fit_intercept else n
    unit, shares = _target_unit(estimator, ask, query.n_outputs, shares, public, n_noise)
    ask = ask.scaled(*scaling)  # columns that have no limit may hold entries of any size
    pooled = personalization.pooled_model(ask, limited, unit, shares["global"], **fitted)
    return scaling, columns.n, shown, shares, *pooled


def _target_unit(estimator, ask, p, shares, public, n_noise):
    """Return the unit of targets, and what is left of the budget.

    Users too few to show it hardly show directions or slopes either. So half of what these have
    goes into a second search, among the users' means, which vary less: their level is what new
    users are predicted by. Single targets vary more than means: their unit is larger. Public bounds
    are often far wider than the targets, so they only replace a centre that lies outside.
    """
    found = find_columns(ask.targets(), p, shares["targets"], **public)
    unit = personalization.target_unit(found, n_noise)
    far = np.abs(found.center) > FARTHEST * found.scale
    if not unit.found or (far & ~found.center_found).any():
        half = {name: shares[name] / 2 for name in ("subspace", "global")}
        found = find_columns(ask.target_means(), p, math.fsum(half.values()), far=True, **public)
        unit, shares = personalization.target_unit(found, n_noise), shares | half
        unit = unit._replace(size=2 * float(found.deviation.max()))
    if bounds := _validation.target_bounds(estimator, p):
        middle, radius = _validation.middle_and_radius(*bounds, centered=estimator.fit_intercept)
        inside = (bounds[0] <= unit.center) & (unit.center <= bounds[1])
        center, size = np.where(inside, unit.center, middle), min(unit.size, float(radius.max()))
        unit = unit._replace(center=center, size=size)
    return unit, shares


class PersonalizedBase(PersonalPlans, PublicationMixin, BaseDPEstimator):
    """Shared structure under user-level privacy; a private head for each user."""

    __metadata_request__fit = {"groups": True}
    __metadata_request__predict = {"groups": True}
    __metadata_request__score = {"groups": True}

    _fit_keeps = "an exact model for each user, and the users' labels"
    _privacy_units = offered("group", "row")

    @property
    def privacy_unit(self) -> Any:
        """The unit of protection: "group", or "row" after a fit without users."""
        if "_unit" in vars(self):  # while fitting
            return self._unit
        return self.privacy_spent_.unit if hasattr(self, "privacy_spent_") else "group"

    def get_metadata_routing(self) -> Any:
        """Return what metadata the methods take: `groups`, unless `group_column` is set.

        Returns
        -------
        routing : MetadataRequest
            The requests of this estimator.
        """
        request = super().get_metadata_routing()
        if self.group_column is not None:
            for method in vars(request).values():
                if "groups" in getattr(method, "requests", ()):
                    method.add_request(param="groups", alias=False)
        return request

    def _check_parameters(self):
        _validation.check_int(self, "n_components", 1, also=("auto",))
        if self._y_numeric:
            _validation.check_range(self)
            self._check_loss()
        _validation.check_option(self, "head_selection", ("private_vote", "subspace", "per_user"))
        _validation.check_bool(self, "fit_intercept", "require_groups", "whiten")
        self._shares()

    def _shares(self):
        """Return the shares: a matrix of d x d numbers needs more than votes do.

        A user's labels show its own direction far less well than all labels show a common one.
        """
        shares = {
            "subspace": 0.45 if self._y_numeric else 0.4,
            "global": 0.15 if self._y_numeric else 0.2,
            "columns": 0.1,
            "head": 0.06 * (self.head_selection == "private_vote"),
            "logits": 0.03 * (not self._y_numeric),
            "targets": 0.08 * self._y_numeric,
        }
        return _validation.check_split(self, {name: x for name, x in shares.items() if x})

    # -- fit -------------------------------------------------------------------------------

    @atomic
    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the shared model, which spends (`epsilon`, `delta`) once, and each user's own model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            The private rows; with `group_column` one column holds the users.
        y : array-like of shape (n_samples,)
            The private targets.
        groups : array-like of shape (n_samples,), default=None
            The user of each row. A missing user is an error.

        Returns
        -------
        self : object
            The fitted estimator, with private models of users: publish ``public_copy()``.

        Notes
        -----
        X may be a memory map. It may also be a list of npy or npz files (with y and groups in
        memory), or a Dask array (with y and groups in memory, or as Dask arrays in the same
        blocks): all rows of a user must then lie in one file or block, and ``adapt`` fits the
        users' models.
        """
        self._check_parameters()
        _validation.check_kind(self, y)
        self._unit = self._unit_of(groups)
        session = self._open_session()
        query, users = self._query_and_users(X, y, groups, reset=True)
        self._close_session(session, self._fit_session(session, query))
        self._private = self._fitted_heads(query, users)
        if self._private is None and self.epsilon != math.inf:
            self._warn_of_global_model(NoSignalWarning)
        del self._unit
        return self

    def _query_and_users(self, X, y, groups, *, reset):
        """Return the query over users, and those whose heads are fitted here (None: nobody's)."""
        if reset and _inputs.as_blocks(X) is not None and not _inputs.is_memory_map(X):
            return self._users_in_blocks(X, y, groups), None
        X, y, labels = self._validated(X, y, groups, reset=reset)
        if reset:
            self._decide_classes(y)
        if labels is None:  # each row is its own user
            return self._query(X, y, np.arange(X.shape[0])), None
        users, codes = np.unique(labels, return_inverse=True)
        return self._query(X, y, codes), users

    def _query(self, X, y, codes):
        rows = UserRows(X, self._encoding()[0](y), codes, self._scales_targets())
        return UserQuery(rows, adjacency=self.adjacency, n_jobs=self.n_jobs)

    def _decide_classes(self, y=None):
        """Set the public classes, of a classifier; without `y` they must be given."""

    def _users_in_blocks(self, X, y, groups):
        if groups is None:
            raise ValueError(
                f"{type(self).__name__} needs 'groups', the user of each row, for rows in blocks."
            )
        self._decide_classes()
        encode, n_outputs = self._encoding()
        placed = _inputs.in_blocks(self, X, y, groups, numbers=self._y_numeric)
        form = GroupForm(_validation.check_labels, encode, self._scales_targets())
        rows = groups_of(placed, form)
        rows.n_outputs = n_outputs
        return UserQuery(rows, adjacency=self.adjacency, n_jobs=self.n_jobs)

    def _unit_of(self, groups):
        self._check_one_form(groups)
        if groups is not None or self.group_column is not None:
            return "group"
        warn_caller(
            f"{type(self).__name__} was fitted without users: each row counts as a user, and only "
            "single rows are protected. If rows have users, pass 'groups' or set 'group_column'.",
            PrivacyUnitWarning,
        )
        return "row"

    def _validated(self, X, y, labels, *, reset):
        """Return rows without the user column, targets, and user labels."""
        y = _validation.complete_labels(y)
        form = {"accept_sparse": "csr", "y_numeric": self._y_numeric}
        if self.group_column is not None:
            X, labels = _inputs.without_column(self, X, reset=reset)
            check = partial(check_X_y, estimator=self)
            X, y = _inputs.advised(self, check, X, y, **form)
        elif _inputs.is_memory_map(X):
            _inputs.check_block_columns(self, X.shape[1], reset=reset)
            y = column_or_1d(_inputs.check_targets(self, y, numbers=self._y_numeric))
            check_consistent_length(X, y)
        else:
            X, y = _inputs.checked(self, X, y, reset=reset, **form)
        if self._y_numeric:
            y = _inputs.check_numbers(y)
        return X, y, self._checked_labels(labels, X)

    def _validated_rows(self, X, labels):
        """Return rows to predict without the user column, and user labels."""
        if self.group_column is not None:
            X, labels = _inputs.split_rows(self, X, labels, reset=False, accept_sparse="csr")
        else:
            X = _inputs.checked(self, X, accept_sparse="csr", reset=False)
        return X, self._checked_labels(labels, X)

    @staticmethod
    def _checked_labels(labels, X):
        return None if labels is None else _inputs.labels_of(labels, X.shape[0])

    def _fit_session(self, session, query):
        """Make all releases; returns the public attributes."""
        ask = session.ask(query)
        learnt = learn_base(self, ask, query, self._shares())
        scaling, n, shown, shares, model, whitener = learnt
        ask = ask.scaled(*scaling)
        start = model if self._y_numeric else None  # logits of all users are not those of one
        whitening = (whitener if self.whiten else np.eye(len(whitener))) / scaling.scale[:, None]
        # The same bits as in `_public_heads`, so that arrays cached for the vote are used again.
        view = self._view(whitening * scaling.scale[:, None] if self.whiten else None, start)
        size = query.n_features, self.n_components, shares["subspace"]
        shared = personalization.direction_start(ask, view, *size)
        # Without an intercept all users that can have a direction.
        n = n if self.fit_intercept else shared.count
        if self.adjacency == "replace":
            n = float(max(query.n_rows, 1))
            self._warn_of_delta(query.n_rows, session.unit)
        limited = np.isfinite(scaling.limit)  # other columns may have entries of any size
        if not self._y_numeric:
            heads = Heads(view, shared.U, model.on(limited))
            model = model.times(*unshrunk(ask, heads, shares["logits"]))
        heads, choice = Heads(view, shared.U, model.on(limited)), fixed_choice(view)
        rules = all_rules(shared, view, shown)
        if self.head_selection == "private_vote":
            choice = elect(ask, heads, rules, n, shares["head"])
        elif self.head_selection == "per_user":
            choice = Choice(tuple(dict.fromkeys(rules)))
        public = {} if self._y_numeric else {"classes_": self.classes_}
        return public | self._attributes_of(scaling, shared, whitening, model, choice, n)

    @staticmethod
    def _attributes_of(scaling, shared, whitening, model, choice, n):
        """Return the public attributes, which are about rows as they come."""
        coef, intercept = scaling.of_raw(model.coef, model.intercept)
        one = len(intercept) == 1
        return {
            "feature_center_": scaling.center,
            "feature_scale_": scaling.scale,
            "feature_bounds_": scaling.bounds,
            "components_": fix_signs(shared.U.T),
            "whitening_": whitening,
            "n_components_": shared.U.shape[1],
            "eigenvalues_": shared.eigenvalues,
            "global_coef_": coef[:, 0] if one else coef.T,
            "global_intercept_": float(intercept[0]) if one else intercept,
            "target_scale_found_": not model.own_means,
            "global_model_found_": model.found,
            "head_rule_scores_": choice,
            "head_rule_": choice.rules[0] if len(choice.rules) == 1 else None,
            "n_groups_": round(n),
        }

    def _view(self, whitener, base):
        """How users preprocess their rows, from public parameters and attributes."""
        return personalization.View(whitener, self.fit_intercept, self._loss_name(), base)

    # -- heads -----------------------------------------------------------------------------

    def _public_model(self):
        """Return the scaling of rows and the global model of scaled ones, from the attributes."""
        limit = np.where(np.isfinite(self.feature_bounds_[1]), FARTHEST, np.inf)
        scaling = Scaling(self.feature_center_, self.feature_scale_, limit)
        coef = np.atleast_2d(self.global_coef_).T
        seen = scaling.of_scaled(coef, np.ravel(self.global_intercept_))
        return scaling, personalization.GlobalModel(*seen, own_means=not self.target_scale_found_)

    def _public_heads(self):
        """Return the scaling of rows, and what fits heads to them, from public attributes."""
        scaling, model = self._public_model()
        whitener = self.whitening_ * scaling.scale[:, None] if self.whiten else None
        view = self._view(whitener, model if self._y_numeric else None)
        return scaling, Heads(view, self.components_.T, model.on(np.isfinite(scaling.limit)))

    def _fitted_heads(self, query, users):
        """Fit the head of each user: private, never released."""
        if users is None:
            return None
        (scaling, heads), choice = self._public_heads(), self.head_rule_scores_
        d, p = query.n_features, query.n_outputs
        out = np.zeros((len(users), (d + 1) * p + 2 * d))  # the last: where entries are cut

        def local(batch):
            fit = heads.fit(batch, choice)
            coef, intercept = np.split(fit[0], [d * p], axis=1)
            coef, intercept = scaling.of_raw(coef.reshape(-1, d, p), intercept)
            cuts = np.nan_to_num(heads.limits(batch, choice, *fit) * scaling.scale + scaling.center)
            return np.hstack([each.reshape(len(each), -1) for each in (coef, intercept, cuts)])

        with no_warnings():  # of one user's rows
            for which, values in query.scaled(*scaling).cached_local(local, out.shape[1]):
                out[which] = np.where(np.isfinite(values).all(axis=1)[:, None], values, 0.0)
        return {"users": users, "heads": out}

    def adapt(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit models of new users, or known ones again. This costs no budget and releases nothing.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            All rows to which the users' models are fitted.
        y : array-like of shape (n_samples,)
            Targets.
        groups : array-like of shape (n_samples,), default=None
            The user of each row, unless `group_column` is set.

        Returns
        -------
        self : object
            The estimator, with the private models of these users.
        """
        check_is_fitted(self, "components_")
        if groups is None and self.group_column is None:
            raise ValueError("adapt needs the users of the rows: pass 'groups'.")
        self._check_one_form(groups)
        query, users = self._query_and_users(X, y, groups, reset=False)
        new = self._fitted_heads(query, users)
        old = getattr(self, "_private", None)
        if old is not None:
            same_kind(old["users"], users)
            kept = ~np.isin(old["users"], users)
            merged = np.concatenate([old["users"][kept], users])
            order = np.argsort(merged, kind="stable")
            values = np.concatenate([old["heads"][kept], new["heads"]])
            new = {"users": merged[order], "heads": values[order]}
        self._private = new
        return self

    def _check_one_form(self, groups):
        if groups is not None and self.group_column is not None:
            raise ValueError(
                "Users were given twice, as 'groups' and as 'group_column'; use one of them."
            )
        if groups is None and self.group_column is None and self.require_groups:
            raise ValueError(
                f"{type(self).__name__}(require_groups=True) needs users: pass 'groups' (through a "
                "Pipeline or a search this needs metadata routing) or set 'group_column'."
            )

    def _shared(self, X, product=operator.matmul):
        """Return rows with folded entries, and their linear predictor by the global model."""
        folded, coef = within_bounds(X, self.feature_bounds_), np.atleast_2d(self.global_coef_).T
        return folded, np.asarray(product(folded, coef)) + self.global_intercept_

    def _predictor(self, product):
        """Return the public map of `predict` for rows without users; see `fast_map`."""
        return lambda X: self._predicted(self._shared(X, product)[1])

    def predict(self, X: Any, groups: Any = None) -> Any:
        """Predict: a known user by its own model, others by the global model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to predict.
        groups : array-like of shape (n_samples,), default=None
            The user of each row; None takes the global model for all.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predictions. Those for a fitted user are for that user alone.
        """
        return self._predicted(self._linear(X, groups))

    def _linear(self, X, groups):
        """Linear predictor of each row: the user's own head, or the global model."""
        check_is_fitted(self, "components_")
        self._check_one_form(groups)
        X, labels = self._validated_rows(X, groups)
        X, eta = self._shared(X)
        heads = getattr(self, "_private", None)
        if heads is None or not len(heads["users"]):
            return eta
        if labels is None:  # a scorer of scikit-learn never passes users
            warn_caller(
                f"{type(self).__name__} has models of users, but predicts without users: all rows "
                "get the global model. Pass 'groups', set 'group_column', or use public_copy().",
                UserWarning,
            )
            return eta
        index, known = positions(heads["users"], labels)
        rows = np.flatnonzero(known)
        d, p = X.shape[1], eta.shape[1]
        size = max(1, BLOCK // (d * p))
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            selected = heads["heads"][index[batch]]
            user_coef, intercept, *limits = np.split(selected, np.cumsum([d * p, p, d]), axis=1)
            block = np.clip(X[batch].toarray() if sp.issparse(X) else X[batch], *limits)
            eta[batch] = np.einsum("id,idp->ip", block, user_coef.reshape(-1, d, p)) + intercept
        return eta
