"""Does every refusal have a test that sees it? A plugin of pytest, for a run by hand or at night.

    PYTHONPATH=tests:. python -m pytest -p refusals -q

Each ``raise PrivacyError`` (or one of its kind) is watched: by its condition, if it ends an `if`,
else the raise itself, which ends a function or an `except` block. A test that meets it is repeated
with the refusal switched off, and must then fail; and once more with it on, and must then pass. At
the end the run fails if a refusal was met by no test, or if none of the tests that met it missed
it. One process: `-n` would split what is known. Not watched are refusals of other processes.
"""

import ast
import builtins
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parent.parent / "skdp"
ERRORS = {"PrivacyError", "BudgetExceededError", "InvalidMessageError", "AggregationAbortedError"}
MAKERS = {"_refuse", "_in_use", "refused"}  # functions that return such an error, or raise it
TRIES = 4  # tests that are repeated for one refusal


class Watch:
    """Which refusals there are, which the running test met, and which one is switched off."""

    def __init__(self):
        self.known, self.met, self.missed, self.tries = {}, set(), set(), {}
        self.off = None

    def __call__(self, place, condition):
        if condition:
            self.met.add(place)
        return condition and place != self.off


WATCH = Watch()


def _refuses(node):
    called = node.exc if isinstance(node, ast.Raise) else None
    name = getattr(called, "func", called)
    return getattr(name, "id", getattr(name, "attr", "")) in ERRORS | MAKERS


class Watched(ast.NodeTransformer):
    """Put the watch around each condition that guards a refusal, and around all other refusals."""

    def __init__(self, path):
        self.path = path

    def visit_If(self, node):
        last = node.body[-1]
        if not _refuses(last):
            return self.generic_visit(node)
        node.test = self.watched(node, node.test)
        node.body[:-1] = [self.visit(part) for part in node.body[:-1]]
        node.orelse = [self.visit(part) for part in node.orelse]
        return node

    def visit_Raise(self, node):
        if not _refuses(node):
            return node
        return ast.copy_location(ast.If(self.watched(node, ast.Constant(True)), [node], []), node)

    def watched(self, node, condition):
        place = f"{self.path}:{node.lineno}"
        WATCH.known[place] = ast.unparse(condition)
        call = ast.Call(ast.Name("__refusal__", ast.Load()), [ast.Constant(place), condition], [])
        return ast.copy_location(call, condition if hasattr(condition, "lineno") else node)


if "skdp" in sys.modules:
    raise ImportError("skdp was imported before its refusals could be watched")
builtins.__refusal__ = WATCH
_plain = SourceFileLoader.get_code


def _get_code(loader, name):
    """Compile modules of skdp with the watch in them, past all caches."""
    path = Path(loader.path)
    if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "testing"):
        return _plain(loader, name)
    tree = Watched(path.relative_to(ROOT).as_posix()).visit(ast.parse(path.read_text()))
    return compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)


SourceFileLoader.get_code = _get_code


def _fails_without(place, item, nextitem):
    WATCH.off = place
    try:
        return any(report.failed for report in runtestprotocol(item, log=False, nextitem=nextitem))
    except Exception:  # what the refusal prevents may break the report of it
        return True
    finally:
        WATCH.off = None


def _misses(place, item, nextitem):
    """Whether a test fails without a refusal, and not since it is repeated."""
    return _fails_without(place, item, nextitem) and not _fails_without(None, item, nextitem)


def pytest_runtest_protocol(item, nextitem):
    """Run a test; then once more for each refusal that it was the first to meet, without it."""
    WATCH.met = set()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=True)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if all(report.passed for report in reports):
        for place in sorted(WATCH.met - WATCH.missed):
            tries = WATCH.tries[place] = WATCH.tries.get(place, 0) + 1
            if tries <= TRIES and _misses(place, item, nextitem):
                WATCH.missed.add(place)
    return True


def pytest_sessionfinish(session):
    """Fail if a refusal could be taken out and no test would notice."""
    if set(WATCH.known) - WATCH.missed:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter):
    """Say which."""
    write = terminalreporter.write_line
    write(f"{len(WATCH.missed)} of {len(WATCH.known)} refusals are missed if they are gone")
    for place in sorted(set(WATCH.known) - WATCH.missed):
        how = "met, not missed" if place in WATCH.tries else "never met"
        write(f"  {place}: {how}: if {WATCH.known[place][:90]}")
