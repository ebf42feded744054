"""Start a child in a session of its own, without the cost of importing subprocess."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Stdio(NamedTuple):
    """Descriptors that become 0, 1 and 2. All others are closed on exec."""

    stdin: int
    output: int


def spawn(argv: Sequence[str], environment: Mapping[str, str], stdio: Stdio) -> int:
    """Start a process in a new session and the working directory; return its pid. Raise OSError."""
    return os.posix_spawn(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, stdio.stdin, 0),
            (os.POSIX_SPAWN_DUP2, stdio.output, 1),
            (os.POSIX_SPAWN_DUP2, stdio.output, 2),
        ],
        setsid=True,
        setsigmask=[],
        # Python ignores SIGPIPE; a shell pipeline relies on its default.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    )
