"""For reports and model files: versions of what is installed, and the types that skops may load."""

import importlib
import inspect
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import threadpoolctl

from skdp.model_selection._scorers import PrivateScorer
from skdp.model_selection.selection_laws import Selection
from skdp.privacy.accounting.losses import Loss, SketchMixture
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.regression import QuantileLoss
from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.user_heads import Choice, HeadRule

__all__ = ["show_versions"]

# The types of this package that a fitted estimator is made of.


_FACADES = (
    "decomposition", "graph", "model_selection", "preprocessing", "recommend", "regression",
)  # fmt: skip
_PARTS = (
    Choice, HeadRule, ItemFilter, LedgerEntry, Loss, PrivacySpent, PrivateScorer, QuantileLoss,
    Selection, SketchMixture,
)  # fmt: skip


def skops_types():
    """Return the names of the types of this package that ``skops`` may load.

    Its files name the types that they are made of; of those, it loads only ones that it knows or
    is told to trust. A model file says nothing beyond what a pickle of the model says: what
    `private_state` names is in it too.

    Returns
    -------
    list of str
        For ``skops.io.load(file, trusted=skdp.skops_types())`` and
        ``mlflow.sklearn.log_model(model, skops_trusted_types=skdp.skops_types())``.

    Examples
    --------
    >>> import skdp
    >>> "skdp.decomposition._pca.DPPCA" in skdp.skops_types()
    True
    """
    facades = [importlib.import_module(f"skdp.{name}") for name in _FACADES]
    public = [getattr(facade, name) for facade in facades for name in facade.__all__]
    estimators = [each for each in public if inspect.isclass(each) and hasattr(each, "fit")]
    return sorted({f"{each.__module__}.{each.__qualname__}" for each in (*estimators, *_PARTS)})


# What a bug report needs to know.


_NEEDED = ("skdp", "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl")
_OPTIONAL = ("matplotlib", "pandas", "dask", "distributed", "cryptography", "dp-accounting")


def show_versions() -> None:
    """Print the versions of Python, of skdp and of what it uses, for a bug report.

    Nothing of any data or path is printed.

    Examples
    --------
    >>> import skdp
    >>> skdp.show_versions()
    python         ...
    platform       ...
    skdp           ...
    """
    lines = [("python", sys.version.split()[0]), ("platform", platform.platform())]
    lines += [(name, _version(name)) for name in (*_NEEDED, *_OPTIONAL)]
    for pool in threadpoolctl.threadpool_info():
        kernel = pool.get("architecture") or ""
        words = (pool["internal_api"], pool.get("version") or "", kernel)
        lines.append((pool["user_api"], f"{' '.join(filter(None, words))}, {pool['num_threads']}"))
    for name, value in lines:
        print(f"{name:14} {value}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "run from its source tree" if name == "skdp" else "not installed"
