"""The file server as a process of its own: `python -m prefect_bt.fileserver ROOT FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from prefect_bt.fileserver.addresses import WEEK
from prefect_bt.fileserver.place import Place
from prefect_bt.fileserver.running import HOST, announce, listen
from prefect_bt.fileserver.serving import Files, run


def main() -> None:
    options = argparse.ArgumentParser(prog="prefect_bt.fileserver")
    options.add_argument("root", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument("--idle", type=float, default=WEEK, help="seconds without use")
    given = options.parse_args()
    place = Place(given.root, given.folder)
    known = place.known()
    listening = listen(HOST, None, last=known.port if known else 0)
    announce(place, listening, host=HOST, base="", foreground=False)
    run(Files(place.root, place.secret(), place.id), listening, idle=given.idle)


if __name__ == "__main__":
    main()
