"""Start a child in a session of its own, without the cost of importing subprocess."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence


def spawn(argv: Sequence[str], environment: Mapping[str, str], *, stdin: int, output: int) -> int:
    """Start a process in a new session and the working directory; return its pid. Raise OSError.

    `stdin` becomes descriptor 0, `output` 1 and 2. All others are closed on exec.
    """
    return os.posix_spawn(
        argv[0],
        list(argv),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigmask=[],
        # Python ignores SIGPIPE; a shell pipeline relies on its default.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    )
