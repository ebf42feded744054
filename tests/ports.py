"""Ports for servers that tests start."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from prefect_bt.host.ports import reserve_port


def free_port() -> int:
    """A port that is this process's until it ends, whoever else on this machine asks for one.

    No client gets it either: the kernel hands out none of the range of gangs.
    """
    return reserve_port(f"tests-{os.getpid()}", state_dir=Path(tempfile.gettempdir())).number
