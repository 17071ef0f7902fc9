"""A private recommender: noisy popularity, and latent factors above the noise."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdp._choice import MAX_FLIPS
from skdp._inputs import check_matrix, check_rows, checked, mapped, public_units, stacked_rows
from skdp._limits import MOST_DENSE
from skdp._validation import Seed, check_int, check_option, check_real, check_size, column_names
from skdp.base import BaseDPEstimator, FitsElsewhereMixin, atomic
from skdp.data.blocks import row_source
from skdp.data.histories import weighted_rows
from skdp.exceptions import PartialSignalWarning, warn_caller
from skdp.queries.interactions import InteractionHistories, RowHistories, pair_change
from skdp.queries.sums import Neighbours
from skdp.recommend._lists import ListsMixin, parted, recall_at_n
from skdp.solvers.item_filter import list_length
from skdp.solvers.one_shot import LEAST_PURE, flip_deviation, flip_probability, pair_deviation
from skdp.solvers.postprocess import released_count
from skdp.solvers.recommend import Route, fit_filter
from skdp.theory import PlanData, PlansMixin
from skdp.theory._made import made_histories
from skdp.theory._plan import USUAL_ONES, check_entries, histories_of, rows_drawn
from skdp.units import offered

# Which release shows most of a user-item matrix: decided before any data are read.


_LEAST_SIGNAL = 210.0  # of a moment or flips; below it, item counts alone rank better
_OF_ROWS, _OF_CELLS = 0.2, 0.1  # least share of the counts next to a moment


def release_route(name, session, whole, n_users):
    """Return the public sizes of a route: a function of the budget and the number of users.

    `whole` says whether a whole history is protected, or one interaction.
    """
    if name == "one_shot":
        return _flips(session, n_users)
    if name == "popularity":
        return Route(name, lambda *_: 0.0, lambda _: 1)
    return _moment(session, whole, n_users)


def counted_alike(session, n_users, n_items):
    """Return up to how many items a user counts fully for each, by the noise of counts.

    Users with more items have smaller weights, because a few long histories are not the taste of
    all. This biases counts, by little relative to the noise if there are many users per item.
    """
    noise = session.noise_scale(1.0, 1.0, _OF_CELLS)
    return int(min(max(2 * USUAL_ONES * noise * n_items / n_users, 1.0), n_items))


def _moment(session, whole, n_users):
    factor = Neighbours(session.adjacency).positive()

    def signal(degree, _, share):
        change = factor if whole else pair_change(round(degree), session.adjacency)
        noise = session.noise_multiplier * change / math.sqrt(share)
        return n_users / noise if noise else math.inf

    return Route("gram", signal, lambda _: MOST_DENSE, _OF_ROWS if whole else _OF_CELLS, whole)


def _flips(session, n_users):
    cells, exact = Neighbours(session.adjacency).units, session.budget.exact

    def deviation(share):
        return 0.0 if exact else flip_deviation(session.budget.pure_epsilon * share / cells)

    def signal(degree, n_kept, share):
        noise = pair_deviation(deviation(share), n_users, n_users * degree / n_kept)
        norm = math.sqrt(max(degree, 2.0) * (max(degree, 2.0) - 1))  # of the pairs of a user
        return n_users * norm / (math.sqrt(2.0) * noise) if noise else math.inf

    def most(share):
        flips = n_users * flip_probability(deviation(share))
        return int(min(MAX_FLIPS / max(flips, 1e-9), 2**31))

    return Route("one_shot", signal, most, _OF_CELLS)


def choose_route(estimator, shape):
    """Return the name of the route, and why, for the settings of an estimator and a public shape.

    For interactions the larger signal at a usual history decides; nothing is read for it.
    """
    name = estimator.algorithm
    if estimator._is_pure_for_rows():
        return "popularity", "popularity: delta is 0"
    if name != "auto":
        return name, f"{name}: set by the parameter"
    if estimator._protects.by_rows:
        return "gram", "gram: the only algorithm for rows with latent factors"
    degree = min(estimator._floor or USUAL_ONES, shape[1])
    flips = _flips(estimator._checked_session(pure=True), shape[0])
    enough = flips.most(1.0) >= list_length(shape[1])
    ours = flips.signal(degree, shape[1], 1.0) if enough else 0.0
    if estimator.delta == 0:
        name = "one_shot" if ours else "popularity"
        return name, f"{name}: delta is 0"
    moment = _moment(estimator._checked_session(), False, shape[0])
    other = moment.signal(degree, shape[1], 1.0)
    if max(ours, other) < _LEAST_SIGNAL and estimator.epsilon > LEAST_PURE * shape[1]:
        return "popularity", "popularity: only a latent factor of a tenth of all would be detected"
    name = "one_shot" if ours > other else "gram"
    least = f"{min(ours, other):.3g} with {'gram' if ours > other else 'one_shot'}"
    return name, f"{name}: expected signal {max(ours, other):.3g}, and {least}"


# Plans: synthetic rows with hidden items, and the fraction of these that a recommender finds.


class RecommenderPlans(PlansMixin):
    """Plans of recommenders.

    Facts: `nnz`, the number of interactions (None: ten of each user), and `apart` (whether
    factors share no item; otherwise popularity finds nearly as much).
    """

    _measure = "fraction of hidden items in lists of 20, or of a quarter of a small catalogue"

    def _made(self, rng, n, d, nnz=None, apart=False):
        nnz = min(USUAL_ONES, d) * n if nnz is None else nnz
        check_entries(self, nnz, n, d)
        rows, ones = histories_of(n, nnz)
        hidden, shown = parted(made_histories(rng, rows, d, ones, apart=bool(apart)))
        judged, size = slice(0, rows_drawn(rows, d)), list_length(d)
        known = shown[judged].toarray() > 0
        order = np.argpartition(np.where(known, 1.0, -shown.sum(axis=0)), min(size, d - 1), axis=1)

        def score(model):
            return recall_at_n(model.recommend(shown[judged], size)[0], hidden[judged])

        popular = recall_at_n(order[:, :size], hidden[judged])
        kind = "that share no item" if apart else "that overlap"
        said = f"{rows} users with {nnz / n:.3g} items each, by popularity and factors {kind}; the "
        said += f"most popular items alone, without noise, have a recall of {popular:.2g}"
        return PlanData(lambda model: model.fit(shown), score, (said,), n / rows, best=math.nan)


class DPRecommender(
    RecommenderPlans,
    ListsMixin,
    FitsElsewhereMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseDPEstimator,
):
    """Recommendations with differential privacy for one user, or for one interaction.

    The fitted filter is (`epsilon`, `delta`)-differentially private for adding or removing one row
    (a user with all interactions) or one interaction, and may be published. Recommendations use the
    user's own exact row and go to that user alone. What all other users receive together satisfies
    the guarantee for this row (joint differential privacy). "one_shot" releases a randomized row of
    each user: lists made from these (`recommend_all`) may be published, at pure epsilon. The
    interaction unit protects a whole row weakly: by epsilon times the number of items.

    The fit releases noisy counts of the items, and a noisy Gram matrix of the most popular ones.
    Latent factors above the noise level are added to popularity. If there are none, recommendations
    follow popularity alone, and a warning says so.

    Parameters
    ----------
    n_components : int, default=64
        Largest number of directions, including popularity.
    epsilon : float, default=1.0
        Budget of one call of `fit`; inf adds no noise.
    delta : float, default=1e-6
        Budget of one call of `fit`. "one_shot" (interactions) and "popularity" accept 0, and so
        does "auto" if it chooses one of them. If users have at most about nine items, counts have
        less noise with 0.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        Rows: one is added or removed (the number of users is private), or replaced. Interactions:
        one is added or removed, or moved to another item of the same user.
    privacy_unit : {"row", "interaction"}, default="row"
        What the guarantee protects.
    algorithm : {"auto", "gram", "one_shot", "popularity"}, default="auto"
        "gram" releases a Gram matrix with Gaussian noise. "one_shot" (interactions) applies
        randomized response to the selected items, and needs no delta. "popularity" releases counts
        alone. "auto" chooses by the larger expected signal, from public numbers.
    item_exponent : float, default=0.5
        Items are divided by their count to this power before factors are computed. 0 is a plain
        singular value decomposition, 0.5 the normalisation of graph filters.
    degree_floor : "auto" or int, default="auto"
        Interactions: users with fewer of the selected items have weights as if they had this many.
        "auto" takes the released mean number. A number must be public; `algorithm="auto"` uses it
        too (10 otherwise).
    value_cap : "binary" or float, default="binary"
        "binary": each positive entry counts the same. A float: an entry counts min(x, value_cap),
        for ratings or numbers of plays (row unit only). Rows are scaled to norm 1 in any case.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. A fit with a seed is not private.
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    item_counts_ : ndarray of shape (n_features,)
        Released popularity: noisy numbers of users, in which users with many items may have less
        weight (row unit: sums of rows scaled to norm 1, or to sum 1 if delta is 0).
    item_counts_noise_scale_ : float
        Standard deviation of its noise. With "one_shot", selected items have less: their counts are
        averaged with those of the randomized rows, in which every user counts fully.
    selected_items_ : ndarray of int
        The most popular items, to which latent factors are restricted.
    filter_ : object
        The public filter: ``scores`` maps rows to the scores of all items.
    rank_ : int
        Number of factors in the filter.
    algorithm_reason_ : str
        Which algorithm was used, and why.
    components_ : ndarray of shape (n_components, n_features)
        The first row is popularity, the others are latent factors; rows beyond `rank_` are zero.
    randomized_interactions_ : Flipped or None
        "one_shot": the randomized rows of the selected items, which may be published.
    n_users_ : int
        Number of users: released under "add_remove" for the row unit, otherwise exact (public).
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the items, when R has names that are all strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    DPTruncatedSVD : Components of the same matrix, without popularity.

    Examples
    --------
    >>> from skdp.datasets import make_interactions
    >>> from skdp.recommend import DPRecommender
    >>> R = make_interactions(3000, 300, 30_000, 5, random_state=0)
    >>> model = DPRecommender(epsilon=3.0).fit(R)
    >>> items, scores = model.recommend(R[:2], n=5)
    >>> items.shape
    (2, 5)
    """

    _privacy_units = offered("row", "interaction")
    _instead_of_text = "of pairs use interactions_from_pairs(users, items, items=catalogue).matrix."

    def __init__(
        self,
        n_components: int = 64,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        privacy_unit: str = "row",
        algorithm: str = "auto",
        item_exponent: float = 0.5,
        degree_floor: int | str = "auto",
        value_cap: float | str = "binary",
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.item_exponent = item_exponent
        self.degree_floor = degree_floor
        self.value_cap = value_cap
        self.privacy_unit = privacy_unit
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.random_state = random_state
        self.n_jobs = n_jobs

    @atomic
    def fit(self, R: Any, y: Any = None) -> Self:
        """Fit the filter; spends (`epsilon`, `delta`) once.

        Parameters
        ----------
        R : {array-like, sparse matrix} of shape (n_users, n_items), or blocks
            One column for each item; positive entries are interactions. `interactions_from_pairs`
            makes this matrix from a table of pairs. Blocks are those of `DPPCA`; for interactions
            they are put together in memory, as a sparse matrix.
        y : Ignored
            Not used.

        Returns
        -------
        self : DPRecommender
            The fitted estimator.
        """
        self._check_parameters()
        self._checked_session(pure=self.delta == 0)  # the budget is checked before the data
        names = list(map(str, column_names(R) or ()))
        if 0 < len(names) < 5:  # a table of pairs, whatever its columns are called
            said = f"DPRecommender takes one column for each item, and R has the columns {names}: "
            raise ValueError(f"{said}{self._instead_of_text} Of so few items, pass R.to_numpy().")
        options = {"accept_sparse": "csr"}
        if self._protects.by_rows:
            R = check_rows(self, R, **options)
        else:
            R = check_matrix(self, stacked_rows(R), "unless privacy_unit='row'", **options)
        session = self._open_session(pure=self._is_pure(R))
        return self._close_session(session, self._fit_session(session, R))

    def _route(self, R):
        """Return the choice made by parameters, and by the shape where it is public."""
        return choose_route(self, None if self._protects.by_rows else R.shape)

    def _is_pure_for_rows(self):
        return self._protects.by_rows and self.delta == 0 and self.epsilon != math.inf

    def _is_pure(self, R):
        gaussian = self._protects.by_rows or self._route(R)[0] == "gram"
        return self._is_pure_for_rows() or not gaussian

    def _fit_elsewhere(self, schema, n_features, connect):
        if not self._protects.by_rows:
            raise ValueError(
                "over clients DPRecommender protects whole users: use privacy_unit='row'. Got "
                f"privacy_unit={self.privacy_unit!r}."
            )
        return super()._fit_elsewhere(schema, n_features, connect)

    def _fit_session(self, session, R):
        """Release counts, a moment and a choice; everything else is post-processing."""
        name, reason = self._route(R)
        available = 1.0
        if not self._protects.by_rows:
            n_users, n_items = R.shape
            usual = counted_alike(session, n_users, n_items)
            query = InteractionHistories(R, adjacency=self.adjacency, usual=usual)
            self._warn_of_delta(*public_units(self, R.shape, session))
        else:
            options = {"adjacency": self.adjacency, "n_jobs": self.n_jobs, "cap": self._cap}
            query = RowHistories(row_source(R), pure=self._is_pure_for_rows(), **options)
            n_users, n_items = None, query.n_features
        components = np.zeros((self.n_components, n_items))  # which may not fit: before payment
        ask = session.ask(query)
        if n_users is None and self.adjacency == "replace":
            n_users = query.n_rows
            self._warn_of_delta(n_users)
        elif n_users is None:
            n_users, available = released_count(*ask.count(share=0.01)), 0.99
        route = release_route(name, session, self._protects.by_rows, n_users)
        options = (self.n_components, float(self.item_exponent), self._floor)
        found, counts, flipped = fit_filter(ask, route, n_users, available, *options)
        self._warn_of_no_factors(session, found, n_items)
        components[: 1 + found.rank, found.kept] = found.inward.T
        return {
            "filter_": found,
            "item_counts_": counts.value,
            "item_counts_noise_scale_": counts.noise_scale,
            "selected_items_": found.kept,
            "rank_": found.rank,
            "components_": components,
            "n_users_": round(n_users),
            "randomized_interactions_": flipped,
            "algorithm_reason_": reason,
        }

    def _warn_of_no_factors(self, session, found, n_items):
        if found.rank or self.algorithm == "popularity" or session.budget.exact:
            return
        few = " R has few columns: each must be one item. Of pairs use interactions_from_pairs."
        few *= n_items < 5
        warn_caller(
            "DPRecommender could use popularity alone: no latent factor exceeds the noise level. "
            "All users get the most popular items that they do not have. Use more users, a larger "
            "'epsilon' with a 'delta' above 0, or algorithm='popularity' if that is enough." + few,
            PartialSignalWarning,
        )

    def _check_parameters(self):
        check_int(self, "n_components", 1)
        check_real(self, "item_exponent", 0, 1, closed="both")
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        check_option(self, "algorithm", ("auto", "gram", "one_shot", "popularity"))
        if self.algorithm == "one_shot" and self._protects.by_rows:
            raise ValueError(
                "algorithm='one_shot' flips single interactions: it needs "
                "privacy_unit='interaction'. Got privacy_unit='row'."
            )

        if self._floor is not None:
            check_int(self, "degree_floor", 1)
            if self._protects.by_rows:
                raise ValueError(
                    "degree_floor needs privacy_unit='interaction': rows are scaled to norm 1. "
                    f"Use degree_floor='auto'. Got degree_floor={self.degree_floor!r}."
                )
        if self._cap is not None:
            check_size(self, "value_cap")
            if not self._protects.by_rows:
                raise ValueError(
                    "a cap on values needs privacy_unit='row': an interaction is there or not. "
                    f"Use value_cap='binary'. Got value_cap={self.value_cap!r}."
                )

    @property
    def _floor(self):
        return None if str(self.degree_floor) == "auto" else self.degree_floor

    @property
    def _cap(self):
        return None if str(self.value_cap) == "binary" else self.value_cap

    def _offers_pure_dp(self):
        return self.algorithm != "gram"

    def _budget_kinds(self):
        if self._protects.by_rows or self.algorithm == "gram":
            return ("gaussian",)
        return ("pure", "gaussian") if self.algorithm == "auto" else ("pure",)

    # -- the public map ------------------------------------------------------------------------

    def transform(self, R: Any) -> Any:
        """Return the popularity and the latent factors of the rows of users.

        The map is public, but its output for private rows is not covered by epsilon.

        Parameters
        ----------
        R : {array-like, sparse matrix} of shape (n_users, n_items), or blocks
            Histories.

        Returns
        -------
        factors : ndarray of shape (n_users, n_components)
            For blocks as in `DPPCA`.
        """
        check_is_fitted(self)
        return mapped(self, R, self._factors, len(self.components_))

    def _factors(self, rows):
        return np.asarray(weighted_rows(rows, self._cap) @ self.components_.T)

    def _histories(self, R):
        return weighted_rows(checked(self, R, accept_sparse="csr", reset=False), self._cap)

    @property
    def _n_features_out(self):
        return len(self.components_)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags
