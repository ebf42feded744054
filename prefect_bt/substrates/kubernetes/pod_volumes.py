"""Volumes of a node's pod, and their mounts in its containers. Pure.

Caches and weights are folders of one volume, the cache: a claim, a folder of the machine, or an
emptyDir. Every other volume of the plan is an emptyDir, which is deleted with the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prefect_bt.host.nodes import pod_layout
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import GangPlan, NodePlan, Volume, VolumeKind
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.names import CACHE_CLAIM, gang_name

_CACHE_FOLDERS: Final = {
    VolumeKind.CACHE_BASE: "cache/bases",
    VolumeKind.PROJECT_CACHE: "cache/projects",
    VolumeKind.TEAM_CACHE: "cache/teams",
    VolumeKind.HF_CACHE: "cache/huggingface",
}
"""Folders of the cache, named as in a state folder (host.state_folder)."""
WEIGHTS_FOLDER: Final = "weights"
_SECRET_MODE: Final = 0o440


def render_volumes(gang: GangPlan, settings: ClusterSettings) -> list[Json]:
    """Return the volumes of every pod of the gang."""
    node = gang.nodes[0]
    limit = node.resources.shared_memory
    shared_memory = {"medium": "Memory"} | ({"sizeLimit": str(limit)} if limit else {})
    secret = {"secretName": gang_name(gang.job_id, gang.attempt), "defaultMode": _SECRET_MODE}
    own: list[Json] = [
        {"name": _volume_name(number), "emptyDir": {}}
        for number, volume in enumerate(node.volumes)
        if not _is_cached(volume)
    ]
    cached = any(_is_cached(volume) for volume in node.volumes)
    claim = {"persistentVolumeClaim": {"claimName": settings.store_claim}}
    return [
        {"name": "secret", "secret": secret},
        {"name": "state", "emptyDir": {}},
        {"name": "control", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": shared_memory},
        *own,
        *([{"name": "cache", **_cache_source(settings)}] if cached else []),
        *([{"name": "store", **claim}] if settings.store_claim else []),
    ]


def render_mounts(node: NodePlan, places: Mapping[int, str]) -> list[Json]:
    """Return the mounts of the plan's volumes, each by its number, at `places`."""
    return [_mount(node.volumes[number], number, place, node) for number, place in places.items()]


def _mount(volume: Volume, number: int, place: str, node: NodePlan) -> Json:
    mount: Json = {"name": _volume_name(number), "mountPath": place}
    key = volume.key or node.project_id
    if volume.kind is VolumeKind.WEIGHTS:
        tree = pod_layout.weights_tree(key)
        mount = {"name": "cache", "mountPath": place, "subPath": f"{WEIGHTS_FOLDER}/{tree}"}
    elif volume.kind in _CACHE_FOLDERS:
        folder = f"{_CACHE_FOLDERS[volume.kind]}/{quote_name(key)}"
        mount = {"name": "cache", "mountPath": place, "subPath": folder}
    return mount | ({"readOnly": True} if volume.read_only else {})


def _is_cached(volume: Volume) -> bool:
    return volume.kind is VolumeKind.WEIGHTS or volume.kind in _CACHE_FOLDERS


def _volume_name(number: int) -> str:
    return f"volume-{number}"


def _cache_source(settings: ClusterSettings) -> Json:
    claim = settings.cache_claim or (CACHE_CLAIM if settings.cache_storage_class else "")
    if claim:
        return {"persistentVolumeClaim": {"claimName": claim}}
    if settings.cache_host_path:
        return {"hostPath": {"path": settings.cache_host_path, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {}}
