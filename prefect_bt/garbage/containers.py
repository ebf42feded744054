"""Containers and networks of this machine's nodes, on the Docker Engines that it has used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_bt.contract import LABEL_MARK
from prefect_bt.garbage.machine import handle_of, stores_of
from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.words import Kind, LeftOver
from prefect_bt.host.handle import HostHandle
from prefect_bt.host.layout import place_of
from prefect_bt.ownership import is_owned
from prefect_bt.substrates.docker_engine import DockerEngine

_LABELLED = {"label": [LABEL_MARK]}


@dataclass(frozen=True)
class Containers:
    """Of one state folder: those of others are never looked at."""

    state_dir: Path
    stores: Stores
    engine: DockerEngine

    def find(self) -> Iterator[LeftOver]:
        """SubstrateError when the Engine does not answer."""
        engine = self.engine
        made: list[dict[str, Any]] = engine.ask(
            lambda client: client.containers(all=True, filters=_LABELLED), doing="listed"
        )
        for one in made:
            found = self._left(Kind.CONTAINER, str(one["Names"][0]).lstrip("/"), one["Labels"])
            if found:
                yield found(_removal(engine, str(one["Id"]), "remove_container", force=True))
        networks: list[dict[str, Any]] = engine.ask(
            lambda client: client.networks(filters=_LABELLED), doing="listed"
        )
        for one in networks:
            found = self._left(Kind.NETWORK, str(one["Name"]), one["Labels"])
            if found:
                yield found(_removal(engine, str(one["Id"]), "remove_network"))

    def _left(
        self, kind: Kind, name: str, labels: dict[str, str]
    ) -> Callable[[Callable[[], object]], LeftOver] | None:
        """What it is, wanting how it goes; None for what is in use, or not of this folder."""
        mark = labels.get(LABEL_MARK, "")
        handle = handle_of(self.state_dir, mark)
        if handle is None or not mark.rpartition(".")[2].startswith(place_of(self.state_dir)):
            return None
        why = self._why(kind, handle)
        if not why:
            return None

        def told(remove: Callable[[], object]) -> LeftOver:
            def remove_again() -> None:
                if not self._why(kind, handle):
                    raise OSError(f"job {handle.job.job_id} was taken up again")
                remove()

            return LeftOver(kind, name, why, remove_again, job=handle.job.job_id)

        return told

    def _why(self, kind: Kind, handle: HostHandle) -> str:
        """A node's folder is there before its container is, and goes after it. A network is the
        gang's."""
        job_id = handle.job.job_id
        if is_owned(self.state_dir, job_id):
            return ""
        place = handle.folder.path if kind is Kind.CONTAINER else handle.folder.path.parent
        if not place.exists():
            return "the folder of its node is gone"
        verdict = self.stores.judge(job_id, stores_of(handle.job) or [self.stores.own])
        return verdict.why if verdict.over and not is_owned(self.state_dir, job_id) else ""


def _removal(engine: DockerEngine, which: str, verb: str, **given: object) -> Callable[[], object]:
    def remove(client: Any) -> None:
        getattr(client, verb)(which, **given)

    return lambda: engine.find(remove)  # it may be gone by now
