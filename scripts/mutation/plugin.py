"""What runs inside pytest: the chosen tests in the chosen order, a record of each, and coverage by test.

The variable ``COOPNET_MUTATION`` names a JSON file: ``tests`` (their names in order, or null for all), ``skip``, and
``record``, the file to which a line is added when a test begins and when it ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_job = json.loads(Path(os.environ["COOPNET_MUTATION"]).read_text())
_seconds: dict[str, float] = {}
_failed: set[str] = set()
_skipped: set[str] = set()


def _write(*row: object) -> None:
    with open(_job["record"], "a") as file:
        file.write(json.dumps(row) + "\n")


def _coverage():
    try:
        from coverage import Coverage
    except ImportError:
        return None
    return Coverage.current()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    wanted = _job["tests"]
    if wanted is None:
        chosen = [item for item in items if item.nodeid not in _job["skip"]]
    else:
        by_name = {item.nodeid: item for item in items}
        chosen = [by_name[name] for name in wanted if name in by_name]
    items[:] = chosen
    _write("collected", len(items))


def pytest_runtest_logstart(nodeid, location):
    _write("start", nodeid)
    if (coverage := _coverage()) is not None:
        coverage.switch_context(nodeid)


def pytest_runtest_logreport(report):
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)
    if report.skipped:  # and what is expected to fail
        _skipped.add(report.nodeid)


def pytest_runtest_logfinish(nodeid, location):
    outcome = "failed" if nodeid in _failed else "skipped" if nodeid in _skipped else "passed"
    _write("end", nodeid, outcome, round(_seconds.get(nodeid, 0.0), 3))
    if (coverage := _coverage()) is not None:
        coverage.switch_context("")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if (coverage := _coverage()) is not None:
        coverage.stop()
        coverage.save()
