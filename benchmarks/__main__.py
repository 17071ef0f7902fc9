"""Run the benchmarks: ``python -m benchmarks [--full] [module ...]``.

Every module of this folder with tables takes part; each runs in a process of its own, with one BLAS
thread and a time limit, so that a module that fails or hangs says so and leaves the others alone.
Results are merged into ``benchmarks/results.json`` (or ``--json``) and ``benchmarks/tables.md`` (or
``--markdown``): a run of one module replaces its part. ``docs/benchmarks.md`` (or ``--page``) shows
the tables that `SUMMARY` names.
"""

import argparse
import contextlib
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Not benchmarks: what they share, and what runs in another environment.
HELPERS = {"__init__", "__main__", "baselines", "planned", "report", "peer_worker", "picture"}
LIMITS = {False: 300, True: 7200}  # seconds for a module


def modules():
    """Names of the benchmark modules, the comparison with other libraries first."""
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS)
    return sorted(names, key=lambda name: name != "peers")


# -- inside the process of one module --------------------------------------------------------------


def run_here(name, full, target):
    """Write the tables of one module as JSON lines, as they come."""
    sys.path[:0] = [str(HERE), str(ROOT)]
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), open(target, "w", encoding="utf-8") as file:
        module = importlib.import_module(name)
        warnings.simplefilter("ignore")
        for table in module.tables(full):
            file.write(json.dumps(table.as_dict()) + "\n")
            file.flush()


# -- the whole ------------------------------------------------------------------------------------


def run(name, full, limit):
    """Run one module in its own process; return its part of the results."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "tables"
        command = [sys.executable, "-m", "benchmarks", "--child", str(target), name]
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        # Not a pipe: what a child leaves running could hold a pipe open.
        with open(Path(scratch) / "errors", "w+", encoding="utf-8") as errors:
            options = {"cwd": ROOT, "env": environment, "stderr": errors}
            options["start_new_session"] = True  # what it starts is ended with it
            child = subprocess.Popen(command + ["--full"] * full, **options)
            fault = wait_for(child, limit)
            if child.returncode and not fault:
                errors.seek(0)
                fault = (errors.read().strip().splitlines() or ["?"])[-1]
        lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    if fault:
        print(f"{name}: {fault}", flush=True)
    return {
        "tables": [json.loads(line) for line in lines],
        "fault": fault,
        "seconds": round(time.perf_counter() - start),
        "full": full,
        "environment": environment_of(),
    }


def wait_for(child, limit):
    """Wait for a child; end it and all that it started when it is late. Returns what was wrong."""
    try:
        child.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"stopped after {limit:g} s" if child.returncode else ""
    return ""


def environment_of():
    """Versions that matter, and the machine in a few words."""
    import numpy
    import scipy
    import sklearn

    sys.path[:0] = [str(ROOT)]
    import skdp

    return {
        "skdp": skdp.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
    }


def commit():
    """Short name of the commit that is checked out; empty outside a checkout."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


# Sections of the page of the documentation: heading, module, how the titles of the shown tables
# begin, and how to read them.
SUMMARY = (
    ("Other libraries", "peers", ("digits", "spiked rows, n=20000"),
     "The fraction of the variance that five components capture. Pure differential privacy (the "
     "peers') is a stronger guarantee than ours at the same epsilon."),
    ("Default fits on raw columns", "defaults", ("DPPCA", "R2 or accuracy"),
     "Nothing but epsilon is set; columns keep their units. 'oracle scale' is the same fit with "
     "the best public scale of each column. Other columns are fractions of the fits. 'lost': less "
     "than half of what the oracle scale gains. 'absurd': a clip norm more than 8 times below the "
     "median norm, or above the 0.9 quantile. 'silent': without a warning."),
    ("Units and algorithms", "matrices",
     ("row unit, digits", "interaction unit, 3000 x 800, 57903", "regression", "600 users of 10"),
     "Each algorithm and its trivial baselines at the same guarantee. 'behind': how far it is "
     "below the best of them, beyond noise, at worst."),
    ("Larger data", "scale", ("",), "Memory and time as the data grow."),
    ("Running time", "times", ("digits", "dense rows", "sparse rows", "passes over the rows"),
     "CPU time as a ratio to the peer that is named, in one process, with one BLAS thread."),
)  # fmt: skip


def run_line(name, part):
    """Say how the tables of a module were made."""
    kind = "full" if part["full"] else "quick"
    facts = ", ".join(f"{key} {value}" for key, value in part["environment"].items() if value)
    return f"`python -m benchmarks {name}` ({kind} run; {facts})"


def markdown(results):
    """Return all tables: one section for each module."""
    from report import Table

    lines = [
        "# All benchmark tables",
        "",
        "Made by `python -m benchmarks` (`--full` for more sizes and repeats); do not edit. Data "
        "are synthetic or public, noise is fresh. Times come from shared machines: compare ratios "
        "inside one table, not seconds between tables. Each section names the date and commit of "
        "its run.",
        "",
    ]
    for name, part in results.items():
        lines += [f"## {name}", "", run_line(name, part), ""]
        lines += [Table(**table).as_markdown() for table in part["tables"]]
        if part["fault"]:
            lines += [f"This run did not finish: {part['fault']}", ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(results):
    """Return the page of the documentation: some tables, and how to read them."""
    from report import Table

    lines = [
        "# Benchmarks",
        "",
        "Made by `python -m benchmarks`; do not edit. Data are synthetic or public, noise is "
        "fresh. Times come from shared machines: compare ratios inside one table. "
        "[All tables](../benchmarks/tables.md) are in the repository.",
        "",
    ]
    for heading, name, titles, reading in SUMMARY:
        if name not in results:
            continue
        part = results[name]
        tables = [table for table in part["tables"] if table["title"].startswith(titles)]
        lines += [f"## {heading}", "", reading, "", run_line(name, part), ""]
        lines += [Table(**{**table, "notes": table["notes"][:1]}).as_markdown() for table in tables]
    return "\n".join(lines).rstrip() + "\n"


def ordered(results):
    """Parts in the order of the modules."""
    return {name: results[name] for name in modules() if name in results}


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all sizes and repeats")
    parser.add_argument("--json", type=Path, default=HERE / "results.json", metavar="FILE")
    parser.add_argument("--markdown", type=Path, default=HERE / "tables.md", metavar="FILE")
    parser.add_argument(
        "--page", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE"
    )
    parser.add_argument("--limit", type=float, help="seconds for one module")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("modules", nargs="*", metavar="module", help=", ".join(modules()))
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - set(modules()):
        parser.error(f"unknown modules {sorted(unknown)}; there are {', '.join(modules())}")
    if arguments.child:
        run_here(arguments.modules[0], arguments.full, arguments.child)
        return
    sys.path[:0] = [str(HERE)]
    results = {}
    if arguments.json.exists():
        results = json.loads(arguments.json.read_text(encoding="utf-8"))
    for name in arguments.modules or modules():
        print(f"== {name}", flush=True)
        limit = arguments.limit or LIMITS[arguments.full]
        results[name] = run(name, arguments.full, limit)
        results = ordered(results)
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        arguments.markdown.write_text(markdown(results), encoding="utf-8")
        arguments.page.write_text(summary(results), encoding="utf-8")
    print(f"\nwrote {arguments.json}, {arguments.markdown} and {arguments.page}")
    faults = [name for name, part in results.items() if part["fault"]]
    if faults:
        print(f"not finished: {', '.join(faults)}")


if __name__ == "__main__":
    main()
