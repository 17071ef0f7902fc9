"""The first fit of a personalised model over devices: what the server asks, and what they answer.

The solver is that of the central fit. Each of its messages is a public function of one user's rows,
made of public arrays: these travel, and the client makes the message anew from them and from its
own copy of the estimator. It believes no bound and no code of the server.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skdp.data.users import UserRows
from skdp.federated._ask import FederatedSession
from skdp.federated._clients import (
    Signatures,
    is_center,
    is_number,
    is_positive,
)
from skdp.federated._requests import Argument
from skdp.privacy.gate.ask import Ask
from skdp.privacy.gate.bounds import Bounded, PrivateQuery
from skdp.queries.columns import ColumnQuery
from skdp.queries.octaves import OctaveQuery, PlaceQuery
from skdp.queries.sums import NumberQuery
from skdp.queries.users import UserQuery
from skdp.solvers.global_models import GlobalModel
from skdp.solvers.mean_head import ClassMeans, HeadNorms, MeanHead
from skdp.solvers.personalization import View
from skdp.solvers.user_base import Pooled, TargetLengths, TargetMeans
from skdp.solvers.user_heads import HeadRule, Heads, HeadVotes
from skdp.solvers.user_reach import ReachVotes
from skdp.solvers.user_rounds import CrossRound, GramRound, ResidualRound
from skdp.solvers.user_starts import Pairs, SecondMoment, Variances, Votes

FloatArray = NDArray[np.float64]
_SMALLEST, _SKEW, _MOST_RULES = 1e-100, 1e-6, 1000


class FirstFitUsers(PrivateQuery):
    """The users of one client (or none, on the server), as an unfitted estimator sees them.

    Each method is a message of the solver: arrays come from the server, everything else from the
    estimator that the client holds. What a user adds is bounded by `UserQuery`, whatever they are.

    Parameters
    ----------
    estimator : DPPersonalizedRegressor or DPPersonalizedClassifier
        Unfitted, with known classes.
    users : UserQuery
        The private rows, by user.
    """

    def __init__(self, estimator: Any, users: UserQuery) -> None:
        self._estimator, self._users = estimator, users
        self.n_features, self.n_outputs = users.n_features, users.n_outputs

    @property
    def n_rows(self) -> int:
        """Number of users, where it is public."""
        return self._users.n_rows

    def _view(
        self, whitener: Any, coef: Any, intercept: Any, bounds: Any = None, center: Any = None
    ) -> View:
        base = None if coef is None else GlobalModel(coef, intercept)
        view: View = self._estimator._view(whitener, base, bounds, center)
        return view

    def _small_heads(self, whitener: Any, bounds: Any, center: Any, U: FloatArray) -> Heads:
        zero = GlobalModel(np.zeros((len(U), self.n_outputs)), np.zeros(self.n_outputs))
        return Heads(self._view(whitener, None, None, bounds, center), U, zero)

    def count(self) -> Bounded:
        """Return the number of users."""
        return self._users.count()

    def columns(self) -> ColumnQuery:
        """Return the query over the columns of one row of each user."""
        return self._users.columns()

    def target(self, center: FloatArray) -> NumberQuery:
        """Return the query over lengths of targets about a public centre."""
        query: NumberQuery = TargetLengths(center).asked(self._users)
        return query

    def target_mean(self) -> NumberQuery:
        """Return the query over mean targets."""
        query: NumberQuery = TargetMeans().asked(self._users)
        return query

    def coef(self, *view_and_subspace: Any) -> NumberQuery:
        """Return the query over norms of heads."""
        heads = self._small_heads(*view_and_subspace)
        query: NumberQuery = HeadNorms(heads).asked(self._users)
        return query

    def pooled(self, center: Any, size: Any, target_center: Any, target_size: float) -> Bounded:
        """Return the moments of the model of all."""
        intercept = self._estimator.fit_intercept
        return self._asked(Pooled(center, size, target_center, target_size, intercept))

    def reach_votes(self, center: Any, spread: Any, coef: Any, intercept: Any) -> Bounded:
        """Return votes for how far entries count."""
        of = self._estimator
        if (coef is not None) != of._starts_from_a_model:
            raise ValueError("votes on reaches start from a model of all where heads do")
        model = GlobalModel(coef, intercept) if of._starts_from_a_model else None
        votes = ReachVotes(center, spread, model, of.fit_intercept, of._loss_of_reach())
        return self._asked(votes)

    def second_moment(self, units: FloatArray, *sight: Any) -> Bounded:
        """Return second moments of rows in public units."""
        return self._asked(SecondMoment(units, self._estimator.fit_intercept, *sight))

    def variances(self, units: FloatArray, *sight: Any) -> Bounded:
        """Return squares of columns in public units."""
        return self._asked(Variances(units, self._estimator.fit_intercept, *sight))

    def votes(self, *view: Any) -> Bounded:
        """Return directions."""
        return self._asked(Votes(self._view(*view), self.n_features, self._estimator.local))

    def pairs(self, *view: Any) -> Bounded:
        """Return pairs of rows."""
        return self._asked(Pairs(self._view(*view), self.n_features))

    def round(self, *view_and_subspace: Any) -> Bounded:
        """Return the messages of a round."""
        *view, U = view_and_subspace
        return self._asked(ResidualRound(self._view(*view), U, self._estimator.clip_level))

    def cross_round(self, *view_and_subspace: Any) -> Bounded:
        """Return directions times heads."""
        *view, U = view_and_subspace
        return self._asked(CrossRound(self._view(*view), U))

    def gram_round(self, *view_and_subspace: Any) -> Bounded:
        """Return normal equations."""
        *view, U = view_and_subspace
        return self._asked(GramRound(self._view(*view), U))

    def head_votes(self, *view_and_rules: Any) -> Bounded:
        """Return votes for rules of heads."""
        whitener, coef, intercept, *sight, U, rules = view_and_rules
        model = GlobalModel(coef, intercept)
        based = self._estimator._starts_from_a_model
        view = self._view(whitener, coef if based else None, intercept if based else None, *sight)
        given = tuple(HeadRule(a, b, c, bool(target)) for a, b, c, target in rules.tolist())
        return self._asked(HeadVotes(Heads(view, U, model), given))

    def class_means(self) -> Bounded:
        """Return shares of the classes."""
        return self._asked(ClassMeans(self.n_outputs))

    def mean_head(self, *heads_and_bounds: Any) -> Bounded:
        """Return heads."""
        *heads, logits, coef_bound = heads_and_bounds
        return self._asked(MeanHead(self._small_heads(*heads), logits, coef_bound))

    def _asked(self, message: Any) -> Bounded:
        bounded: Bounded = message.asked(self._users)
        return bounded


class FirstFitSession(FederatedSession):
    """What the estimator's own fit sees: the messages of its solver go to the clients."""

    def ask(self, query: object) -> Any:
        """Return the federated face of users."""
        return _AskUsers(super().ask(query))


class _AskUsers:
    """Sends the public arrays of a message in place of the message."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def grams(self, name: str, message: Any, *_: Any, share: float) -> Any:
        """Return the noisy sum of what a message is at the clients."""
        return getattr(self._ask, name)(*message.public, share=share)

    def sums(self, name: str, message: Any, *_: Any, share: float) -> Any:
        """Return the noisy sum of what a message is at the clients."""
        return getattr(self._ask, name)(*message.public, share=share)

    def numbers(self, name: str, message: Any) -> Any:
        """Return what ranks thresholds among numbers of the clients' users."""
        return getattr(self._ask, name)(*message.public)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask, name)


def trial_users(estimator: Any, d: int, p: int) -> FirstFitUsers:
    """Return public users of zeros, with few and with many rows: requests are tried on them.

    A request whose arrays fit these fits all users, so that no error can follow a payment.
    """
    codes = np.repeat([0, 1, 2], [1, 3, d + 3])
    rows = UserRows(np.zeros((len(codes), d)), np.zeros((len(codes), p)), codes, True)
    return FirstFitUsers(estimator, UserQuery(rows, adjacency=estimator.adjacency))


# -- what a client takes -----------------------------------------------------------------------


def _is_floats(value: Argument) -> TypeGuard[FloatArray]:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return False
    return bool(np.isfinite(value).all())


def is_whitener(query: Any, value: Argument) -> bool:
    """None, or a matrix or a vector of the features that is neither tiny nor huge."""
    if value is None:
        return True
    d = query.n_features
    if not _is_floats(value) or value.shape not in ((d,), (d, d)):
        return False
    return bool(_SMALLEST < np.abs(value).max() < 1 / _SMALLEST)


def is_subspace(query: Any, value: Argument) -> bool:
    """Orthonormal columns."""
    if not _is_floats(value) or value.ndim != 2 or len(value) != query.n_features:
        return False
    k = value.shape[1]
    return bool(1 <= k <= len(value) and np.abs(value.T @ value - np.eye(k)).max() < _SKEW)


def is_units(query: Any, value: Argument) -> bool:
    """One positive number for each feature; infinity leaves a feature out."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return False
    return value.shape == (query.n_features,) and bool((value > _SMALLEST).all())


def is_coef(query: Any, value: Argument) -> bool:
    """None, or finite coefficients."""
    return value is None or (
        _is_floats(value) and np.shape(value) == (query.n_features, query.n_outputs)
    )


def is_bounds(query: Any, value: Argument) -> bool:
    """None, or a lowest and a highest entry of each feature; infinity cuts nothing."""
    if value is None:
        return True
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return False
    return value.shape == (2, query.n_features) and bool((value[0] <= value[1]).all())


def is_center_or_none(query: Any, value: Argument) -> bool:
    """None, or one finite number for each feature."""
    return value is None or is_center(query, value)


def is_level(query: Any, value: Argument) -> bool:
    """None, or one finite number for each output."""
    return value is None or (_is_floats(value) and np.shape(value) == (query.n_outputs,))


def is_rules(_: Any, value: Argument) -> bool:
    """Rows (outside, penalty, intercept, toward_global) of rules of heads."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim != 2:
        return False
    if value.shape[1] != 4 or not 1 <= len(value) <= _MOST_RULES:
        return False
    inside = (value >= 0).all() and (value[:, [0, 3]] <= 1).all()
    return bool(inside and np.isin(value[:, 3], (0.0, 1.0)).all())


def is_level_bound(_: Any, value: Argument) -> bool:
    """A positive number that is neither tiny nor huge."""
    return isinstance(value, float) and _SMALLEST <= value <= 1 / _SMALLEST


def _given(check: Any) -> Any:
    """Refuse None, too."""
    return lambda query, value: value is not None and check(query, value)


def is_thresholds(_: Any, value: Argument) -> bool:
    """Numbers, not NaN."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isnan(value).any()


_SIGHT = (is_bounds, is_center_or_none)
_VIEW = (is_whitener, is_coef, is_level, *_SIGHT)
_LEVEL = _given(is_level)
SIGNATURES: dict[type, Signatures] = {
    FirstFitUsers: {
        "count": (),
        "columns": (),
        "target": (_LEVEL,),
        "target_mean": (),
        "coef": (is_whitener, *_SIGHT, is_subspace),
        "pooled": (is_center, is_units, _LEVEL, is_positive),
        "reach_votes": (is_center, is_units, is_coef, is_level),
        "second_moment": (is_units, *_SIGHT),
        "variances": (is_units, *_SIGHT),
        "votes": _VIEW,
        "pairs": _VIEW,
        "round": (*_VIEW, is_subspace),
        "cross_round": (*_VIEW, is_subspace),
        "gram_round": (*_VIEW, is_subspace),
        "head_votes": (is_whitener, _given(is_coef), _LEVEL, *_SIGHT, is_subspace, is_rules),
        "class_means": (),
        "mean_head": (is_whitener, *_SIGHT, is_subspace, _LEVEL, is_level_bound),
    },
    NumberQuery: {"kept_below": (is_number,)},
    ColumnQuery: {
        "count": (),
        "octaves": (is_center,),
        "places": (is_center, is_units),
    },
    OctaveQuery: {"ranks": (is_thresholds,)},
    PlaceQuery: {"ranks": (is_thresholds,)},
}
