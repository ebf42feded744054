"""Containers and networks of this machine's nodes, on the Docker Engines that it has used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.job_folders import find_handle, list_stores
from prefect_bt.gc.liveness import JobStores
from prefect_bt.host.job_lock import is_owned
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import state_dir_id
from prefect_bt.substrates.docker.container import LABEL_MARK
from prefect_bt.substrates.docker.engine import DockerEngine

_LABELLED = {"label": [LABEL_MARK]}


@dataclass(frozen=True)
class ContainerScanner:
    """Of one state folder: those of others are never looked at."""

    state_dir: Path
    stores: JobStores
    engine: DockerEngine

    def scan(self) -> Iterator[Orphan]:
        """SubstrateError when the Engine does not answer."""
        engine = self.engine
        made: list[dict[str, Any]] = engine.call(
            lambda client: client.containers(all=True, filters=_LABELLED), action="listed"
        )
        for one in made:
            found = self._orphan_factory(
                OrphanKind.CONTAINER, str(one["Names"][0]).lstrip("/"), one["Labels"]
            )
            if found:
                yield found(_create_remover(engine, str(one["Id"]), "remove_container", force=True))
        networks: list[dict[str, Any]] = engine.call(
            lambda client: client.networks(filters=_LABELLED), action="listed"
        )
        for one in networks:
            found = self._orphan_factory(OrphanKind.NETWORK, str(one["Name"]), one["Labels"])
            if found:
                yield found(_create_remover(engine, str(one["Id"]), "remove_network"))

    def _orphan_factory(
        self, kind: OrphanKind, name: str, labels: dict[str, str]
    ) -> Callable[[Callable[[], object]], Orphan] | None:
        """What it is, wanting how it goes; None for what is in use, or not of this folder."""
        mark = labels.get(LABEL_MARK, "")
        handle = find_handle(self.state_dir, mark)
        if handle is None or not mark.rpartition(".")[2].startswith(state_dir_id(self.state_dir)):
            return None
        why = self._orphan_reason(kind, handle)
        if not why:
            return None

        def make_orphan(remove: Callable[[], object]) -> Orphan:
            def remove_again() -> None:
                if not self._orphan_reason(kind, handle):
                    raise OSError(f"job {handle.job.job_id} runs again")
                remove()

            return Orphan(kind, name, why, remove_again, job=handle.job.job_id)

        return make_orphan

    def _orphan_reason(self, kind: OrphanKind, handle: HostHandle) -> str:
        """A node's folder is there before its container is, and goes after it. A network is the
        gang's."""
        job_id = handle.job.job_id
        if is_owned(self.state_dir, job_id):
            return ""
        place = handle.folder.path if kind is OrphanKind.CONTAINER else handle.folder.path.parent
        if not place.exists():
            return "the folder of its node is gone"
        verdict = self.stores.check_liveness(
            job_id, list_stores(handle.job) or [self.stores.default_url]
        )
        return verdict.reason if verdict.ended and not is_owned(self.state_dir, job_id) else ""


def _create_remover(
    engine: DockerEngine, which: str, verb: str, **given: object
) -> Callable[[], object]:
    def remove(client: Any) -> None:
        getattr(client, verb)(which, **given)

    return lambda: engine.find(remove)  # it may be gone by now
