"""For every test: Ctrl-C works, and what failed before a second try is told.

A shell that puts a run in the background makes its children ignore SIGINT, and what is ignored
stays so in every process that a test starts; tests that press Ctrl-C would wait for ever.
"""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """A first failure stays in sight: it may be a fault of ours that shows only now and then."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
