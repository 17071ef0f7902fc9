"""The steps that are proven to treat each row by itself: a short table, each line tried by force.

A line holds for a class itself, never for one derived from it, and names the parameters that may be
set; all others must have their defaults, those of later versions of scikit-learn too. Other rows
then come out bit for bit the same, whatever row is put beside them, in the same form and without a
warning. What is not in the table is not verified.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.special
from sklearn.base import is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingRegressor
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, OneHotEncoder

from skdp.base import BaseDPEstimator
from skdp.preprocessing import PublicScaler, RowClipper

# Functions of one entry that are defined for all numbers, and hence never warn.
FUNCTIONS = (np.abs, np.arcsinh, np.arctan, np.cbrt, np.ceil, np.floor, np.rint, np.sign, np.tanh,
             np.trunc, scipy.special.expit)  # fmt: skip


class Allowed(NamedTuple):
    """Values that a parameter may have."""

    words: str
    test: Callable[[Any], bool]


def _only(*values):
    words = " or ".join(map(repr, values))
    return Allowed(words, lambda value: any(type(value) is type(v) and value == v for v in values))


_ANY = Allowed("anything", lambda value: True)
_NO_FUNCTION = Allowed("no function", lambda value: not callable(value))
_LISTS = Allowed("public lists", lambda value: isinstance(value, list | tuple))
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
    given: str = ""  # what must hold of the rows, which no parameter tells
    parts: Callable[[Any], list] | None = None


def _any(*names):
    return dict.fromkeys(names, _ANY)


TABLE = (
    Line(RowClipper, _any("clip_norm"), "scales a row by its own norm"),
    Line(PublicScaler, _any("bounds"), "cuts an entry to public bounds, and scales it by them"),
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
        "looks an entry up in a public list; an unknown one gives zeros",
    ),
    Line(
        HashingVectorizer,
        {"analyzer": _NO_FUNCTION, "strip_accents": _NO_FUNCTION,
         **_any("n_features", "norm", "alternate_sign", "binary", "lowercase", "ngram_range",
                "stop_words", "token_pattern", "encoding", "decode_error")},
        "counts the hashed words of one text",
    ),
    Line(
        Pipeline, _any("steps", "verbose"), "hands rows on from step to step, and keeps none",
        parts=lambda step: step.steps,
    ),
    Line(
        FeatureUnion,
        _any("transformer_list", "n_jobs", "verbose", "verbose_feature_names_out"),
        "puts what its parts make of a row side by side",
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


def parts_of(step) -> list:
    """Return the (name, step) pairs of a composition in the table; of any other step none."""
    line = line_of(step)
    return line.parts(step) if line is not None and line.parts is not None else []


def fits_each_part_once(step) -> bool:
    """Whether a step is a composition in the table: each part is fitted once, on its own rows."""
    line = line_of(step)
    return line is not None and line.parts is not None


def doubts(step) -> Iterator[tuple[str, str]]:
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
    defaults = inspect.signature(type(step)).parameters
    for parameter, value in step.get_params(deep=False).items():
        default = defaults[parameter].default
        allowed = line.allowed.get(parameter) or Allowed(repr(default), _same(default))
        if not allowed.test(value):
            yield f"is proven only with {parameter}: {allowed.words}", f"Set it so. {_TRUST}"


def _same(default):
    return lambda value: type(value) is type(default) and repr(value) == repr(default)


_TRUST = (
    "Name it in 'trusted' if each output row depends on its own input row and public parameters "
    "alone."
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
    "compose": "Transform y by public constants, or set 'target_bounds'.",
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


def proven_table() -> str:
    """Return the table in Markdown."""
    lines = ["| step | proven with | because it |", "|---|---|---|"]
    for line in TABLE:
        by_words: dict[str, list[str]] = {}
        for name, allowed in line.allowed.items():
            by_words.setdefault(allowed.words, []).append(f"`{name}`")
        settings = [f"{', '.join(names)}: {words}" for words, names in by_words.items()]
        given = [f"given {line.given}"] if line.given else []
        lines.append(f"| `{line.step.__name__}` | {'; '.join(settings + given)} | {line.reason} |")
    return "\n".join(lines)
