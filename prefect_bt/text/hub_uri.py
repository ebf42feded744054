"""Parse URIs of the Hugging Face Hub, as huggingface_hub does.

    hf://[models/|datasets/|spaces/][owner/]name[@revision][/path]

The revision may also follow the path. A `/` in it is written as `%2F`, but for `refs/pr/1` and
`refs/convert/parquet`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

HUB_FORM: Final = "hf://[datasets/]owner/repo[@revision][/path]"
_REFS: Final = r"refs/(?:pr/\d+|convert/[\w.-]+)"
_FORM: Final = re.compile(
    r"hf://(?!(?:buckets|kernels)/)(?:(?P<type>models|datasets|spaces)/)?+"
    r"(?P<id>(?>[^/@]+(?:/[^/@]+)?))"
    rf"(?:@(?P<revision>{_REFS}|[^/]+)(?:/(?P<path>.+))?|(?:/(?P<folder>[^@]+))?(?:@(?P<last>.+))?)"
)


@dataclass(frozen=True)
class HubUri:
    """A repository of the Hub, or a file or folder in it."""

    repo_id: str
    revision: str = ""
    """A branch, tag, commit or reference, decoded; empty for the default branch."""
    path: str = ""
    """Path in the repository, without slashes at its ends; empty for its root."""
    type: str = "models"

    @property
    def route(self) -> str:
        """Return the path of the repository at the Hub: those of models have no prefix."""
        return self.repo_id if self.type == "models" else f"{self.type}/{self.repo_id}"


@lru_cache(64)
def parse_hub_uri(uri: str) -> HubUri:
    """Parse a URI. ValueError for one of another form.

    >>> parse_hub_uri("hf://datasets/o/r@v1/train")
    HubUri(repo_id='o/r', revision='v1', path='train', type='datasets')
    """
    found = _FORM.fullmatch(uri)
    if found is None:
        raise ValueError(f"{uri!r} is not of the form {HUB_FORM}")
    path = (found["path"] or found["folder"] or "").removesuffix("/")
    if path and {"", ".", ".."}.intersection(path.split("/")):
        raise ValueError(f"{uri!r} has a path with an empty or a relative part")
    revision = unquote(found["revision"] or found["last"] or "")
    return HubUri(found["id"], revision, path, found["type"] or "models")


def pin_hub_uri(uri: str, commit: str) -> str:
    """Return the URI of the same files at a commit.

    >>> pin_hub_uri("hf://o/r/sub@main", "c0ffee")
    'hf://o/r@c0ffee/sub'
    """
    parsed = parse_hub_uri(uri)
    path = f"/{parsed.path}" if parsed.path else ""
    return f"hf://{parsed.route}@{quote(commit, safe='')}{path}"
