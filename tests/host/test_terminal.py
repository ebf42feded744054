"""The terminal of a shell in a container, which is raw meanwhile."""

import signal
import sys

import pytest

from tests.node_shells import Terminal

RELAYS = """
import os
from prefect_bt.host.terminal import relay

class Program:
    reading, _ = os.pipe()
    def fileno(self): return self.reading
    def has_unread(self): return False
    def resize(self, rows, columns): os.write(1, b"ready")

relay(Program(), interactive=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminal_is_restored_if_the_shell_is_ended(number: signal.Signals) -> None:
    terminal = Terminal([sys.executable, "-c", RELAYS])
    terminal.wait_for("ready")
    assert terminal.settings_now() != terminal.settings
    terminal.signal(number)
    terminal.signal(signal.SIGTERM + signal.SIGHUP - number)  # a closed window sends several
    terminal.wait_end()
    assert terminal.settings_now() == terminal.settings
    terminal.close()
