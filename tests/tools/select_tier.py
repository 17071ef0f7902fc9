"""Choose tests that see the planted bugs: `python tests/tools/select_tier.py [-b TEXT] [--write]`.

Each bug of `planted.toml` is planted alone in a copy. On it run the first tier of the
tests that mirror its module, then all ways and worst pairs, then the rest of the first tier, and
only where none fails the deep tests that mirror it, up to the first that fails; it must pass
without the bug. With `--write` that one joins `tests/first_tier.txt`, which `every_test.py` reads.

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
TEXTS = "tests/test_mutations.py::test_every_slip_is_of_a_line_that_is_there"  # fails for any bug
_SECONDS = 600  # of CPU time in one run, whatever else runs


class Stopped(Exception):
    """A run ended before its tests: nobody knows whether they see a bug."""


def run(tree, *arguments, only=None, tier="not slow"):
    """Run pytest in a tree; return what `linemap` saw: who failed, and the seconds of each."""
    seen, now, wanted = tree / "seen.json", tree / "seen.json.now", tree / "only.json"
    for old in (seen, now):
        old.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests' / 'tools'}", "LINEMAP": str(seen),
        "LINEMAP_SECONDS": str(_SECONDS), "PYTHONDONTWRITEBYTECODE": "1",
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
    return sorted(found, key=found.get)


def seen_by(tree, bug):
    """Plant a bug; return (a test that fails or None, CPU seconds, whether it is in the tier)."""
    file, right, slip = PLANTED[bug]
    path = tree / "skdp" / file
    text = path.read_text()
    if text.count(right) != 1:
        raise SystemExit(f"{bug}: {text.count(right)} times in {file}: {right!r}")
    near, first, deep = mirrors(tree, bug), "not deep and not slow", "deep and not slow"
    for tier, files in (
        (first, [*near, *WAYS, "--deselect", TEXTS]),
        (first, ["tests", "--deselect", TEXTS]),
        (deep, [*near, *READERS]),
    ):
        path.write_text(text.replace(right, slip))
        try:
            found = run(tree, "-x", *files, tier=tier)
        finally:
            path.write_text(text)
        if found["failed"] and not run(tree, *files, only=found["failed"])["failed"]:
            return found["failed"][0], found["seconds"][found["failed"][0]], tier == first
    return None, 0.0, False


def copy_to(folder):
    """Copy what tests need; return the place."""
    tree = Path(folder)
    for part in (".ci", "skdp", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tree)
    return tree


def main():
    """Plant, and choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-b", default="", help="bugs that have this text in their names or files")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the checkout")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    bugs = [bug for bug in PLANTED if options.b in bug or options.b in PLANTED[bug][0]]
    missed, chosen = [], set(CHOSEN.read_text().splitlines())
    with tempfile.TemporaryDirectory() as folder:
        trees = SimpleQueue()
        for i in range(options.jobs):
            trees.put(copy_to(Path(folder, str(i))))

        def look(bug):
            tree = trees.get()
            try:
                test, seconds, first = seen_by(tree, bug)
                tier = "NONE" if test is None else "first" if first else "deep"
            except Stopped as stop:
                test, seconds, first, tier = None, 0.0, False, f"ENDED at {stop}"
            finally:
                trees.put(tree)
            print(f"{bug:50} {tier:6} {seconds:.1f} s {test or ''}", flush=True)
            if test is None:
                missed.append(bug)
            elif not first:
                chosen.add(test)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(look, bugs))
    if options.write:
        CHOSEN.write_text("".join(f"{test}\n" for test in sorted(chosen)))
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
