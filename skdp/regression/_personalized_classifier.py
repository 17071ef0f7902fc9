"""Personalised classification with differential privacy for one user."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax

from skdp._validation import Seed, Split
from skdp.regression._personalized_base import PersonalizedBase
from skdp.regression._scores import ScoredClassifierMixin, encode, public_classes


class DPPersonalizedClassifier(ScoredClassifierMixin, PersonalizedBase):
    """Logistic models of many users that share a subspace, with privacy for all rows of one user.

    The public attributes satisfy (`epsilon`, `delta`)-differential privacy for adding or removing
    (or replacing, see `adjacency`) all rows of one user, whatever the data are: each user sends a
    few messages of bounded norm, one for all classes together, and only their noisy sums are
    released. Each user's own model (its head) is fitted to the public attributes and that user's
    rows, for that user alone. **The fitted object holds these private models: publish**
    ``public_copy()``. Not covered: predictions for a fitted user, ``score``, and whether a user is
    known.

    Parameters
    ----------
    n_components : int or "auto", default=2
        Largest dimension of the shared subspace. Components far below the noise level are dropped,
        except the first. "auto" counts the eigenvalues above the noise level.
    epsilon : float, default=1.0
        Budget of one call of fit, for all rows of one user together; ``inf`` adds no noise.
    delta : float, default=1e-6
        Probability that the bound fails; well below one over the number of users.
    adjacency : {"add_remove", "replace"}, default="add_remove"
        With "add_remove" the number of users is private too; with "replace" it is public.
    budget_split : dict or "auto", default="auto"
        Budget fraction of each release. The keys depend on the other parameters; an error for a
        wrong key lists them.
    whiten : bool, default=True
        Whether to whiten the scaled features by their covariance, which the release for the global
        model holds. False is for features without correlations.
    head_selection : {"private_vote", "subspace", "per_user"}, default="private_vote"
        How users fit their models. "private_vote": by the rule that noisy votes select.
        "subspace": inside the subspace. "per_user": by a mean of all rules, which each user weights
        by its own leave-one-out errors; this also applies if the votes show no best rule.
    classes : array-like or None, default=None
        The public list of classes. None takes the labels in y, makes them public, and warns. A user
        with any other label counts only in the search for the scales of columns.
    fit_intercept : bool, default=True
        Whether each user has an intercept; the selected rule may shrink it.
    group_column : int, str or None, default=None
        Column of X that holds the users, instead of `groups`.
    require_groups : bool, default=False
        Whether to fit or predict without users is an error.
    random_state : int, Generator, RandomState or None, default=None
        None draws noise from the operating system. With anything else the noise can be
        reproduced, so the fit is not private: it warns, and the receipt says "SEEDED".
    n_jobs : int or None, default=None
        Number of threads. It does not change the result.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes.
    components_ : ndarray of shape (`n_components_`, n_features)
        Orthonormal rows that span the shared subspace, in whitened features.
    whitening_ : ndarray of shape (n_features, n_features)
        Public map of the features. A user's coefficients are ``whitening_ @ components_.T @ V``.
    n_components_ : int
        Dimension of the subspace.
    eigenvalues_ : ndarray of shape (n_features,)
        Released eigenvalues of the users' unit directions, in descending order.
    global_coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        The global model, for users without one of their own: a linear model of the classes of all
        users together, times a factor that noisy votes select.
    global_intercept_ : float or ndarray of shape (n_classes,)
        Its intercept.
    feature_center_, feature_scale_ : ndarray of shape (n_features,)
        Released medians and scales of the columns, which users subtract and divide by.
    feature_bounds_ : ndarray of shape (2, n_features)
        Bounds of each column, 48 scales from the centre. An entry at r times this distance, often a
        code, is replaced by one at 1/r of it, in `predict` too. Infinite if no scale was found.
    target_scale_found_ : bool
        Always True: labels have no scale.
    global_model_found_ : bool
        Whether the global model exceeds its noise. If not, users without a model of their own
        get about the class frequencies, and models of the others start there.
    head_rule_ : HeadRule or None
        The selected rule; None if each user takes a mean of several.
    head_rule_scores_ : Choice
        All rules, their noisy votes, and the rules for users with two rows and with one.
    n_groups_ : int
        Number of users: released under "add_remove", and at least two standard deviations of its
        noise; exact under "replace". With `fit_intercept=False`, users without a direction do not
        count.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all names of X are strings.
    privacy_spent_ : PrivacySpent
        Epsilon, delta and unit of the guarantee: the receipt of the fit.
    releases_ : tuple of LedgerEntry
        Each release with its sensitivity and noise scale.

    See Also
    --------
    DPPersonalizedRegressor : The same for numbers.

    References
    ----------
    .. [1] Jain, Rush, Smith, Song, Thakurta, "Differentially private model personalization",
       NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp.regression import DPPersonalizedClassifier
    >>> rng = np.random.default_rng(0)
    >>> users = np.repeat(np.arange(2000), 10)
    >>> X = rng.standard_normal((20000, 8))
    >>> factor = 5.0 * (1 + rng.standard_normal((2000, 1))) * np.eye(8)[0]
    >>> y = np.sum(X * factor[users], axis=1) > 0
    >>> model = DPPersonalizedClassifier(n_components=1, epsilon=2.0, classes=[False, True])
    >>> bool(model.fit(X, y, groups=users).score(X, y, groups=users) > 0.85)
    True
    """

    __metadata_request__predict_proba = {"groups": True}
    __metadata_request__predict_log_proba = {"groups": True}
    __metadata_request__decision_function = {"groups": True}

    _y_numeric = False

    def __init__(
        self,
        n_components: int | str = 2,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        adjacency: str = "add_remove",
        budget_split: Split = "auto",
        whiten: bool = True,
        head_selection: str = "private_vote",
        classes: Iterable[Any] | None = None,
        fit_intercept: bool = True,
        group_column: int | str | None = None,
        require_groups: bool = False,
        random_state: Seed = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.budget_split = budget_split
        self.whiten = whiten
        self.head_selection = head_selection
        self.classes = classes
        self.fit_intercept = fit_intercept
        self.group_column = group_column
        self.require_groups = require_groups
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _loss_name(self):
        classes = getattr(self, "classes_", ())
        return "softmax" if len(classes) > 2 else "logistic"

    def _scales_targets(self):
        return False  # they are labels

    def _decide_classes(self, y=None):
        if y is None and self.classes is None:
            raise ValueError(
                f"{type(self).__name__} needs 'classes' for rows in blocks: which labels occur is "
                "not known without reading them."
            )
        self.classes_ = public_classes(self, y, least=1)

    def _encoding(self):
        """Indicators of the classes, of the second one if there are two; NaN for other labels."""
        n = len(self.classes_)
        codes = np.eye(n) if n > 2 else np.arange(float(n))[:, None]
        return partial(encode, classes=self.classes_, codes=codes), codes.shape[1]

    def decision_function(self, X: Any, groups: Any = None) -> Any:
        """Return the linear predictor of each row.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to predict.
        groups : array-like of shape (n_samples,), default=None
            The user of each row; None takes the global model for all.

        Returns
        -------
        decision : ndarray of shape (n_samples,) or (n_samples, n_classes)
            Confidence in the second class, or in each class.
        """
        eta = self._linear(X, groups)
        return eta[:, 0] if eta.shape[1] == 1 else eta

    def predict_proba(self, X: Any, groups: Any = None) -> Any:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to predict.
        groups : array-like of shape (n_samples,), default=None
            The user of each row; None takes the global model for all.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        return softmax(self._of_classes(self._linear(X, groups)), axis=1)

    def predict_log_proba(self, X: Any, groups: Any = None) -> Any:
        """Return the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows to predict.
        groups : array-like of shape (n_samples,), default=None
            The user of each row; None takes the global model for all.

        Returns
        -------
        log_probabilities : ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X, groups))

    def _of_classes(self, linear):
        """Return a score of each class; two classes have one, that of the second."""
        return np.hstack([np.zeros_like(linear), linear]) if len(self.classes_) == 2 else linear

    def _predicted(self, linear):
        return self.classes_[np.argmax(self._of_classes(linear), axis=1)]

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy; on private rows it is not covered.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Labels.
        groups : array-like of shape (n_samples,), default=None
            The user of each row.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Accuracy.
        """
        return self._compared(y, self.predict(X, groups), sample_weight)
