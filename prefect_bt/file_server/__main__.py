"""The file server as a process of its own: `python -m prefect_bt.file_server ROOT FOLDER`."""

from __future__ import annotations

import argparse
import asyncio
import resource
from pathlib import Path
from typing import Final

from prefect_bt.file_server.app import FileServer, serve
from prefect_bt.file_server.connection_limits import ConnectionLimits
from prefect_bt.file_server.process import create_listener, register_server
from prefect_bt.file_server.server_folder import FileServerFolder
from prefect_bt.file_server.signed_urls import URL_LIFETIME_SECONDS
from prefect_bt.host.service import LOOPBACK

LARGEST_LOG: Final = 4 * 1024 * 1024
"""Bytes of server.log, whatever is printed. The process writes no other file that grows."""


def main() -> None:
    options = argparse.ArgumentParser(prog="prefect_bt.file_server")
    options.add_argument("root", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument(
        "--idle", type=float, default=URL_LIFETIME_SECONDS, help="seconds without use"
    )
    options.add_argument(
        "--head", type=float, default=ConnectionLimits.head, help="seconds for a head"
    )
    options.add_argument(
        "--stall", type=float, default=ConnectionLimits.stall, help="without progress"
    )
    given = options.parse_args()
    _bound_log()
    place = FileServerFolder(given.root, given.folder)
    known = place.read_record()
    listening = create_listener(LOOPBACK, None, preferred=known.port if known else 0)
    register_server(place, listening, host=LOOPBACK, base="", foreground=False)
    files = FileServer(place.root, place.ensure_signing_key(), place.store_id)
    limits = ConnectionLimits(given.head, given.stall)
    asyncio.run(serve(files, listening, idle_timeout=given.idle, limits=limits))


def _bound_log() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted = LARGEST_LOG if most == resource.RLIM_INFINITY else min(LARGEST_LOG, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, most))


if __name__ == "__main__":
    main()
