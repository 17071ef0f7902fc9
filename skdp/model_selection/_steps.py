"""What is known of single steps of a pipeline: which treat each row by itself, and which learn."""

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import scipy.special
from sklearn.base import is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from skdp.base import BaseDPEstimator
from skdp.preprocessing import RowClipper

__all__ = [
    "Verdict",
    "is_entrywise",
    "is_sklearn",
    "judge",
    "may_be_sparse",
    "repeated",
    "searched_steps",
    "taken_on_trust",
]

FROZEN = "Or fit the step on public data and wrap it: FrozenEstimator(step.fit(X_public))."
ROW_BY_ROW = "Use a step that treats each row by itself (RowClipper, Normalizer). " + FROZEN


class Verdict(NamedTuple):
    """What a step does with rows.

    Attributes
    ----------
    kind : {"private", "entry", "row", "fitted", "trained", "unknown"}
        A private step; a map of each entry, or of each row, with public parameters; a transformer
        or a predictor that learns without noise; or nothing is known.
    reason : str
        For the last three: what it learns, or why nothing is known.
    remedy : str
        What to do instead.
    """

    kind: str
    reason: str = ""
    remedy: str = ""


def is_sklearn(step, *names):
    """Whether this is scikit-learn's own class (a subclass may do anything)."""
    cls = type(step)
    return cls.__module__.split(".")[0] == "sklearn" and (not names or cls.__name__ in names)


# Output rows depend on their own input row and on the parameters; fit learns the number of columns.
_ENTRYWISE = {"Binarizer"}
_ROWWISE = {
    "Normalizer", "PolynomialFeatures", "HashingVectorizer", "FeatureHasher", "AdditiveChi2Sampler",
    "SkewedChi2Sampler", "PolynomialCountSketch",
}  # fmt: skip


# These multiply rows with BLAS, which may round a row by where it stands.
_MULTIPLIES = {
    "RBFSampler", "SkewedChi2Sampler", "GaussianRandomProjection", "SparseRandomProjection",
}  # fmt: skip


_TEXT = ("HashingVectorizer", "CountVectorizer", "TfidfVectorizer")
_TRUST = "If it uses no other row, name the step in 'trusted'."


def _given(value):
    return value is not None and not isinstance(value, str)


# name -> (whether these parameters leave nothing to learn, what is learnt otherwise, the remedy)
_DEPENDS: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "RBFSampler": (
        lambda s: not isinstance(s.gamma, str),
        "gamma='scale' is the variance of all entries",
        "Set gamma to a number.",
    ),
    "GaussianRandomProjection": (
        lambda s: isinstance(s.n_components, numbers.Integral),
        "n_components='auto' follows the number of rows",
        "Set n_components to a number.",
    ),
    "SparseRandomProjection": (
        lambda s: isinstance(s.n_components, numbers.Integral),
        "n_components='auto' follows the number of rows",
        "Set n_components to a number.",
    ),
    "OneHotEncoder": (
        lambda s: _given(s.categories) and s.min_frequency is None and s.max_categories is None
        and s.handle_unknown != "warn",
        "it learns which categories occur, and how often",
        "Pass the public list, categories=[...], and handle_unknown='ignore'.",
    ),
    "OrdinalEncoder": (
        lambda s: _given(s.categories) and s.min_frequency is None and s.max_categories is None,
        "it learns which categories occur, and how often",
        "Pass the public list: categories=[...].",
    ),
    "SimpleImputer": (
        lambda s: s.strategy == "constant" and s.keep_empty_features and not s.add_indicator,
        "it learns fill values, or which columns are empty",
        "Use SimpleImputer(strategy='constant', fill_value=..., keep_empty_features=True).",
    ),
    "MissingIndicator": (
        lambda s: s.features == "all",
        "it learns which columns have missing values",
        "Use features='all'.",
    ),
    "SplineTransformer": (
        lambda s: _given(s.knots),
        "its knots follow the rows",
        "Pass public knots as an array.",
    ),
    "CountVectorizer": (
        lambda s: s.vocabulary is not None,
        "its vocabulary names words that occur in the rows",
        "Use HashingVectorizer, or pass a public vocabulary.",
    ),
    "TfidfVectorizer": (
        lambda s: s.vocabulary is not None and not s.use_idf,
        "its vocabulary names words that occur, and its weights count rows",
        "Use HashingVectorizer, or a public vocabulary and use_idf=False.",
    ),
    "TfidfTransformer": (
        lambda s: not s.use_idf,
        "its weights count rows",
        "Use use_idf=False.",
    ),
}  # fmt: skip

_SCALERS = (
    "it learns location and scale of the columns",
    "Use DPStandardScaler, or scale by public constants. " + ROW_BY_ROW,
)
_IMPUTERS = ("it fills gaps from other rows", _DEPENDS["SimpleImputer"][2])
_SELECTORS = (
    "it chooses columns by their values",
    "Choose columns by public knowledge, or use DPTruncatedSVD or DPPCA in place of it.",
)
_REDUCERS = ("it learns directions from the rows", "Use DPPCA or DPTruncatedSVD.")
_LEARNERS = {
    **dict.fromkeys(("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"), _SCALERS),
    **dict.fromkeys(
        ("QuantileTransformer", "PowerTransformer", "KBinsDiscretizer"),
        ("it learns the distribution of each column", "Use public bins or knots. " + ROW_BY_ROW),
    ),
    **dict.fromkeys(("KNNImputer", "IterativeImputer"), _IMPUTERS),
    **dict.fromkeys(
        ("VarianceThreshold", "SelectKBest", "SelectPercentile", "SelectFpr", "SelectFdr",
         "SelectFwe", "GenericUnivariateSelect", "RFE", "RFECV", "SelectFromModel",
         "SequentialFeatureSelector"), _SELECTORS,
    ),
    **dict.fromkeys(
        ("PCA", "TruncatedSVD", "IncrementalPCA", "KernelPCA", "SparsePCA", "MiniBatchSparsePCA",
         "NMF", "MiniBatchNMF", "FastICA", "FactorAnalysis", "DictionaryLearning",
         "MiniBatchDictionaryLearning", "LatentDirichletAllocation", "Nystroem", "Isomap"),
        _REDUCERS,
    ),
    "DictVectorizer": ("it learns which names occur", "Use FeatureHasher. " + FROZEN),
    "TargetEncoder": ("it learns means of y", "Use OneHotEncoder with public categories."),
}  # fmt: skip


_METHODS = ("fit", "fit_transform", "transform", "predict", "fit_predict", "partial_fit")


def judge(step):
    """Say what a step does with rows; whatever is not known to be harmless is not."""
    if any(name in vars(step) for name in _METHODS):
        return Verdict("unknown", "a method of this object was replaced", "Use a new one.")
    if isinstance(step, BaseDPEstimator):
        return Verdict("private")
    if type(step) is RowClipper:
        return Verdict("row")
    if is_sklearn(step, "FunctionTransformer"):
        return _judge_function(step)
    if is_sklearn(step, *_TEXT) and any(
        callable(getattr(step, name)) for name in ("preprocessor", "tokenizer", "analyzer")
    ):
        return Verdict("unknown", "nothing says that its functions use one text alone", _TRUST)
    name = type(step).__name__
    if is_sklearn(step) and name in _ENTRYWISE | _ROWWISE:
        return Verdict("entry" if name in _ENTRYWISE else "row")
    if is_sklearn(step) and name in _DEPENDS:
        harmless, reason, remedy = _DEPENDS[name]
        return Verdict("row") if harmless(step) else Verdict("fitted", reason, remedy)
    if is_sklearn(step) and name in _LEARNERS:
        return Verdict("fitted", *_LEARNERS[name])
    return _judge_other(step)


def is_entrywise(function):
    """Whether a function is None, or one that numpy or scipy applies to each entry by itself."""
    if function is None:
        return True
    if not isinstance(function, np.ufunc) or function.nin != 1:
        return False
    name = function.__name__  # np.frompyfunc makes a ufunc of anything
    return any(getattr(module, name, None) is function for module in (np, scipy.special))


def _judge_function(step):
    """A numpy ufunc of one argument maps each entry; any other function may look at all rows."""
    functions = (step.func, step.inverse_func)
    if not all(map(is_entrywise, functions)) or step.kw_args or step.inv_kw_args:
        return Verdict(
            "unknown",
            "nothing says that its function treats each row by itself",
            "Use a numpy ufunc. " + _TRUST,
        )
    if step.inverse_func is not None and step.check_inverse:
        return Verdict("fitted", "its check warns by the values", "Set check_inverse=False.")
    return Verdict("entry")


def _judge_other(step):
    if isinstance(step, (Pipeline, FeatureUnion, ColumnTransformer)):
        return Verdict(
            "unknown",
            "a class derived from a composition may do anything, resample the rows for instance",
            "Use scikit-learn's own Pipeline, FeatureUnion or ColumnTransformer.",
        )
    if _has_kind(is_classifier, step):
        return Verdict("trained", "it learns without noise", "Use DPRidgeClassifier.")
    if _has_kind(is_regressor, step):
        return Verdict("trained", "it learns without noise", "Use DPRidge.")
    if hasattr(step, "predict") or hasattr(step, "fit_predict"):
        return Verdict(
            "trained",
            "it learns without noise",
            "Train it on public data, or in place of it release DPPCA or DPRidge.",
        )
    if is_sklearn(step):
        return Verdict("fitted", "it is not known to treat each row by itself", ROW_BY_ROW)
    return Verdict(
        "unknown",
        "this class is not known here",
        "If its output rows depend on their own input row and on public parameters alone, name "
        "the step in 'trusted'; else replace it.",
    )


def _has_kind(test, step):
    try:
        return test(step)
    except AttributeError:  # a composition that lacks its estimator has no tags
        return False


def may_be_sparse(step):
    """Whether this encoder's output may be sparse."""
    if is_sklearn(step, "OneHotEncoder"):
        return step.sparse_output
    return is_sklearn(
        step, "HashingVectorizer", "FeatureHasher", "CountVectorizer", "TfidfVectorizer",
        "MissingIndicator", "SplineTransformer",
    )  # fmt: skip


def searched_steps(search):
    """Yield (parameter, value) for the values of a grid that are steps themselves."""
    params = getattr(search, "param_grid", None) or getattr(search, "param_distributions", {})
    for grid in [params] if isinstance(params, Mapping) else params:
        for name, values in grid.items():
            for value in values if isinstance(values, Iterable) else ():
                if hasattr(value, "fit"):
                    yield name, value


def taken_on_trust(step, verdict):
    """Yield what is assumed of a step that treats each row by itself."""
    if verdict.kind != "row":
        return
    if type(step).__name__ in _MULTIPLIES:
        yield "rounds each row by itself, to the last bit."
    if getattr(step, "handle_unknown", None) == "error":
        yield "meets no category outside its public list: that is an error, which names it."


def repeated(step):
    """Return what is wrong with fitting a private estimator many times, and what to do."""
    if getattr(step, "bootstrap", False) or getattr(step, "max_samples", None) not in (None, 1.0):
        return (
            "it fits its estimator many times, on samples that follow the number of rows and may "
            "have one row several times: a fit then costs several times its budget.",
            "Use DPRidge or DPRidgeClassifier by itself; a PrivacyLedger cannot count this.",
        )
    return (
        "it fits its estimator many times, and each fit spends its budget.",
        "DPRidge takes several targets, DPRidgeClassifier several classes, in one release; or "
        "count the fits in a PrivacyLedger.",
    )
