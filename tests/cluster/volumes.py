"""The volumes of a pod as folders of this machine, and where containers mount them."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any

from .engine import bind
from .objects import Store
from .resources import CONFIG_MAPS, SECRETS, ApiError, Obj, part, parts

MEMORY = Path("/dev/shm")


class VolumeError(Exception):
    """A volume cannot be set up now; the kubelet tries again."""


class Volumes:
    """Sets up a pod's volumes below `folder`; claims outlive pods, in `claims`."""

    def __init__(self, store: Store, folder: Path, memory: Path, claims: Path) -> None:
        self._store, self.folder, self._memory, self._claims = store, folder, memory, claims
        self._paths: dict[str, Path] = {}

    def set_up(self, pod: Obj) -> None:
        """Make all of them, or raise VolumeError."""
        group = part(pod["spec"], "securityContext").get("fsGroup")
        for volume in parts(pod["spec"], "volumes"):
            if volume["name"] not in self._paths:
                self._paths[volume["name"]] = self._make(pod, volume, group)

    def mounts(self, container: Obj) -> list[Any]:
        return [self._mount(each) for each in parts(container, "volumeMounts")]

    def remove(self) -> None:
        for folder in (self.folder, self._memory):
            shutil.rmtree(folder, ignore_errors=True)

    def _mount(self, mount: Obj) -> Any:
        source = self._paths[mount["name"]]
        if mount.get("subPath"):
            inside = source / mount["subPath"]
            if not inside.exists():
                inside.mkdir(parents=True)
                inside.chmod(source.stat().st_mode & 0o7777)
                os.chown(inside, -1, source.stat().st_gid)
            source = inside
        only_read = bool(mount.get("readOnly"))
        return bind(str(source), mount["mountPath"], read_only=only_read)

    def _make(self, pod: Obj, volume: Obj, group: int | None) -> Path:
        name = volume["name"]
        if host := volume.get("hostPath"):
            return _host_folder(name, host)
        if claim := volume.get("persistentVolumeClaim"):
            path = self._claims / pod["metadata"]["namespace"] / claim["claimName"]
            return _open_folder(path, group)
        if kind := volume.get("secret"):
            return self._files(pod, volume, {**kind, "name": kind["secretName"]}, group)
        if kind := volume.get("configMap"):
            return self._files(pod, volume, kind, group)
        in_memory = part(volume, "emptyDir").get("medium") == "Memory"
        return _open_folder((self._memory if in_memory else self.folder) / name, group)

    def _files(self, pod: Obj, volume: Obj, source: Obj, group: int | None) -> Path:
        """Write the data of a secret or config map as files."""
        kind = SECRETS if "secret" in volume else CONFIG_MAPS
        path = self.folder / volume["name"]
        try:
            data = data_of(self._store, kind.name, pod["metadata"]["namespace"], source["name"])
        except ApiError as error:
            if not source.get("optional"):
                raise VolumeError(_setup_failed(volume["name"], error.message)) from None
            data = {}
        path.mkdir(parents=True)
        for item in source.get("items") or [{"key": key, "path": key} for key in data]:
            if item["key"] not in data:
                said = "references non-existent secret key"
                raise VolumeError(_setup_failed(volume["name"], f"{said}: {item['key']}"))
            file = path / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[item["key"]])
            file.chmod(item.get("mode") or source.get("defaultMode") or 0o644)
            if group is not None:
                os.chown(file, -1, group)
                file.chmod(file.stat().st_mode & 0o777 | 0o440)
        return path


def data_of(store: Store, kind: str, namespace: str, name: str) -> dict[str, bytes]:
    """Return the data of the secret or config map; an ApiError when there is none."""
    if kind == CONFIG_MAPS.name:
        found = part(store.get(CONFIG_MAPS, namespace, name), "data")
        return {key: value.encode() for key, value in found.items()}
    found = part(store.get(SECRETS, namespace, name), "data")
    return {key: base64.b64decode(value) for key, value in found.items()}


def _setup_failed(volume: str, why: str) -> str:
    why = why.replace('secrets "', 'secret "').replace('configmaps "', 'configmap "')
    return f'MountVolume.SetUp failed for volume "{volume}" : {why}'


def _open_folder(path: Path, group: int | None) -> Path:
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o777)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o2777)
    return path


def _host_folder(name: str, host: Obj) -> Path:
    path = Path(host["path"])
    if host.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif not path.exists():
        raise VolumeError(_setup_failed(name, f"hostPath type check failed: {path} is not there"))
    return path
