"""The file server as a process of its own: `python -m prefect_bt.fileserver ROOT FOLDER`."""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Final

from prefect_bt.fileserver.addresses import WEEK
from prefect_bt.fileserver.connections import Limits
from prefect_bt.fileserver.place import Place
from prefect_bt.fileserver.running import HOST, announce, listen
from prefect_bt.fileserver.serving import Files, run

LARGEST_LOG: Final = 4 * 1024 * 1024
"""Bytes of server.log, whatever is printed. The process writes no other file that grows."""


def main() -> None:
    options = argparse.ArgumentParser(prog="prefect_bt.fileserver")
    options.add_argument("root", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument("--idle", type=float, default=WEEK, help="seconds without use")
    options.add_argument("--head", type=float, default=Limits.head, help="seconds for a head")
    options.add_argument("--stall", type=float, default=Limits.stall, help="without progress")
    given = options.parse_args()
    _bound_log()
    place = Place(given.root, given.folder)
    known = place.known()
    listening = listen(HOST, None, last=known.port if known else 0)
    announce(place, listening, host=HOST, base="", foreground=False)
    files = Files(place.root, place.secret(), place.id)
    run(files, listening, idle=given.idle, limits=Limits(given.head, given.stall))


def _bound_log() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted = LARGEST_LOG if most == resource.RLIM_INFINITY else min(LARGEST_LOG, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, most))


if __name__ == "__main__":
    main()
