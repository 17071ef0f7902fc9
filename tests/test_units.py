"""Privacy units: one registered object each, which has all that depends on the unit."""

import pytest

from skdp.exceptions import PrivacyError
from skdp.privacy.accounting.receipts import PrivacySpent
from skdp.privacy.ledger.balances import check_part
from skdp.privacy.ledger.fits import LedgerFit, Part
from skdp.units import ADJACENCIES, NORM, UNITS, Unit, unit_named, unit_of
from tools.data import CONTRASTS
from tools.pairs import CANDIDATES


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_words_data_and_pairs(name):
    unit = UNITS[name]
    assert unit is unit_named(name)
    assert unit.adjacencies[0] == "add_remove"
    for adjacency in unit.changes:
        spent = PrivacySpent(1.0, 1e-6, (), adjacency, name, False)
        assert f"privacy for {unit.changes[adjacency]}, by" in spent.statement()
    assert name in CONTRASTS
    # Changes of rank one are made by one estimator alone, whose pairs are its own.
    assert (name in CANDIDATES) != (name == "rank_one")


@pytest.mark.parametrize("name", UNITS)
def test_facts_of_a_unit_agree(name):
    unit = UNITS[name]
    assert unit.contract == (unit.bound is NORM) == ("replace" not in unit.adjacencies)
    assert not (unit.of_groups and not unit.by_rows)
    assert not (unit.by_rows and unit.bound)
    assert bool(unit.dual) <= (unit.contract and not unit.single)
    assert unit.pair == (unit.single and unit.symmetric)
    assert set(unit.stays) <= set(unit.adjacencies)
    assert not (unit.federated and (unit.of_groups or unit.of_targets))


def test_of_a_unit_that_is_not_registered_nothing_is_known():
    unit = unit_named("odd")
    assert (unit.changes, unit.adjacencies, unit.stays, unit.federated) == ({}, (), (), ())
    fit = LedgerFit("Odd", "odd", "add_remove", (), False)
    with pytest.raises(PrivacyError, match="may touch more than one part"):
        check_part(Part("k", ("a",), "a"), fit, 1.0, ())


def test_a_class_with_a_name_is_a_unit(monkeypatch):
    monkeypatch.setattr("skdp.units.UNITS", dict(UNITS))

    class Column(Unit):
        """One column of X."""

        name = "column"
        changes = {"add_remove": "setting one column to zero, or from zero to another"}

    class Owner:
        privacy_unit = "column"

    assert type(unit_of(Owner())) is Column
    assert unit_of(Owner()).adjacencies == ADJACENCIES[:1]
    assert "column" not in UNITS
