"""Process of the API of `prefect-bt up --api`: `python -m prefect_bt.http_api HOST PORT`."""

from __future__ import annotations

import sys

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.service import EXIT_EXPLAINED
from prefect_bt.http_api.server import Listen, serve


def main(host: str, port: str) -> int:
    try:
        serve(Listen(host, int(port)), echo=lambda text: print(text, flush=True))
    except PrefectBtError as error:
        print(error, flush=True)
        return EXIT_EXPLAINED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
