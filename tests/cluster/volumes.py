"""The volumes of a pod, which are folders of this machine, and their mounts in containers."""

from __future__ import annotations

import base64
import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from .resources import SECRETS, Obj, part, parts, place
from .store import Store

MEMORY = Path("/dev/shm")
_types: Any = import_module("docker.types")


def bind(source: Path, target: str, *, read_only: bool = False) -> Any:
    """Return the mount of a folder or file of this machine."""
    return _types.Mount(target, str(source), type="bind", read_only=read_only)


class Volumes:
    """Creates a pod's volumes in `folder`, those in memory in `memory`."""

    def __init__(self, store: Store, folder: Path, memory: Path) -> None:
        self._store, self._folder, self._memory = store, folder, memory
        self._paths: dict[str, Path] = {}

    def set_up(self, pod: Obj) -> None:
        """Create the volumes that do not exist yet. ApiError if there is no such secret."""
        group = part(pod["spec"], "securityContext").get("fsGroup")
        for volume in parts(pod["spec"], "volumes"):
            if volume["name"] not in self._paths:
                self._paths[volume["name"]] = self._make(place(pod)[0], volume, group)

    def mounts(self, container: Obj) -> list[Any]:
        found: list[Any] = []
        for mount in parts(container, "volumeMounts"):
            volume = self._paths[mount["name"]]
            source = volume / mount.get("subPath", "")
            if not source.exists():
                source.mkdir(parents=True)
                source.chmod(volume.stat().st_mode & 0o7777)
                os.chown(source, -1, volume.stat().st_gid)
            read_only = bool(mount.get("readOnly"))
            found.append(bind(source, mount["mountPath"], read_only=read_only))
        return found

    def remove(self) -> None:
        for folder in (self._folder, self._memory):
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, namespace: str, volume: Obj, group: int | None) -> Path:
        name = volume["name"]
        if secret := volume.get("secret"):
            return self._write_secret(namespace, name, secret, group)
        path = (self._memory if "medium" in part(volume, "emptyDir") else self._folder) / name
        path.mkdir(parents=True)
        path.chmod(0o777)
        if group is not None:
            os.chown(path, -1, group)
            path.chmod(0o2777)
        return path

    def _write_secret(self, namespace: str, name: str, source: Obj, group: int | None) -> Path:
        secret = self._store.get(SECRETS, namespace, source["secretName"])
        path = self._folder / name
        path.mkdir(parents=True)
        for key, value in part(secret, "data").items():
            file = path / key
            file.write_bytes(base64.b64decode(value))
            file.chmod(source.get("defaultMode") or 0o644)
            if group is not None:
                os.chown(file, -1, group)
                file.chmod(file.stat().st_mode & 0o777 | 0o440)
        return path
