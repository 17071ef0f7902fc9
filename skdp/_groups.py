"""The unit "group": all rows of one person, whom `groups` or a column of X names."""

import math

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_array, validate_data

from skdp._inputs import advised, as_blocks, check_rows, checked, is_memory_map
from skdp._labels import check_labels
from skdp._placed import check_placed, groups_in_blocks, in_blocks
from skdp._scales import learn_scale
from skdp._validation import check_int, check_option
from skdp.data.blocks import row_source
from skdp.data.persons import PersonForm, PersonRows, persons_of
from skdp.data.places import Placed
from skdp.queries.persons import PersonQuery
from skdp.queries.rows import RowQuery

_WEIGHT_SHARE = 0.04  # of the budget, for how many rows a person counts
_OF_MEDIAN = 1 / 3  # of the numbers of rows: most persons count whole, and noise grows little


class GroupUnitMixin:
    """Protects one row, or all rows of one person (`privacy_unit`)."""

    __metadata_request__fit = {"groups": True}
    _privacy_units = {
        "row": ("add_remove", "replace"),
        "group": ("add_remove", "replace"),
    }

    def get_metadata_routing(self):
        """Return what metadata the methods take: `groups`, for the unit "group" without a column.

        Returns
        -------
        routing : MetadataRequest
            The requests of this estimator.
        """
        request = super().get_metadata_routing()
        if not self._by_group or self.user_column is not None:
            request.fit.add_request(param="groups", alias=False)
        return request

    @property
    def _by_group(self):
        return self.privacy_unit == "group"

    # -- parameters ------------------------------------------------------------------------

    def _check_unit(self):
        """Check what belongs to the unit."""
        check_option(self, "privacy_unit", tuple(self._privacy_units))
        check_int(self, "group_weight", 1, also=("equal", "rows"))
        if self.user_column is not None and not self._by_group:
            raise ValueError(
                f"{type(self).__name__} takes 'user_column' with privacy_unit='group' only. Got "
                f"privacy_unit={self.privacy_unit!r}."
            )

    def _total_is_public(self):
        """Whether the number of rows, or the total weight of groups, is public."""
        return self.adjacency == "replace" and not (self._by_group and self._weighs_rows())

    def _weighs_rows(self):
        return self.group_weight != "equal"

    def _with_weights(self, shares):
        """Return shares that leave something for the weights of groups, where these are learnt."""
        if not self._by_group or self.group_weight != "rows":
            return shares
        shares = {key: (1 - _WEIGHT_SHARE) * value for key, value in shares.items()}
        return shares | {"group_weight": _WEIGHT_SHARE}

    # -- rows --------------------------------------------------------------------------------

    def _check_given(self, groups):
        """Refuse groups that do not go with the unit: a guarantee for rows is not one for them."""
        name = type(self).__name__
        if not self._by_group and groups is not None:
            raise ValueError(
                f"{name} was passed 'groups', but privacy_unit={self.privacy_unit!r} does not "
                "protect them: set privacy_unit='group', or leave them out."
            )
        if self._by_group and groups is None and self.user_column is None:
            raise ValueError(
                f"{name}(privacy_unit='group') needs the person of each row: pass 'groups' "
                "(through a Pipeline or a search this needs metadata routing) or set 'user_column'."
            )
        if groups is not None and self.user_column is not None:
            raise ValueError(
                "Persons were given twice, as 'groups' and as 'user_column'; use one of them."
            )

    def _checked_rows(self, X, groups, **options):
        """Return the rows to fit as a source, by person for the unit "group"."""
        self._check_given(groups)
        if not self._by_group:
            rows = check_rows(self, X, **options)
            if self.adjacency == "replace":
                self._warn_of_delta(row_source(rows).n_rows())
            return rows
        if as_blocks(X) is not None and not is_memory_map(X):
            refuse_column(self)
            placed = groups_in_blocks(self, X, groups, accept_sparse=options["accept_sparse"])
            return persons_of(placed, PersonForm(check_labels))
        X, groups = split_rows(self, X, groups, reset=True, **options)
        return PersonRows(X, {}, numbered(groups, X))

    def _checked_records(self, X, y, groups, *, numbers):
        """Return checked rows and targets, and for the unit "group" the person of each row."""
        self._check_given(groups)
        if not self._by_group:
            placed = check_placed(self, X, y, numbers=numbers)
            if self.adjacency == "replace":
                self._warn_of_delta(placed.rows.n_rows())
            return placed
        if as_blocks(X) is not None:
            refuse_column(self)
            return in_blocks(self, X, y, groups, numbers=numbers, multi_output=True)
        if self.user_column is not None:
            X, groups = without_column(self, X, reset=True)
        placed = check_placed(self, X, y, numbers=numbers, reset=self.user_column is None)
        return Placed(
            placed.rows, {**placed.columns, "groups": labels_of(groups, placed.rows.n_rows())}
        )

    # -- queries -----------------------------------------------------------------------------

    def _unit_query(self, source):
        """Return the query over rows, or over persons, as they came."""
        kind = PersonQuery if self._by_group else RowQuery
        query = kind(source, clip_norm=math.inf, adjacency=self.adjacency, n_jobs=self.n_jobs)
        self._warn_of_persons(query)
        return query

    def _warn_of_persons(self, query):
        """Say that delta is too large for the number of persons, where that is public."""
        if self._by_group and self.adjacency == "replace":
            self._warn_of_delta(query.n_rows, "group")

    def _weighted(self, session, ask, shares):
        """Return what is asked of weighted persons, and how many rows a weight of 1 stands for."""
        if not self._by_group or not self._weighs_rows():
            return ask, 1.0
        if self.group_weight != "rows":
            most = float(self.group_weight)
        elif session.budget.exact:
            return ask.weighted(math.inf), 1.0
        else:
            scale = learn_scale(self, ask.rows_below, shares["group_weight"],
                of="the numbers of rows", remedy="'group_weight', a number of rows",
            )  # fmt: skip
            most = _OF_MEDIAN * scale.value
        return ask.weighted(max(1.0, most)), max(1.0, most)


def persons_of_batch(X, groups, seen):
    """Return the rows of a batch by person, and who was seen by now; nobody may come twice.

    Whether somebody does is asked of each person's own label and says nothing of the others. Labels
    are kept as text, whole numbers alike in every type of number.
    """
    persons, codes = np.unique(groups, return_inverse=True)
    names = [_name(person) for person in persons.tolist()]
    if names and seen and names[0][0] != seen[0][0]:
        raise ValueError("Persons are of one kind in one batch and of another in this one.")
    if not set(seen).isdisjoint(names):
        raise ValueError(
            "A person of this batch came in an earlier one (who is withheld), and would count "
            "twice: all rows of a person must come in one batch. This batch was not taken."
        )
    return PersonRows(X, {}, codes), sorted({*seen, *names})


def _name(person):
    if isinstance(person, str):
        return "s" + person
    if isinstance(person, (bool, int)) or (isinstance(person, float) and person.is_integer()):
        return f"n{int(person)}"
    return f"n{person!r}"


def refuse_column(estimator):
    """Refuse a column of persons in rows that come in blocks."""
    if getattr(estimator, "user_column", None) is not None:
        raise ValueError(
            f"{type(estimator).__name__} takes no 'user_column' in rows that come in blocks: pass "
            "'groups' to fit."
        )


def split_rows(estimator, X, groups, *, reset, **options):
    """Return checked rows in memory without the column of persons, and the persons."""
    if estimator.user_column is not None:
        rows, groups = without_column(estimator, X, reset=reset)
        return advised(estimator, check_array, rows, input_name="X", **options), groups
    if is_memory_map(X):
        return check_rows(estimator, X, reset=reset, **options).whole(), groups
    return checked(estimator, X, reset=reset, **options), groups


def without_column(estimator, X, *, reset):
    """Return rows as they came without the column of persons, and that column."""
    if not hasattr(X, "shape"):
        X = np.asarray(X, dtype=object)
    if len(X.shape) != 2:
        raise ValueError(
            f"Expected 2D array, got {len(X.shape)}D array instead: 'user_column' names a "
            "column of X."
        )
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    return split_users(X, estimator.user_column)


def rows_to_map(estimator, X, **options):
    """Return checked rows in memory for a public map: without the column of persons."""
    if getattr(estimator, "user_column", None) is None:
        return checked(estimator, X, reset=False, **options)
    return split_rows(estimator, X, None, reset=False, **options)[0]


def column_number(estimator):
    """Return where the column of persons stands among the columns that were fitted."""
    column = estimator.user_column
    names = list(getattr(estimator, "feature_names_in_", ()))
    return names.index(column) if column in names else column % estimator.n_features_in_


def feature_names(estimator):
    """Return the names of the features, if there are any: without the column of persons."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or getattr(estimator, "user_column", None) is None:
        return names
    return np.delete(names, column_number(estimator))


def numbered(groups, X):
    """Return the number of the person of each row."""
    return np.unique(labels_of(groups, X.shape[0]), return_inverse=True)[1]


def labels_of(groups, n):
    """Return the checked person of each of n rows."""
    groups = check_labels(groups)
    if len(groups) != n:
        raise ValueError("X and groups have inconsistent numbers of samples (withheld).")
    return groups


def _is_index(column):
    return isinstance(column, (int, np.integer)) and not isinstance(column, bool)


def split_users(X, column):
    """Return (X without the user column, users); X may be a data frame."""
    if hasattr(X, "columns"):
        names = list(X.columns)
        name = column
        if column not in names and _is_index(column) and -len(names) <= column < len(names):
            name = names[column]
        if name not in names:
            raise ValueError(f"'user_column' {column!r} is not a column of X.")
        return X.drop(columns=[name]), X[name].to_numpy()
    if not _is_index(column):
        raise ValueError(
            f"'user_column' must be the index of a column unless X is a data frame. Got {column!r}."
        )
    if not sp.issparse(X) and not hasattr(X, "dtype"):
        X = np.asarray(X, dtype=object)  # ids keep their digits; features are cast later
    if X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(f"'user_column' {column!r} is not a column of X.")
    kept = np.delete(np.arange(X.shape[1]), column)
    if sp.issparse(X):
        X = X.tocsc()
        return X[:, kept].tocsr(), X[:, [column]].toarray().ravel()
    return X[:, kept], X[:, column]
