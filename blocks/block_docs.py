"""Address of the documentation and pictures of the block types, as their cards show them.

Prefect's client accepts only http(s) addresses for both (3.9.1: a `data:` picture stored by other
means makes the block type unreadable for every client). So the pictures are those that Prefect
publishes for its own blocks: the UI loads nothing from a host that it does not use already.
"""

from __future__ import annotations

from typing import Final

from pydantic import HttpUrl

DOCUMENTATION: Final = "https://prefect-bt.readthedocs.io/en/stable/blocks.html"
"""The page with a section for each block type; also in pyproject.toml."""

_LOGOS: Final = (
    "https://raw.githubusercontent.com/PrefectHQ/prefect/"
    "420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
)
_CDN: Final = "https://cdn.sanity.io/images/3ugk85nk/production"

SECRET_LOGO: Final = HttpUrl(f"{_LOGOS}/secret.png")
FOLDER_LOGO: Final = HttpUrl(f"{_LOGOS}/filesystem.png")
PROCESS_LOGO: Final = HttpUrl(f"{_LOGOS}/process.png")
KUBERNETES_LOGO: Final = HttpUrl(f"{_LOGOS}/kubernetes.png")
DOCKER_LOGO: Final = HttpUrl(f"{_CDN}/14a315b79990200db7341e42553e23650b34bb96-250x250.png")
NODES_LOGO: Final = HttpUrl(f"{_CDN}/2d0b896006ad463b49c28aaac14f31e00e32cfab-250x250.png")
