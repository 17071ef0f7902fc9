"""Rows of users in blocks: what of them is public, checked before anything is read."""

import numpy as np

from skdp._inputs import as_blocks, check_block_columns, is_memory_map
from skdp.data.dask_rows import is_dask_array
from skdp.data.files import is_paths
from skdp.data.user_blocks import DaskUsers, UserForm, UsersInFiles
from skdp.regression._users import check_labels

__all__ = ["users_in_blocks"]


def users_in_blocks(estimator, X, y, groups):
    """Return the users of a Dask array or of files; None for rows in memory or in one map."""
    source = as_blocks(X)
    if source is None or is_memory_map(X):
        return None
    name = type(estimator).__name__
    if groups is None:
        raise ValueError(f"{name} needs 'groups' for rows in blocks: pass the user of each row.")
    if not (is_dask_array(X) or is_paths(X)):
        raise ValueError(
            f"{name} takes rows in memory, memory maps, lists of files and Dask arrays. "
            f"Got {type(X).__name__}."
        )
    check_block_columns(estimator, source.n_features)
    encode, n_outputs, scale_targets = estimator._block_encoding()
    form = UserForm(encode, check_labels, scale_targets, source.n_features, n_outputs)
    if is_dask_array(X):
        users = _on_workers(X, y, groups, form)
    else:
        users = _in_files(source, y, groups, form)
    users.check_apart()
    return users


def _on_workers(X, y, groups, form):
    for name, column in (("y", y), ("groups", groups)):
        if not (is_dask_array(column) and column.ndim == 1):
            raise ValueError(
                f"With a Dask array X, {name!r} must be a 1-D Dask array in the same blocks, e.g. "
                f"da.from_array({name}, chunks=X.chunks[0], name=False). Got "
                f"{type(column).__name__}."
            )
    return DaskUsers(X, y, groups, form)


def _in_files(files, y, groups, form):
    n = files.n_rows()
    for name, column in (("y", y), ("groups", groups)):
        if len(column) != n:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: {[n, len(column)]} "
                f"(the rows of the files, {name!r})."
            )
    return UsersInFiles(files, np.asarray(y), check_labels(groups), form)
