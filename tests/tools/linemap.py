"""Plugin of pytest: the CPU seconds of each test, and who failed.

LINEMAP names the file for them, LINEMAP_ONLY a file with the ids of the tests that are to run,
LINEMAP_SECONDS a limit of CPU time. Next to the file lies the test that is running, in `.now`.
"""

import json
import os
import time
from pathlib import Path

import pytest

SECONDS, FAILED = {}, []

if seconds := int(os.environ.get("LINEMAP_SECONDS") or 0):
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if os.environ.get("LINEMAP_ONLY"):
        wanted = set(json.loads(Path(os.environ["LINEMAP_ONLY"]).read_text()))
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    Path(f"{os.environ['LINEMAP']}.now").write_text(item.nodeid)
    start = time.process_time()
    try:
        return (yield)
    finally:
        SECONDS[item.nodeid] = round(time.process_time() - start, 3)


def pytest_runtest_logreport(report):
    if report.failed:
        FAILED.append(report.nodeid)


def pytest_sessionfinish(session):
    found = {"seconds": SECONDS, "failed": FAILED}
    Path(os.environ["LINEMAP"]).write_text(json.dumps(found))
