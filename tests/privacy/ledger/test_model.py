"""A ledger against a model of it: plain lists of what each neighbour pays, after every step."""

import contextlib
import itertools
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from skdp import PrivacyError, PrivacyLedger
from skdp.privacy.accounting.losses import Loss, SketchMixture, delta_from_losses
from skdp.privacy.ledger import routes
from skdp.privacy.ledger.balances import Balance
from skdp.privacy.ledger.books import FileBook, read_registry
from skdp.privacy.ledger.fits import LedgerFit, budget_losses
from skdp.privacy.ledger.routes import RunLimit
from tools.gate import new_session

SKETCH = Loss("sketch", SketchMixture(((0.02, (40,)),)))
NAMES = "ab"
# A neighbour adds or removes a unit; one that replaces it is a removal and then an addition.
WAYS = {"add_remove": 1, "replace": 2}


class Model:
    """What was paid, one fit after the other, and by whom."""

    def __init__(self, adjacency):
        self.adjacency, self.paid = adjacency, []

    def pay(self, losses, adjacency, part=None, times=1):
        times *= WAYS[self.adjacency] // WAYS[adjacency]
        self.paid.append((part, [loss.times(times) for loss in losses]))

    def neighbours(self):
        """Yield all losses of each unit: it is in one part of each rule."""
        for place in itertools.product(NAMES, NAMES):
            parts = (None, *zip("12", place, strict=True))
            yield [loss for part, losses in self.paid if part in parts for loss in losses]


class World:
    """Three ledgers and their models, and random things that happen to those that are open."""

    def __init__(self, rng, path):
        self.rng = rng
        self.ledgers = [
            PrivacyLedger(3.0, 1e-5, adjacency="add_remove"),
            PrivacyLedger(4.0, 1e-5, adjacency="replace"),
            PrivacyLedger(mu=1.0, adjacency="add_remove", path=path),
        ]
        self.models = [Model(ledger._book.terms.adjacency) for ledger in self.ledgers]

    def chance(self, share):
        return self.rng.random() < share

    def some(self):
        return [int(i) for i in self.rng.permutation(3) if self.chance(0.6)] or [0]

    def session(self, kind=None, adjacency=None, most=0.6):
        pure = (kind or self.rng.choice(["gaussian", "gaussian", "pure"])) == "pure"
        epsilon, delta = float(self.rng.uniform(0.1, most)), 0.0 if pure else 1e-6
        adjacency = adjacency or ("replace" if self.chance(0.15) else "add_remove")
        return new_session(epsilon, delta, adjacency=adjacency, observer=routes.Account())

    @contextlib.contextmanager
    def opened(self, which):
        with contextlib.suppress(PrivacyError), contextlib.ExitStack() as stack:
            for i in which:
                stack.enter_context(self.ledgers[i])
            yield

    def end(self, session, payers, parts=()):
        """End a fit in one of three ways; without a grant nothing is charged."""
        losses, way = budget_losses(session.budget), self.rng.integers(3)
        granted = [losses, tuple(loss.times(0.5) for loss in losses), ()][way]
        state = "fitted" if granted else "failed"
        if self.chance(0.2):  # killed: it counts with all that it had reserved
            granted = losses
        else:
            routes.settle_charges(session.observer.charges, granted, state)
        for i in payers:
            self.models[i].pay(granted, session.adjacency, dict(parts).get(i))

    # -- random events ---------------------------------------------------------------------
    def fit(self):
        which, session, part = self.some(), self.session(), {}
        with self.opened(which), contextlib.ExitStack() as stack:
            if which[0] != 1 and self.chance(0.7):  # one that is replaced may touch two parts
                key, name = str(self.rng.choice([*"12"])), str(self.rng.choice([*NAMES]))
                chooser = stack.enter_context(self.ledgers[which[0]].partition(key, [*NAMES]))
                stack.enter_context(chooser(name))
                part = {which[0]: (key, name)}
            routes.charge(session, "Fit")
            self.end(session, which, part)

    def shares(self):
        """Shares of one sum, of which a ledger may hold some: a unit is in all of them."""
        first, p = self.session("gaussian", "add_remove", 2.0), int(self.rng.integers(2, 5))
        sessions = [self.session("gaussian", "add_remove") for _ in range(p)]
        for session in sessions:
            session.budget = first.budget
        done = []
        with self.opened(which := self.some()):
            late = self.rng.integers(p)
            for session in sessions[late:]:
                routes.charge(session, "Share")
            routes.charge_parts(sessions)
            done = which
        for session in sessions:
            routes.settle_charges(
                session.observer.charges, budget_losses(first.budget) if done else (),
                "fitted" if done else "failed",
            )  # fmt: skip
        for i in done:
            self.models[i].pay(budget_losses(first.budget), "add_remove", times=p)

    def search(self):
        """A search that was paid for, and a ledger that is opened in it, which pays each fit."""
        outer, inner = self.rng.permutation(3)[:2]
        session, search = self.session("gaussian", "add_remove"), SimpleNamespace()
        fit = LedgerFit("Fit", "row", "add_remove", budget_losses(session.budget), False)
        cost = LedgerFit("Search", "row", "add_remove", (Loss("gaussian", 0.3),), False)
        payment = routes.Payment((search,), cost, (fit,))
        paid, before = [*self.models[outer].paid], len(self.ledgers[outer].entries)
        with self.opened([outer]), routes.charged(payment):
            self.models[outer].pay(cost.losses, "add_remove")
            with self.opened([inner]):
                routes.charge(session, "Fit", search._reservation_key)
                self.end(session, [inner])
        if len(self.ledgers[outer].entries) == before:  # nothing drew on it
            self.models[outer].paid = paid

    def runs(self):
        """Runs of a private search: none grants more than one of them may."""
        which, kind = self.some(), str(self.rng.choice(["gaussian", "pure"]))
        cost, limit = Loss(kind, 0.2), RunLimit("row", "add_remove", Loss(kind, 0.5))
        fit = LedgerFit("Search", "row", "add_remove", (cost,), False)
        with self.opened(which), routes.prepaid(fit, None, limit):
            for i in which:
                self.models[i].pay([cost], "add_remove")
            for _ in range(2):
                limit.next_run()
                taken = []
                for _ in range(6):
                    session = self.session(kind, "add_remove")
                    with contextlib.suppress(PrivacyError):
                        routes.charge(session, "Fit")
                        taken += budget_losses(session.budget)
                values = [loss.value for loss in taken]
                assert (math.hypot(*values) if kind == "gaussian" else sum(values)) <= 0.5
        for i in which:
            self.ledgers[i]._refused.clear()

    def sketch(self):
        """A plan becomes a random sketch, before there are answers, or not at all."""
        session = self.session("gaussian", "add_remove")
        with self.opened([which := int(self.rng.integers(2))]):
            routes.charge(session, "Sketch")
            try:
                session.observer.unplanned((SKETCH,), shared=False)
            except PrivacyError:
                routes.settle_charges(session.observer.charges, (), "failed")
            else:
                if self.chance(0.5):
                    routes.settle_charges(session.observer.charges, (SKETCH,), "fitted")
                self.models[which].pay([SKETCH], "add_remove")

    def process(self):
        """Another process charges the file."""
        losses = budget_losses(self.session("gaussian").budget)
        if (child := os.fork()) == 0:
            book, done = FileBook(self.ledgers[2].path), 1
            with contextlib.suppress(PrivacyError):
                book.reserve(LedgerFit("Fit", "row", "add_remove", losses, False))
                done = 0
            os._exit(done)
        if os.waitpid(child, 0)[1] == 0:
            self.models[2].pay(losses, "add_remove")

    def check(self):
        for ledger, model in zip(self.ledgers, self.models, strict=True):
            every, spent = list(model.neighbours()), ledger.spent
            for losses in every:
                bound = min(spent.epsilon, ledger.epsilon or math.inf)
                assert delta_from_losses(losses, bound) <= spent.delta * (1 + 1e-9)
            if {loss.kind for losses in every for loss in losses} <= {"gaussian"}:
                worst = max(math.hypot(*(loss.value for loss in losses)) for losses in every)
                assert math.hypot(spent.mu) == pytest.approx(worst, rel=1e-12)
                assert worst <= (ledger.mu or math.inf) * (1 + 1e-12)
            assert Balance(ledger._book.terms, dict(enumerate(ledger.entries))).spent() == spent
        kept = read_registry(ledger.path).choose(None)
        assert tuple(kept.now.entries.values()) == ledger.entries


ACTS = [*[World.fit] * 5, World.shares, World.search, World.runs, World.process]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that has threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("trees", [range(4, 8), [*range(4), *range(8, 80)]], ids=["some", "many"])
def test_no_neighbour_pays_more_than_the_ledger_says(trees, tmp_path):
    taken = 0
    for tree in trees:
        world = World(np.random.default_rng(tree), tmp_path / f"{tree}.ledger")
        if tree % 2:
            world.sketch()
        for _ in range(8):
            ACTS[world.rng.integers(len(ACTS))](world)
            world.check()
        taken += sum(len(model.paid) for model in world.models)
    assert taken > 5 * len(trees)  # most of it was not refused
