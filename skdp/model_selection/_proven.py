"""Steps that are proven to treat each row by itself, and row-by-row prediction of fitted models."""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.special
from sklearn import config_context, get_config
from sklearn.base import is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, OneHotEncoder

from skdp._limits import CACHED, GRAM_FEATURES
from skdp.base import BaseDPEstimator, no_warnings
from skdp.data.blocks import in_64_bits, refuse_malformed
from skdp.decomposition import DPPCA, DPIncrementalPCA, DPTruncatedSVD
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper
from skdp.recommend import DPRecommender
from skdp.recommend._lists import missed_share
from skdp.regression import (
    DPPersonalizedClassifier,
    DPPersonalizedRegressor,
    DPRidge,
    DPRidgeClassifier,
    DPTraceRegressor,
)
from skdp.regression._ridge_classifier import best_label

# The steps that are proven to treat each row by itself: a short table, each line tried by force.
#
# A line holds for a class itself, never for one derived from it, and names the parameters that may
# be set; all others must have their defaults, those of later versions of scikit-learn too. Other
# rows then come out bit for bit the same, whatever row is put next to them, in the same form and
# without a warning of the step itself; scikit-learn's own check of its input may warn or raise of
# one row, as docs/what_is_protected.md says. What is not in the table is not verified.


# Functions of one entry that are defined for all numbers, and hence never warn.
FUNCTIONS = (np.abs, np.arcsinh, np.arctan, np.cbrt, np.ceil, np.floor, np.rint, np.sign, np.tanh,
             np.trunc, scipy.special.expit)  # fmt: skip


class Allowed(NamedTuple):
    """Values that a parameter may have."""

    words: str
    test: Callable[[Any], bool]


def _only(*values):
    words = " or ".join(map(repr, values))
    known = [(type(value), repr(value)) for value in values]  # as NaN is not equal to itself
    return Allowed(words, lambda value: (type(value), repr(value)) in known)


_ANY = Allowed("anything", lambda value: True)
_NO_FUNCTION = Allowed("no function", lambda value: not callable(value))
_LISTS = Allowed("[public list, ...]", lambda value: isinstance(value, list | tuple))
_ENTRYWISE = Allowed(
    "None, " + ", ".join(f.__name__ for f in FUNCTIONS),
    lambda value: value is None or any(value is f for f in FUNCTIONS),
)
_NAMED_COLUMNS = Allowed(
    "columns by names or numbers", lambda value: not any(callable(columns) for *_, columns in value)
)


class Line(NamedTuple):
    """A line of the table; ``parts`` lists the (name, step) of a composition."""

    step: type
    allowed: dict[str, Allowed]
    reason: str
    given: str = ""  # an assumption about the rows that no parameter can ensure
    parts: Callable[[Any], list] | None = None


def _any(*names):
    return dict.fromkeys(names, _ANY)


_BARE = ("drop", "passthrough")  # steps that are words

TABLE = (
    Line(RowClipper, _any("clip_norm"), "scales a row by its own norm"),
    Line(PublicScaler, _any("bounds"), "truncates and scales an entry by public bounds"),
    Line(
        Normalizer,
        {"norm": _only("l2", "max")},
        "divides a row by its own norm (sums of absolute values may overflow with a warning)",
        "at least two rows, or rows in C order or CSR",
    ),
    Line(Binarizer, _any("threshold"), "compares an entry with a number"),
    Line(
        FunctionTransformer,
        {"func": _ENTRYWISE, **_any("validate", "accept_sparse", "check_inverse")},
        "maps an entry by a function that is defined, without a warning, for all numbers",
    ),
    Line(
        SimpleImputer,
        {"strategy": _only("constant"), "keep_empty_features": _only(True),
         **_any("fill_value")},
        "fills gaps with a public value",
    ),
    Line(
        OneHotEncoder,
        {"categories": _LISTS, "handle_unknown": _only("ignore"),
         **_any("sparse_output", "dtype", "feature_name_combiner")},
        "finds an entry in a public list; an unknown one gives zeros",
    ),
    Line(
        HashingVectorizer,
        {"analyzer": _NO_FUNCTION, "strip_accents": _NO_FUNCTION,
         **_any("n_features", "norm", "alternate_sign", "binary", "lowercase", "ngram_range",
                "stop_words", "token_pattern", "encoding", "decode_error")},
        "counts the hashed words of one text",
    ),
    Line(
        Pipeline, _any("steps", "verbose"), "passes rows from step to step, and stores none",
        parts=lambda step: step.steps,
    ),
    Line(
        FeatureUnion,
        _any("transformer_list", "n_jobs", "verbose", "verbose_feature_names_out"),
        "joins what its parts compute from a row",
        parts=lambda step: step.transformer_list,
    ),
    Line(
        ColumnTransformer,
        {"transformers": _NAMED_COLUMNS, "sparse_threshold": _only(0, 0.0),
         **_any("remainder", "n_jobs", "verbose", "verbose_feature_names_out")},
        "as FeatureUnion, each part with its columns; above 0, 'sparse_threshold' compares the "
        "density of all rows",
        parts=lambda step: [*(pair[:2] for pair in step.transformers),
                            ("remainder", step.remainder)],
    ),
    Line(
        VotingRegressor, _any("estimators", "weights", "n_jobs", "verbose"),
        "fits each part once, on the rows and targets as they are",
        parts=lambda step: step.estimators,
    ),
)  # fmt: skip


def line_of(step) -> Line | None:
    """Return the line of a step's own class, or None."""
    return next((line for line in TABLE if line.step is type(step)), None)


def inner_steps(step) -> list:
    """Return the (name, step) pairs of a composition in the table, which fits each of them once.

    Any other step has none.
    """
    line = line_of(step)
    return line.parts(step) if line is not None and line.parts is not None else []


def concerns(step) -> Iterator[tuple[str, str]]:
    """Yield (reason, remedy) for all that keeps a step from being proven, or private."""
    line = line_of(step)
    for name in vars(step):
        if callable(getattr(type(step), name, None)):
            yield f"has another {name!r} than its class", "Use a new object."
    if isinstance(step, BaseDPEstimator):
        return
    if line is None:
        yield "is not among the steps that are proven to use no other row", remedy_for(step)
        return
    not_last = inner_steps(step)[: -1 if type(step) is Pipeline else None]
    if line.step is not VotingRegressor and any(hasattr(part, "predict") for _, part in not_last):
        yield "hands on predictions, whose last bits depend on other rows", "Put the model last."
    defaults = inspect.signature(type(step)).parameters
    for parameter, value in step.get_params(deep=False).items():
        default = defaults[parameter].default
        allowed = line.allowed.get(parameter) or _only(default)
        if not allowed.test(value):
            setting = f"{parameter}={allowed.words}"
            yield f"is proven only with {setting}", f"Set {setting}."


_TRUST = (
    "Name it in 'assume_rowwise' if each output row depends on its own input row and public "
    "parameters alone."
)
# What to use instead, by the part of scikit-learn that a step is from.
_INSTEAD = {
    "preprocessing": "Use PublicScaler with bounds you know, DPStandardScaler, RowClipper, or "
    "OneHotEncoder with public categories.",
    "impute": "Use SimpleImputer(strategy='constant', keep_empty_features=True).",
    "feature_extraction": "Use HashingVectorizer.",
    "feature_selection": "Choose columns by public knowledge, or use DPTruncatedSVD or DPPCA.",
    "decomposition": "Use DPPCA or DPTruncatedSVD.",
    "manifold": "Use DPPCA or DPTruncatedSVD.",
    "model_selection": "Use DPGridSearchCV, which pays for its choice.",
    "frozen": "Fit it on public data, with a transform that takes one row at a time.",
    "compose": "Transform y by a public function before the fit, or set 'target_bounds'.",
}


def remedy_for(step) -> str:
    """Say what to use instead of a step that is not in the table."""
    package, _, rest = type(step).__module__.partition(".")
    if package == "sklearn" and (known := _INSTEAD.get(rest.partition(".")[0])):
        return f"{known} {_TRUST}"
    if _is(is_classifier, step):
        return "Use DPRidgeClassifier; it takes many classes in one release."
    if _is(is_regressor, step):
        return "Use DPRidge; it takes many targets in one release."
    return _TRUST


def _is(test, step):
    try:
        return test(step)
    except AttributeError:  # a composition that lacks its estimator has no tags
        return False


# Predictions of a fitted model for each row that depend on that row alone, bit by bit.
#
# ``model.predict(X)`` is not one: a batched product adds up in an order that depends on where a row
# stands, and for half of the rows the last bit of a prediction changes when another row is added. A
# sum of losses would then move by more than one unit's share. Known linear models are evaluated
# here by sums over each row (numpy adds along contiguous rows in an order fixed by their length);
# any other model gets its rows one at a time.


def n_rows(X):
    """Return the number of rows of X, which may be factors."""
    return n_rows(X[0]) if isinstance(X, tuple) else X.shape[0]


def take_rows(X, rows):
    """Return some rows of X (a slice or indices); those of a list as if they were alone."""
    if isinstance(X, tuple):
        return tuple(take_rows(part, rows) for part in X)
    found = X.iloc[rows] if hasattr(X, "iloc") else X[rows]
    mixed = isinstance(found, np.ndarray) and found.dtype == object
    return as_entries(found.tolist()) if mixed else found


def fast_map(model, X, method):
    """Return a function X -> ``model.method(X)`` by sums over rows, or None if none is known.

    Parameters
    ----------
    model : fitted estimator
        A linear model of this package, or a Pipeline of them, perhaps behind proven steps.
    X : array of floats, CSR matrix, data frame or factors
        Rows: only their type is used.
    method : str
        "predict", "transform" or "reconstruct" (transform and back).
    """
    if n_proven := begins_proven(model, X):
        head, linear = model[:n_proven].transform, _block_map(model[n_proven:], method)
        if linear is None or method == "reconstruct":
            return None
        mapped = lambda rows: linear(_dense(as_numbers(head(plain_columns(rows)))))  # noqa: E731
        return partial(_by_block, mapped, width=_widest(model))
    if hasattr(X, "iloc"):  # a data frame keeps the column names that the model was fitted with
        known = list(X.columns) == list(getattr(model, "feature_names_in_", ()))
    else:
        plain = isinstance(X, np.ndarray) and X.ndim >= 2
        known = (plain or sp.issparse(X)) and X.dtype.kind in "fiubO"
    linear = _block_map(model, method) if known else None
    return linear and partial(_by_block, lambda rows: linear(_dense(as_numbers(rows))))


def begins_proven(model, X):
    """Return how many proven steps take a frame to numbers that are not too wide."""
    if not (hasattr(X, "iloc") and type(model) is Pipeline and _widest(model) <= GRAM_FEATURES):
        return 0
    types = plain_columns(X.iloc[:0])
    heads = range(len(model) - 1, 0, -1)
    return next((n for n in heads if _columns_after(model[:n], types) is not None), 0)


def plain_columns(X):
    """Return a frame with numpy's types for nullable numbers and categories, entry by entry.

    The type of a column decides that of the result. A step of scikit-learn would choose it by
    whether an entry is missing, which changes how all others are read.
    """
    found = X.copy(deep=False)
    for i, kind in enumerate(X.dtypes):
        if isinstance(kind, np.dtype) or hasattr(kind, "subtype"):  # as sparse numbers have
            continue
        categories = getattr(kind, "categories", None)
        if kind.kind in "fiub" or getattr(categories, "dtype", kind).kind in "fiu":
            found.isetitem(i, X.iloc[:, i].to_numpy(np.float64, na_value=np.nan))
        elif categories is not None:
            found.isetitem(i, X.iloc[:, i].astype(object))
    return found


def _widest(pipeline):
    """Return the largest number of columns that a step but the first takes."""
    later = [step for _, step in pipeline.steps[1:] if step not in (None, "passthrough")]
    return max((getattr(step, "n_features_in_", math.inf) for step in later), default=math.inf)


def _columns_after(step, X):
    """Return the columns that a proven step hands on, none of numbers; None if a row may change.

    The columns have no rows, as their types alone matter. A row alone must come out as in a batch:
    in a frame of texts that a step makes, pandas chooses a type for all rows.
    """
    line, numbers = line_of(step), X.iloc[:, :0]
    if line is None and step not in (None, *_BARE):
        return None
    if line is not None and (line.given or any(concerns(step))):
        return None
    if type(step) is Pipeline:
        return reduce(lambda Z, part: Z if Z is None else _columns_after(part[1], Z), step.steps, X)
    if line is not None and line.parts is not None:
        parts = [_columns_after(part, taken) for part, taken in _parts_taken(step, X)]
    else:
        X = numbers if step == "drop" else X
        keeps_texts = line is None or line.step in (SimpleImputer, FunctionTransformer)
        parts = [(X if keeps_texts else numbers) if _is_plain(X) else None]
    if any(part is None for part in parts):
        return None
    output = {**get_config(), **getattr(step, "_sklearn_output_config", {})}
    framed = output.get("transform", output["transform_output"]) != "default"
    texts = [part for part in parts if not all_numbers(part)]
    return None if framed and line and texts else next(iter(texts), numbers)


def _is_plain(X):
    """Whether the columns of a frame have numpy's types of numbers and objects, or are text."""
    plain = (k.kind in "fiubO" if isinstance(k, np.dtype) else k.type is str for k in X.dtypes)
    return all(plain)


def _parts_taken(step, X):
    """Return pairs of a composition's step and the columns that it takes: all if not by name."""
    if type(step) is not ColumnTransformer:
        return [(part, X) for _, part in inner_steps(step)]
    pairs = [(step.remainder, X)]
    for _, part, columns in step.transformers:
        names = np.ravel(columns).tolist()
        named = all(isinstance(name, str) for name in names)
        pairs.append((part, X.loc[:, X.columns.isin(names)] if named else X))
    return pairs


def as_numbers(X):
    """Return a frame as an array of numbers; anything else as it is."""
    return np.asarray(plain_columns(X), np.float64) if hasattr(X, "iloc") else X


def in_a_batch(model, X):
    """Whether no entry, missing or no number, changes how other rows are read."""
    types = plain_columns(X.iloc[:0]) if hasattr(X, "iloc") else X
    return all_numbers(types) or begins_proven(model, X) > 0


def all_numbers(X):
    """Whether an array, factors, or every column of a frame holds numbers alone."""
    if not hasattr(X, "iloc"):
        return isinstance(X, tuple) or X.dtype.kind != "O"
    # A column of sparse numbers has them as its subtype; other types may have missing entries.
    kinds = [getattr(kind, "subtype", kind) for kind in X.dtypes if kind.kind in "fiub"]
    return len(kinds) == X.shape[1] and all(isinstance(kind, np.dtype) for kind in kinds)


def _by_block(linear, X, width=1):
    """Apply a linear map to X in blocks of rows, of up to `width` columns, without warnings."""
    size = max(1, CACHED // max(width, math.prod(X.shape[1:])))
    rows = getattr(X, "iloc", X)
    blocks = (rows[i : i + size] for i in range(0, max(1, X.shape[0]), size))
    # No warnings of names, which blocks do not have, nor errors of one row: each has a loss.
    with config_context(assume_finite=True), no_warnings():
        return np.concatenate([linear(block) for block in blocks])


def _dense(block):
    flat = block.reshape(block.shape[0], math.prod(block.shape[1:]))
    return np.ascontiguousarray(flat.toarray() if sp.issparse(flat) else flat, np.float64)


def public_row(X, value=0.0):
    """Return a row like those of X with one number everywhere; None for a frame of other things."""
    if isinstance(X, tuple):
        return tuple(public_row(part, value) for part in X)
    row = np.full((1, *X.shape[1:]), value)
    if hasattr(X, "iloc"):
        return type(X)(row, columns=X.columns) if all_numbers(X) else None
    if sp.issparse(X):
        return sp.csr_array(row, dtype=X.dtype)
    return row.astype(X.dtype) if X.dtype.kind in "fiub" else row


def each_row(function, X, y):
    """Return the number function(one row, its y) of each row; NaN for a row that fails.

    Neither errors nor warnings of single rows are shown, as they may reveal private values.
    """
    values = np.full(n_rows(X), np.nan)
    with config_context(assume_finite=True), no_warnings(), np.errstate(all="ignore"):
        for i in range(len(values)):
            one = slice(i, i + 1)
            with contextlib.suppress(Exception):  # any error would reveal private values
                (values[i],) = np.ravel(function(take_rows(X, one), None if y is None else y[one]))
    return values


def apply(model, method, X):
    """Return ``model.method(X)``; "reconstruct" is transform and back, "recommend" its losses."""
    if method == "recommend":
        return missed_share(model, X)
    if method == "reconstruct":
        return model.inverse_transform(model.transform(X))
    return getattr(model, method)(X)


def _products(X, M):
    """X @ M, each entry a sum along one contiguous row."""
    out, M = np.empty((len(X), *M.shape[1:])), M.reshape(len(M), -1)
    for j in range(M.shape[1]):
        np.sum(X * M[:, j], axis=1, out=out.reshape(len(X), M.shape[1])[:, j])
    return out


def _block_map(model, method):
    """Return a map of blocks of rows for models that are known to be linear, else None.

    They are exactly these classes: a subclass may do something else.
    """
    if isinstance(model, Pipeline):
        return _pipeline_map(model, method)
    if type(model) is DPTraceRegressor and method == "predict":
        coef, ends = np.asarray(model.coef_, np.float64).reshape(-1, 1), model.prediction_bounds_
        return lambda X: np.clip(_products(X, coef)[:, 0] + model.intercept_, *ends)
    if type(model) in (RowClipper, PublicScaler, DPStandardScaler) and method == "transform":
        # Entry by entry, and sums along rows; `set_output` makes a frame of them.
        return lambda X: np.ascontiguousarray(model.transform(X), np.float64)
    if type(model) in (DPRidge, DPRidgeClassifier) and method == "predict":
        classes = getattr(model, "classes_", None)
        finish = np.asarray if classes is None else partial(best_label, classes=classes)
        return model._predictor(finish, _products)
    if type(model) in (DPPersonalizedRegressor, DPPersonalizedClassifier) and method == "predict":
        return None if model.group_column is not None else model._predictor(_products)
    if type(model) is DPRecommender and method == "recommend":
        return partial(missed_share, model)
    if type(model) in (DPPCA, DPIncrementalPCA, DPTruncatedSVD):
        V = np.asarray(model.components_, np.float64).T
        mean = np.asarray(getattr(model, "mean_", 0.0), np.float64)
        scale = model._whitening_scale() if getattr(model, "whiten", False) else 1.0
        if method == "transform":
            return lambda X: _products(X - mean, V) / scale
        if method == "reconstruct":
            return lambda X: _products(_products(X - mean, V), np.ascontiguousarray(V.T)) + mean
    return None


def _pipeline_map(pipeline, method):
    steps = [step for _, step in pipeline.steps if step not in (None, "passthrough")]
    last = method if method != "reconstruct" or len(steps) == 1 else None
    maps = [_block_map(step, "transform") for step in steps[:-1]] + [_block_map(steps[-1], last)]
    if any(each is None for each in maps):
        return None
    return lambda X: reduce(lambda rows, each: each(rows), maps, X)


def as_rows(X):
    """Return X in a form whose rows can be taken one at a time."""
    if isinstance(X, tuple):
        return tuple(map(as_entries, X))
    if sp.issparse(X):
        refuse_malformed(X, "a scorer")
        return sp.csr_array(in_64_bits(X))
    return X if hasattr(X, "iloc") else as_entries(X)


def as_entries(values):
    """Return an array; in a list, no entry decides the type of the others."""
    found = np.asarray(values)
    kind = np.float64 if found.dtype.kind in "fiub" else object
    return found if hasattr(values, "dtype") else np.asarray(values, kind)
