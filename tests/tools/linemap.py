"""Plugin of pytest: which tests execute which lines of skdp, their CPU seconds, and who failed.

LINEMAP names the file for the map, LINEMAP_ONLY a file with the ids of the tests that are to run,
LINEMAP_SECONDS a limit of CPU time. Next to the map lies the test that is running, in `.now`.
"""

import json
import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "skdp"
SECONDS, FAILED, COVERAGE = {}, [], []

if seconds := int(os.environ.get("LINEMAP_SECONDS") or 0):
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

if os.environ.get("LINEMAP_LINES"):
    import coverage

    COVERAGE.append(coverage.Coverage(data_file=None, source=[str(ROOT)], config_file=False))
    COVERAGE[0].start()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if os.environ.get("LINEMAP_ONLY"):
        wanted = set(json.loads(Path(os.environ["LINEMAP_ONLY"]).read_text()))
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    Path(f"{os.environ['LINEMAP']}.now").write_text(item.nodeid)
    for measured in COVERAGE:
        measured.switch_context(item.nodeid)
    start = time.process_time()
    try:
        return (yield)
    finally:
        SECONDS[item.nodeid] = round(time.process_time() - start, 3)


def pytest_runtest_logreport(report):
    if report.failed:
        FAILED.append(report.nodeid)


def pytest_sessionfinish(session):
    lines = {}
    for measured in COVERAGE:
        measured.stop()
        data = measured.get_data()
        for file in data.measured_files():
            name = Path(file).relative_to(ROOT).as_posix()
            lines[name] = {
                number: sorted(set(tests) & set(SECONDS))
                for number, tests in data.contexts_by_lineno(file).items()
            }
    found = {"seconds": SECONDS, "failed": FAILED, "lines": lines}
    Path(os.environ["LINEMAP"]).write_text(json.dumps(found))
