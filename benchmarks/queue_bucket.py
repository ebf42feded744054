"""Serve a store of the queue's benchmarks from a local S3 server, and count the requests to it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from gangs import CountingProxy
from servers import serving


@contextmanager
def serve_bucket(
    root: Path, delay: float = 0.0
) -> Generator[tuple[str, dict[str, str], CountingProxy]]:
    """Yield a store, the variables for its machines, and the proxy before its S3 server.

    `delay`: seconds by which each request of the machines takes longer.
    """
    with serving("moto", root) as server:
        proxy = CountingProxy(int(server.endpoint.rpartition(":")[2]), delay)
        own = {k: v for k, v in server.environment.items() if k.startswith("AWS_")}
        own["AWS_ALLOW_HTTP"] = "true"
        counted = {**own, "AWS_ENDPOINT_URL": proxy.url.removesuffix("/api")}
        try:
            with patch.dict(os.environ, own):  # what this process asks is not counted
                yield f"s3://{server.bucket}/store", counted, proxy
        finally:
            proxy.close()
