"""Route of a deployment: the server that answers new requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from prefect_bt.host.processes import ProcessIdentity


def _check_target(target: str) -> str:
    parts = urlsplit(target)
    has_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    has_more = parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in target
    if not has_address or has_more:
        raise ValueError(f"{target!r} is not like http://127.0.0.1:20011")
    return target.rstrip("/")


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Route:
    """The server of new requests.

    `target`: scheme, host and port of the server. `aliases`: other names that a JSON request may
    give for a model of `models`. `process`: the server, if it runs on this machine; once it ends,
    another server may get its address. `key`: the API key that the server itself requires, "" for
    none (serving.engines.engine_key).
    """

    revision: int
    target: Annotated[str, AfterValidator(_check_target)]
    models: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    process: ProcessIdentity | None = None
    key: str = field(default="", repr=False)

    @property
    def is_server_dead(self) -> bool:
        """Return whether the server has ended, so that its address may be another server's."""
        return self.process is not None and not self.process.is_alive


_ADAPTER: Final = TypeAdapter(Route)


def parse_route(text: bytes) -> Route:
    """Return the route in JSON text. Raise ValueError with the first error.

    >>> parse_route(b'{"revision": 3, "target": "http://127.0.0.1:20011", "models": ["a"]}')
    Route(revision=3, target='http://127.0.0.1:20011', models=('a',), aliases={}, process=None)
    """
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
