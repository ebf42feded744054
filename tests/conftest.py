"""For every test: Ctrl-C works, and what failed before a second try is told.

A shell that puts a run in the background makes its children ignore SIGINT, and what is ignored
stays so in every process that a test starts; tests that press Ctrl-C would wait for ever.
"""

import signal

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)

TIMED = ("slow", "integration")


def pytest_collection_modifyitems(config, items):
    """`make test` allows a second try: only to tests with processes, which hang on time."""
    if not config.getoption("reruns", default=None):
        return
    for item in items:
        if not any(item.get_closest_marker(name) for name in TIMED):
            item.add_marker(pytest.mark.flaky(reruns=0))


def pytest_terminal_summary(terminalreporter):
    """A first failure stays in sight: it may be a fault of ours that shows only now and then."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
