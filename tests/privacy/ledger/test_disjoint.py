"""Parts of the data that no unit shares: the most expensive counts, for adaptive choices too."""

import asyncio
import contextvars
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest

from skdp import BudgetExceededError, DPIncrementalPCA, PrivacyError, PrivacyLedger
from skdp.privacy.accounting.losses import Loss
from skdp.privacy.gate.bounds import SAMPLER_DISTANCE
from skdp.privacy.ledger import balances, filters
from skdp.privacy.ledger.balances import Balance, Terms
from skdp.privacy.ledger.fits import Part
from tools.ledgers import X, fit_of, forgiving, mu_of, pca
from tools.outcomes import refuses

# Few rows, or noise alone: warnings of fits are not the subject here.
pytestmark = pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")

REGIONS = ("east", "north", "south")


def fit(*losses, part=None, **parameters):
    return fit_of(*losses, promised=losses, part=part, **parameters)


def sum_of(fits):
    return reduce(filters.Sum.plus, map(filters.Sum.of, fits), filters.Sum())


def test_the_most_expensive_part_and_outside_fits_count():
    with PrivacyLedger(3, 1e-5) as ledger:
        pca(0.3).fit(X)
        with ledger.partition(key="region", parts=REGIONS) as part:
            for name, epsilon in zip(REGIONS, (0.5, 1.0, 0.1), strict=True):
                with part(name):
                    pca(epsilon).fit(X)
            with part("east"):
                pca(0.5).fit(X)
        pca(0.2).fit(X)
    dearest = max(mu_of(1.0), math.hypot(mu_of(0.5), mu_of(0.5)))
    assert ledger.spent.mu == pytest.approx(math.hypot(mu_of(0.3), dearest, mu_of(0.2)))
    # Most noise is drawn in the east.
    assert ledger.spent.sampler_tv_distance == 4 * SAMPLER_DISTANCE
    report = ledger.report()
    assert "row in region=north" in report
    assert "For each of region, only the most expensive part counts" in report


@pytest.mark.parametrize("other", [Loss("gaussian", 0.01), Loss("pure", 0.1)])
def test_a_part_that_is_spent_stays_so_whatever_others_hold(other):
    """A part with other kinds of losses, or a smaller pure loss, does not replace it."""
    east, north = (Part("region", REGIONS, name) for name in ("east", "north"))
    spent = {1: fit(other, part=north), 2: fit(Loss("pure", 1.0), part=east)}
    balance = Balance(Terms(1.0, 1e-6), spent)
    assert balance.spent().epsilon == pytest.approx(1.0)
    assert balance.affords(fit(Loss("gaussian", 0.01), part=north))
    for part in (east, None):
        assert not balance.affords(fit(Loss("pure", 0.5), part=part))


def test_each_part_has_all_that_is_left():
    with PrivacyLedger(1, 1e-6) as ledger:
        with ledger.partition(key="region", parts=REGIONS) as part:
            for name in REGIONS:
                with part(name):
                    assert ledger.remaining() == 1.0
                    pca(1.0).fit(X)
                    assert ledger.remaining() == 0.0
        assert ledger.remaining() == 0.0
    assert ledger.spent.epsilon <= 1.0
    assert ledger.spent.epsilon == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(BudgetExceededError), ledger:
        pca(0.01).fit(X)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_no_unit_ever_loses_more_than_the_budget(seed):
    """Adversary: random fits of all kinds, in parts of two rules, until nothing more is taken."""
    rng = np.random.default_rng(seed)
    terms = Terms(1.0, 1e-5)
    rules = [[Part(key, ("a", "b", "c"), name) for name in "abc"] for key in ("region", "year")]
    places = [None, *rules[0], *rules[1]]
    kinds = ("gaussian", "pure", "range") if seed % 2 else ("gaussian",)
    entries = {}
    for i in range(60):
        losses = [Loss(str(rng.choice(kinds)), rng.uniform(0.01, 0.15))]
        candidate = fit(*losses, part=places[rng.integers(7)])
        if Balance(terms, entries).affords(candidate):
            entries[i] = candidate
    worst = 0.0
    for first in rules[0]:
        for second in rules[1]:
            seen = [f.losses for f in entries.values() if f.part in (None, first, second)]
            delta = filters.spent_delta((), sum_of(seen), 1.0, (1.0, 1e-5))
            assert delta <= 1e-5
            worst = max(worst, delta)
    assert worst > 2e-6  # nearly all was taken
    every = sum_of(f.losses for f in entries.values())
    everything = filters.spent_delta((), every, 1.0, (1.0, 1e-5))
    assert everything > 1e-5  # and more than without parts


def test_a_first_fit_in_a_part_is_not_the_first_of_every_unit():
    """Its answer may choose the kind of the next fit, so that no exact curve remains."""
    part = Part("region", ("a", "b"), "a")
    own = [fit(Loss("pure", 0.3), Loss("gaussian", 0.2), part=part)]
    balance = Balance(Terms(4.0, 1e-5), dict(enumerate([*own, fit(Loss("gaussian", 0.1))])))
    late = filters.dominating_mu(Loss("pure", 0.3))
    assert balance.spent().mu == pytest.approx(math.hypot(late, 0.2, 0.1))


def test_kinds_that_come_first_only_come_outside_of_parts():
    balance, late = Balance(Terms(4.0, 1e-5), {}), Loss("delta", 1e-9)
    with pytest.raises(PrivacyError, match="cannot be added up"):
        balance.affords(fit(late, part=Part("region", ("a", "b"), "a")))
    assert balance.affords(fit(late))


# -- units ----------------------------------------------------------------------------------------


def reserve(unit, adjacency, whole_groups=False, ledger=None, key="k"):
    taken = fit(Loss("gaussian", 0.1), unit=unit, adjacency=adjacency)
    ledger = ledger or PrivacyLedger(3, 1e-5)
    with ledger, ledger.partition(key, ["a"], whole_groups=whole_groups) as part, part("a"):
        return ledger._book.reserve(taken)


@pytest.mark.parametrize(
    ("unit", "adjacency"),
    [("row", "add_remove"), ("interaction", "add_remove"), ("entry", "add_remove"),
     ("entry", "replace"), ("label", "replace"), ("group", "add_remove")],
)  # fmt: skip
def test_units_that_stay_in_their_part(unit, adjacency):
    assert reserve(unit, adjacency, whole_groups=unit == "group") == 1


@pytest.mark.parametrize(
    ("unit", "adjacency"),
    [("edge", "add_remove"), ("edge", "replace"), ("row", "replace"), ("group", "replace"),
     ("interaction", "replace"), ("row", "zero_out"), ("frobenius", "add_remove"),
     ("spectral", "add_remove"), ("rank_one", "add_remove")],
)  # fmt: skip
def test_units_that_may_touch_two_parts_are_refused(unit, adjacency):
    refuses(PrivacyError, "more than one part", reserve, unit, adjacency, whole_groups=True)


def test_a_replaced_row_and_a_group_that_nobody_declared_whole_are_refused():
    with pytest.raises(PrivacyError, match=r"one row \(replace\) may touch more than one part"):
        reserve("row", "add_remove", ledger=PrivacyLedger(3, 1e-5, adjacency="replace"))
    by_another_rule = PrivacyLedger(3, 1e-5)
    reserve("group", "add_remove", True, by_another_rule)
    for ledger in (None, by_another_rule):
        asked = "group", "add_remove", False, ledger, "another key"
        refuses(PrivacyError, "whole_groups=True", reserve, *asked)


# -- who is inside --------------------------------------------------------------------------------


def test_what_left_the_part_is_charged_whole():
    with PrivacyLedger(3, 1e-5) as ledger, ThreadPoolExecutor(1) as pool:
        with ledger.partition(key="region", parts=REGIONS) as part:
            with part("east"):
                context = contextvars.copy_context()
                context.run(pca().fit, X)
                pool.submit(pca().fit, X).result()  # another thread
            context.run(pca().fit, X)  # the part has ended
            with suppress(KeyError), part("north"):
                raise KeyError
            pca().fit(X)
        with pytest.raises(PrivacyError, match="have ended"), part("east"):
            pass
    named = [entry.part and entry.part.name for entry in ledger.entries]
    assert named == ["east", None, None, None]


def test_an_interrupted_part_is_none(monkeypatch):
    """An interrupt at its start ends it, also while its traceback is kept."""
    parts = balances._PARTS
    struck = SimpleNamespace(get=parts.get, set=lambda chosen: [parts.set(chosen), 1 / 0])
    with PrivacyLedger(3, 1e-5) as ledger:
        with ledger.partition(key="region", parts=REGIONS) as part:
            with monkeypatch.context() as patch, suppress(ZeroDivisionError):
                patch.setattr(balances, "_PARTS", struck)
                part("east").__enter__()
            pca().fit(X)
            kept = part("east")
            kept.__enter__()
        pca().fit(X)
    assert [entry.part for entry in ledger.entries] == [None, None]


def test_parts_of_two_tasks_do_not_mix():
    async def one(part, name):
        with part(name):
            await asyncio.sleep(0)
            pca().fit(X)

    async def run(part):
        await asyncio.gather(*(one(part, name) for name in REGIONS))

    with PrivacyLedger(3, 1e-5) as ledger, ledger.partition(key="r", parts=REGIONS) as part:
        asyncio.run(run(part))
    assert sorted(entry.part.name for entry in ledger.entries) == sorted(REGIONS)


def test_a_stream_stays_in_its_part():
    stream = DPIncrementalPCA(1, clip_norm=1.0, epsilon=1.0, max_releases=3)
    with forgiving(4, 1e-5) as ledger, ledger.partition(key="region", parts=REGIONS) as part:
        with part("east"):
            stream.partial_fit(X[:60])
        with part("east"):
            stream.partial_fit(X[60:120])
        for elsewhere in (lambda: part("north"), ThreadPoolExecutor):
            with pytest.raises(PrivacyError, match="one part of the data"), elsewhere():
                stream.partial_fit(X[120:])
    assert len(ledger.entries) == 1


def test_a_key_is_one_rule(tmp_path):
    path = tmp_path / "a.ledger"
    with (
        PrivacyLedger(3, 1e-5, path=path) as ledger,
        ledger.partition(key="region", parts=["b", "a"]) as part,
        part("a"),
    ):
        pca().fit(X)
    again = PrivacyLedger.open(path)  # the order of the parts does not matter; tomorrow neither
    assert again.entries[0].part == Part("region", ("a", "b"), "a")
    with again:
        with again.partition(key="region", parts=["a", "b"]) as part, part("b"):
            pca().fit(X)
        others = (["a", "b", "c"], False), (["a", "c"], False), (["a", "b"], True)
        for parts, whole_groups in others:
            with (
                again.partition(key="region", parts=parts, whole_groups=whole_groups) as part,
                part("a"),
                pytest.raises(PrivacyError, match="another 'key'"),
            ):
                pca().fit(X)
        again._refused.clear()
    assert again.spent.mu == mu_of(0.5)


def test_bad_parts():
    ledger = PrivacyLedger(3, 1e-5)
    with (
        pytest.raises(PrivacyError, match="open the PrivacyLedger"),
        ledger.partition(key="a", parts=["a"]),
    ):
        pass
    with ledger:
        for key, parts in (("a", []), ("a", "ab"), ("a", ["b", "b"]), ("", ["b"]), ("a", [1])):
            with pytest.raises(ValueError, match="'parts'"), ledger.partition(key, parts):
                pass
        with ledger.partition("region", REGIONS) as part:
            with pytest.raises(ValueError, match="no part of 'region'"), part("west"):
                pass
            with (
                part("east"),
                pytest.raises(PrivacyError, match="no parts of its own"),
                part("north"),
            ):
                pass
