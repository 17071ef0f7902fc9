"""What neighbours differ in under the units of entries, and which bounds each unit reads."""

import math
from inspect import signature

from skdp.queries.entries import EntryUnit

CONTRACT_UNITS = ("entry_change", "edge_change", "mixed", "frobenius", "spectral")
# Parameter -> units that read it, for what would bound nothing elsewhere.
_READ_BY = {
    "clip_norm": ("row", "group", "entry"),
    "entry_bounds": ("entry", "edge"),
    "degree_floor": ("interaction",),
    "sensitivity": CONTRACT_UNITS,
}


def entry_unit(estimator):
    """Return what neighbours differ in, for the units with entries."""
    bounds = map(float, estimator.entry_bounds)
    sensitivity = float(estimator.sensitivity)
    return EntryUnit(estimator.privacy_unit, estimator.adjacency, *bounds, sensitivity)


def public_units(estimator, shape, session):
    """Return (a public number, name) of what delta is compared with, and what it may publish.

    Cells and pairs are compared with the number of rows: most are empty, and how many are not is
    private. Norms of a change have no number, and it does not matter where no delta is spent.
    """
    unit = estimator.privacy_unit
    if unit in ("frobenius", "spectral", "rank_one", "mixed") or not session.whole.delta:
        return 0, unit
    names = {"row": "row", "edge": "pair of nodes", "edge_change": "pair of nodes"}
    return shape[0], names.get(unit, "cell")


def unread_bounds(unit):
    """Return the bounds that a unit does not read."""
    return [parameter for parameter, units in _READ_BY.items() if unit not in units]


def check_bounds_read(estimator):
    """Refuse bounds that the unit does not read: they would bound nothing."""
    unit = estimator.privacy_unit
    defaults = signature(type(estimator)).parameters
    for parameter in unread_bounds(unit):
        if parameter not in defaults:
            continue
        given = getattr(estimator, parameter)
        offered = [name for name in _READ_BY[parameter] if name in estimator._privacy_units]
        units = " and ".join(map(repr, offered))
        if given not in (defaults[parameter].default, math.inf):
            raise ValueError(
                f"{parameter!r} bounds nothing under privacy_unit={unit!r}; it is read by "
                f"{units}. Leave it out. Got {given!r}."
            )
