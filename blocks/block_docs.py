"""What the blocks' cards in the Prefect UI link to and show, in one place for all of them.

Prefect's client refuses anything but http(s) here, `data:` pictures included, and no client could
read a block type that carried one. So the pictures are those that Prefect publishes for its own
blocks: the UI asks no host for them that it does not ask already.
"""

from __future__ import annotations

from typing import Final

from pydantic import HttpUrl

DOCUMENTATION: Final = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")

_LOGOS: Final = (
    "https://raw.githubusercontent.com/PrefectHQ/prefect/"
    "420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
)
_CDN: Final = "https://cdn.sanity.io/images/3ugk85nk/production"

SECRET_LOGO: Final = HttpUrl(f"{_LOGOS}/secret.png")
FOLDER_LOGO: Final = HttpUrl(f"{_LOGOS}/filesystem.png")
PROCESS_LOGO: Final = HttpUrl(f"{_LOGOS}/process.png")
DOCKER_LOGO: Final = HttpUrl(f"{_CDN}/14a315b79990200db7341e42553e23650b34bb96-250x250.png")
NODES_LOGO: Final = HttpUrl(f"{_CDN}/2d0b896006ad463b49c28aaac14f31e00e32cfab-250x250.png")
