"""Choose the cheapest tests that catch the planted bugs: `python tests/tools/select_tier.py`.

By default all tests but the audits run once in a copy of the checkout (needs `coverage`; an hour),
to see which of them execute which lines; each bug of `planted.py` is then planted alone, and the
cheapest tests that execute its lines run on it; of those that fail, the cheapest set that sees all
bugs is printed, and with `--write` kept in `tests/first_tier.txt`, which `conftest.py` reads.

`--mirrors` makes no map: on each bug run the first tier of the tests that mirror its module, then
all ways and worst pairs, and only where none fails the deep tests of the same files, up to the
first that fails. With `--write` that one joins `tests/first_tier.txt`. A quarter of an hour.

ENDED is a run that was stopped at a test, by its limit of CPU time or since it hung: run it alone.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from planted import PLANTED

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = ROOT / "tests" / "first_tier.txt"
WAYS = ["tests/test_golden.py", "tests/test_dp_common.py"]  # every way, and its worst pair
READERS = ["tests/testing/test_null_readers.py", "tests/testing/test_public_sizes.py"]
NOTHING = {"failed": [], "seconds": {}, "lines": {}}
_SECONDS, _FILES = 400, 3  # of CPU time in one run, whatever else runs; that mirror one module


class Stopped(Exception):
    """A run ended before its tests: nobody knows whether they see a bug."""


def run(tree, *arguments, only=None, lines=False, tier="not slow"):
    """Run pytest in a tree; return what `linemap` saw."""
    seen, now, wanted = tree / "seen.json", tree / "seen.json.now", tree / "only.json"
    for old in (seen, now):
        old.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests' / 'tools'}", "LINEMAP": str(seen),
        "LINEMAP_LINES": "1" if lines else "", "PYTHONDONTWRITEBYTECODE": "1",
        "LINEMAP_SECONDS": "" if lines else str(_SECONDS),
    }  # fmt: skip
    if only is not None:
        wanted.write_text(json.dumps(only))
        environment["LINEMAP_ONLY"] = str(wanted)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "linemap"]
    quiet = subprocess.DEVNULL
    subprocess.run([*command, "-m", tier, *arguments], cwd=tree, env=environment, stdout=quiet,
                   stderr=quiet, check=False)  # fmt: skip
    if not seen.exists():  # too long, or a test that hangs (`faulthandler_timeout`)
        raise Stopped(now.read_text() if now.exists() else "before the first test")
    return json.loads(seen.read_text())


def lines_of(text, part):
    """Return the numbers of the lines that hold a part of a text."""
    first = text[: text.index(part)].count("\n") + 1
    return range(first, first + part.rstrip("\n").count("\n") + 1)


def executing(tree, bug, known, tries):
    """Return the cheapest tests that execute the lines of a bug, and fail without none."""
    file, right, _ = PLANTED[bug]
    by_line = known["lines"].get(file, {})
    numbers = lines_of((tree / "skdp" / file).read_text(), right)
    tests = {test for n in numbers for test in by_line.get(str(n), ())} - set(known["failed"])
    return sorted(tests, key=known["seconds"].get)[:tries]


def mirrors(tree, bug):
    """Return the test files that mirror the module of a bug, those that name its place first."""
    file, right, _ = PLANTED[bug]
    module = Path(file)
    name = f"skdp.{'.'.join(module.with_suffix('').parts)}"
    before = (tree / "skdp" / file).read_text().partition(right)[0]
    kinds = re.findall(r"^class (\w+)", before, re.MULTILINE)[-1:]
    places = {*kinds, *re.findall(r"^ *def (\w+)", before, re.MULTILINE)[-1:]}
    words = set(module.stem.strip("_").split("_"))
    found = {}
    for path in sorted((tree / "tests").rglob("test_*.py")):
        text = path.read_text()
        same = path.parent == (tree / "tests" / file).parent
        alike = len(words & set(path.stem.split("_")))
        if same or alike or name in text:  # next to it, of its name, or an import of it
            named = sum(bool(re.search(rf"\b{place}\b", text)) for place in places)
            taken = bool(re.search(rf"import.*\b{module.stem}\b", text))
            found[path.relative_to(tree).as_posix()] = -(2 * alike + 2 * named + taken)
    return sorted(found, key=found.get)[:_FILES]


def seen_by(tree, bug, known, tries):
    """Plant a bug; return (tests that fail, CPU seconds, whether they are of the first tier)."""
    file, right, slip = PLANTED[bug]
    path = tree / "skdp" / file
    text = path.read_text()
    if text.count(right) != 1:
        raise SystemExit(f"{bug}: {text.count(right)} times in {file}: {right!r}")
    if known:
        tests = executing(tree, bug, known, tries)
        steps = [("not slow", sorted({test.partition("::")[0] for test in tests}), tests)]
    else:
        near, first, deep = mirrors(tree, bug), "not deep and not slow", "deep and not slow"
        steps = [(first, near, None), (first, WAYS, None), (deep, [*near, *READERS], None)]
    for tier, files, only in steps:
        once = ["-x"] if only is None else []
        path.write_text(text.replace(right, slip))
        try:
            found = run(tree, *once, *files, only=only, tier=tier) if files else NOTHING
        finally:
            path.write_text(text)
        if found["failed"] and not run(tree, *files, only=found["failed"])["failed"]:
            return found["failed"], found["seconds"], only is None and tier == first
    return [], {}, False


def cheapest_set(caught, seconds):
    """Return tests that catch all that is caught: each time the one that sees most per second."""
    left, chosen = {bug for bug, tests in caught.items() if tests}, []
    while left:
        gain = {}
        for bug in left:
            for test in caught[bug]:
                gain[test] = gain.get(test, 0) + 1
        chosen.append(max(sorted(gain), key=lambda test: gain[test] / (seconds[test] + 0.01)))
        left = {bug for bug in left if chosen[-1] not in caught[bug]}
    return chosen


def copy_to(folder):
    """Copy what tests need; return the place."""
    tree = Path(folder)
    for part in ("skdp", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, tree)
    return tree


def main():
    """Map, plant, choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=["tests"])
    parser.add_argument("-k", default="", help="of these tests, as for pytest")
    parser.add_argument("-b", default="", help="bugs that have this text in their names or files")
    parser.add_argument("--tries", type=int, default=30, help="tests that run on each bug")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the checkout")
    parser.add_argument("--mirrors", action="store_true", help="no map: see above")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    bugs = [bug for bug in PLANTED if options.b in bug or options.b in PLANTED[bug][0]]
    caught, chosen, seconds = {}, set(), {}
    with tempfile.TemporaryDirectory() as folder:
        trees = SimpleQueue()
        for i in range(options.jobs):
            trees.put(copy_to(Path(folder, str(i))))
        known = {}
        if not options.mirrors:
            tree = trees.get()
            known = run(tree, *options.files, "-k", options.k, lines=True)
            trees.put(tree)
            print(len(known["seconds"]), "tests;", len(known["failed"]), "fail without a bug")

        def look(bug):
            tree, where, tier = trees.get(), "-", "NONE"
            tests, times, first = [], {}, False
            try:
                tests, times, first = seen_by(tree, bug, known, options.tries)
            except Stopped as test:
                tier, where = "ENDED", str(test)
            finally:
                trees.put(tree)
            cost = f"{times[tests[0]]:.1f} s" if tests else ""
            if tests:
                tier, where = "first" if first else "deep", tests[0]
            print(f"{bug:50} {tier:6} {cost:7} {where}", flush=True)
            caught[bug] = tests
            seconds.update(times)
            if not first:
                chosen.update(tests[:1])

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(look, bugs))
    kept = CHOSEN.read_text().splitlines() if options.mirrors and CHOSEN.exists() else []
    tests = {*kept, *(chosen if options.mirrors else cheapest_set(caught, seconds))}
    if options.write and tests:
        CHOSEN.write_text("".join(f"{test}\n" for test in sorted(tests)))
    return sum(not tests for tests in caught.values())


if __name__ == "__main__":
    sys.exit(main())
