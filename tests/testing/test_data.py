"""Contrasting data sets."""

import pytest

from skdp import DPPCA
from tools import checks
from tools.data import CONTRASTS, contrasting_data, register_data


@pytest.mark.thorough
def test_own_data_can_be_registered():
    class Odd(DPPCA):
        _privacy_units = {"odd": ("add_remove",)}

    with pytest.raises(ValueError, match="odd"):
        contrasting_data(Odd(privacy_unit="odd"))
    register_data("odd")(CONTRASTS["row"])
    try:
        checks.check_null_release("Odd", Odd(privacy_unit="odd"))
        checks.check_receipt("Odd", Odd(privacy_unit="odd"))
    finally:
        del CONTRASTS["odd"]


@pytest.mark.parametrize("unit", sorted(CONTRASTS))
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_contrasting_data(unit, adjacency):
    """Within a family only private things differ: the number of rows where it is private."""
    estimator = DPPCA(adjacency=adjacency)
    estimator.privacy_unit = unit
    for family in contrasting_data(estimator).values():
        shapes = {item.X.shape for item in family.values()}
        assert len({shape[1] for shape in shapes}) == 1
        assert (len(shapes) > 1) <= (adjacency == "add_remove" and unit in ("row", "group"))
        assert next(iter(family)) == "ordinary" and len(family) >= 3
