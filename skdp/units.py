"""Privacy units: what neighbouring data sets differ in, one registered class each.

An estimator lists the names of the units that it offers. `unit_of` returns the object of the unit
that an estimator is set to, whose attributes decide what depends on the unit. How far one unit can
change a release is computed in `skdp.queries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

ADJACENCIES = ("add_remove", "replace")


class UnitBound(NamedTuple):
    """What the parameter `unit_bound` is of a unit that has one."""

    default: Any
    said: str


INTERVAL: Final = UnitBound((0.0, 1.0), "a pair (low, high)")  # of an entry, which is clipped to it
DEGREE: Final = UnitBound(5, "an integer (a degree)")  # from below, of all rows
NORM: Final = UnitBound(1.0, "a number (a norm)")  # of the change: the caller's contract

UNITS: dict[str, Unit] = {}  # name -> its one object


class Unit:
    """What one neighbour differs in. A subclass with a name registers its one object.

    Attributes
    ----------
    name : str
        Of the parameter `privacy_unit`, of receipts and of ledgers.
    changes : mapping
        Adjacency -> what neighbours differ in, in words.
    stays : tuple of str
        Adjacencies under which it stays in one part of the data, by a public rule of single units.
    bound : UnitBound or None
        Of the parameter `unit_bound`; None for units of rows.
    reads_clip_norm : bool
        Whether rows are clipped to `clip_norm`.
    by_rows : bool
        Whether whole rows come and go.
    of_groups : bool
        Whether they are all rows of one group.
    in_one_row : bool
        Whether it lies in one row.
    of_targets : bool
        Whether it is a target alone, so that X and the number of rows are public.
    single : bool
        Whether it is one entry of a matrix of a public shape, or a symmetric pair of entries.
    symmetric : bool
        Whether the matrix is symmetric: its upper triangle counts.
    dual : str
        Of a bounded change E: norm of a public X that bounds ||E X||_F, by `skdp.queries.entries`.
    counted : str
        What `delta` is compared with the number of; empty where there is no such number.
    federated : tuple of str
        Algorithms that ask for sums over clients, the usual one first ("auto": all of them do).
        Empty where one unit is not at one client.
    """

    name: ClassVar[str] = ""
    changes: ClassVar[Mapping[str, str]] = {}
    stays: ClassVar[tuple[str, ...]] = ()
    bound: ClassVar[UnitBound | None] = None
    reads_clip_norm = by_rows = of_groups = in_one_row = of_targets = single = symmetric = False
    dual: ClassVar[str] = ""
    counted: ClassVar[str] = ""
    federated: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.name:
            UNITS[cls.name] = cls()

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """The adjacencies that estimators offer by default for this unit, the default one first."""
        return tuple(adjacency for adjacency in ADJACENCIES if adjacency in self.changes)

    @property
    def contract(self) -> bool:
        """Whether the size of a change is a contract of the caller, which cannot be checked."""
        return self.bound is NORM

    @property
    def in_rows(self) -> bool:
        """Whether more rows hide it better: those of a matrix that changes as a whole add noise."""
        return self.by_rows or self.in_one_row

    @property
    def pair(self) -> bool:
        """Whether it is a symmetric pair of entries."""
        return self.single and self.symmetric


UNKNOWN: Final = Unit()  # one that is not registered: nothing is promised of it


def unit_named(name: str) -> Unit:
    """Return a unit, or `UNKNOWN`."""
    return UNITS.get(name, UNKNOWN)


def unit_of(estimator: Any) -> Unit:
    """Return the unit that an estimator protects: rows, unless it says."""
    return unit_named(getattr(estimator, "privacy_unit", Row.name))


def bound_of(estimator: Any) -> Any:
    """Return the bound of an estimator's unit: (low, high), a degree, or a norm; None of rows."""
    given, bound = getattr(estimator, "unit_bound", None), unit_of(estimator).bound
    return bound.default if given is None and bound else given


def offered(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the adjacencies of units: what an estimator offers."""
    return {name: UNITS[name].adjacencies for name in names}


class Row(Unit):
    """One row of X."""

    name = "row"
    changes = {
        "add_remove": "adding or removing one row of X",
        "replace": "replacing one row of X by any other",
        "zero_out": "setting one row of X to zero, or from zero to any row in the bound",
    }
    stays = ("add_remove",)
    reads_clip_norm = by_rows = in_one_row = True
    counted = "row"
    federated = ("auto",)


class Group(Unit):
    """All rows of one group, a person."""

    name = "group"
    changes = {
        "add_remove": "adding or removing all rows of one group (a person)",
        "replace": "replacing all rows of one group (a person) by any others",
    }
    stays = ("add_remove",)
    reads_clip_norm = by_rows = of_groups = True
    counted = "group"


class Interaction(Unit):
    """One 1 of a binary matrix."""

    name = "interaction"
    changes = {
        "add_remove": "adding or removing one interaction of one user",
        "replace": "swapping one interaction of one user for another",
    }
    stays = ("add_remove",)
    bound = DEGREE
    in_one_row = True
    counted = "cell"
    federated = ("power", "gram", "arpack", "screened")


class Entry(Unit):
    """One entry of X, in bounds."""

    name = "entry"
    changes = {
        "add_remove": "setting one entry of X to zero, or from zero to a value",
        "replace": "changing one entry of X to any value in the bounds",
    }
    stays = ADJACENCIES
    bound = INTERVAL
    reads_clip_norm = in_one_row = single = True
    counted = "cell"
    federated = ("alternating",)


class Edge(Unit):
    """One edge of a graph, whose weight is in bounds."""

    name = "edge"
    changes = {
        "add_remove": "adding or removing one edge of the graph",
        "replace": "changing the weight of one edge to any value in the bounds",
    }
    bound = INTERVAL
    single = symmetric = True
    counted = "pair of nodes"
    federated = ("power",)


class Label(Unit):
    """One target."""

    name = "label"
    changes = {
        "add_remove": "withholding one value of y, or giving it",
        "replace": "replacing one value of y by any other",
    }
    stays = ADJACENCIES
    in_one_row = of_targets = True
    counted = "label"


class Change(Unit):
    """A change of X of a bounded size, by the caller's contract."""

    bound = NORM

    def __init_subclass__(cls, said: str = "") -> None:
        cls.changes = {"add_remove": f"{said} at most `unit_bound` (the caller's contract)"}
        super().__init_subclass__()


class RankOne(Change, said="any rank-one change of X of norm"):
    """A change of rank one."""

    name = "rank_one"


class Frobenius(Change, said="any change of X of Frobenius norm"):
    """A change of bounded Frobenius norm."""

    name = "frobenius"
    dual = "spectral"


class Spectral(Change, said="any change of X of spectral norm"):
    """A change of bounded spectral norm."""

    name = "spectral"
    dual = "frobenius"


class EntryChange(Change, said="a change of one entry of X by"):
    """A change of one entry."""

    name = "entry_change"
    single = True
    counted = "cell"
    federated = Entry.federated


class EdgeChange(Change, said="a change of one symmetric pair of entries of X by"):
    """A change of one symmetric pair of entries."""

    name = "edge_change"
    single = symmetric = True
    counted = "pair of nodes"
    federated = Edge.federated


class Mixed(
    Change, said="any symmetric change of X whose rows' sums of absolute values have a norm of"
):
    """A symmetric change whose rows' sums of absolute values are bounded in norm."""

    name = "mixed"
    symmetric = True
    dual = "longest row"
