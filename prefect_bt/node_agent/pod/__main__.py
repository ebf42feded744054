"""`python -m prefect_bt.node_agent.pod [weights]`: started by Kubernetes only.

Without an argument it runs the node and exits with the exit code of its commands. With `weights`,
in an init container, it mirrors the weights that the node mounts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Return the exit code of the container."""
    # The kernel drops signals that the first process of a container does not handle. A blocked
    # SIGTERM stays pending until the handler is installed, after half a second of imports.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    from prefect_bt.host.nodes.pod_layout import SECRET
    from prefect_bt.node_agent.pod.pod_files import PodFiles
    from prefect_bt.node_agent.pod.run_node import run_node
    from prefect_bt.node_agent.pod.weights import mirror_weights

    pod = PodFiles.read(Path(SECRET), os.environ)
    os.environ.update(pod.environment)
    return mirror_weights(pod) if arguments == ["weights"] else run_node(pod)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
