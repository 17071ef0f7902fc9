"""The types of this package that a fitted estimator is made of."""

import importlib
import inspect

from skdp.model_selection._scorers import PrivateScorer
from skdp.model_selection.selection_laws import Selection
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.accounting.receipts import LedgerEntry, PrivacySpent
from skdp.privacy.accounting.sketch_laws import SketchMixture
from skdp.regression import PoissonLoss, QuantileLoss
from skdp.solvers.item_filter import ItemFilter
from skdp.solvers.user_heads import Choice, HeadRule

_FACADES = (
    "decomposition", "graph", "model_selection", "preprocessing", "recommend", "regression",
)  # fmt: skip
_PARTS = (
    Choice, HeadRule, ItemFilter, LedgerEntry, Loss, PoissonLoss, PrivacySpent, PrivateScorer,
    QuantileLoss, Selection, SketchMixture,
)  # fmt: skip


def skops_types():
    """Return the names of the types of this package that ``skops`` may load.

    Its files name the types that they are made of; of those, it loads only ones that it knows or
    is told to trust. A model file says nothing beyond what a pickle of the model says: what
    `holds_private` names is in it too.

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
