"""One pod on the Engine, from its containers' start until nothing of it is left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import docker

from .containers import (
    Container,
    Waiting,
    environment,
    find_image,
    make_container,
    mount_hosts,
    start_error,
    state_of,
)
from .events import record_event
from .objects import timestamp
from .pod_status import write_status
from .resources import PODS, Obj
from .volumes import VolumeError, Volumes

if TYPE_CHECKING:
    from .kubelet import Kubelet

PERIOD, AGAIN_SECONDS = 0.1, 1.0


class PodWorker:
    """Goes through the pod's life step by step; every step is asked again until it is done."""

    def __init__(self, kubelet: Kubelet, pod: Obj) -> None:
        self._kubelet, self._client, self._store = kubelet, kubelet.client, kubelet.store
        self._first, self.node = pod, pod["spec"]["nodeName"]
        meta = pod["metadata"]
        self._where = (meta["namespace"], meta["name"])
        self._uid = meta["uid"]
        self._stem = f"{kubelet.name}-{meta['name']}-{self._uid[:8]}"
        self._inits = [Container(each) for each in pod["spec"].get("initContainers") or []]
        self._mains = [Container(each) for each in pod["spec"]["containers"]]
        self._volumes = Volumes(self._store, *kubelet.folders(self._uid))
        self._hosts = self._volumes.folder.parent / f"{self._uid}.hosts"
        self._holder, self._address, self._started = "", "", timestamp()
        self._tried = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        steps = (self._prepare, self._run_inits, self._start_mains, self._watch, self._stay)
        try:
            self._publish()
            if all(self._finish(step) for step in steps):
                return
            self._terminate()
        finally:
            self._remove()

    def log(self, name: str, tail: int | None) -> bytes | None:
        """Return what the container printed; None when it has not been started."""
        found = next(each for each in self._all() if each.name == name)
        if not found.id:
            return None
        return self._client.logs(found.id, tail="all" if tail is None else tail)

    def waiting_reason(self, name: str) -> str:
        found = next(each for each in self._all() if each.name == name)
        state = (found.state or {}).get("waiting") or {}
        return state.get("reason", "ContainerCreating")

    @property
    def namespace(self) -> str:
        return self._where[0]

    def kill_containers(self) -> None:
        for container in self._all():
            if container.id:
                with contextlib.suppress(docker.errors.APIError):
                    self._client.kill(container.id, "SIGKILL")

    def write_hosts(self, lines: str) -> None:
        """Write the names that the containers know into their /etc/hosts."""
        own = f"{self._address} {self._hostname}\n" if self._address else ""
        text = f"127.0.0.1 localhost\n{own}{lines}"
        if self._hosts.exists() and self._hosts.read_text() != text:
            self._hosts.write_text(text)  # in place: containers have mounted this file

    @property
    def _hostname(self) -> str:
        return self._first["spec"].get("hostname") or self._first["metadata"]["name"][:63]

    def _all(self) -> list[Container]:
        return [*self._inits, *self._mains]

    def _pod(self) -> Obj | None:
        """Return the pod, None when it is gone, or another one of its name is there."""
        found = self._store.find(PODS, *self._where)
        return found if found and found["metadata"]["uid"] == self._uid else None

    def _finish(self, step: Callable[[], bool]) -> bool:
        """Repeat the step until it is done; False when the pod is to end before."""
        while not self._kubelet.ended.is_set():
            pod = self._pod()
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                if self.node not in self._kubelet.lost:
                    return False
            elif pod["status"].get("reason") == "Evicted" and step != self._stay:
                self._kill("SIGKILL")
                self._publish()
                return True
            elif self.node not in self._kubelet.lost and step():
                return True
            self._kubelet.ended.wait(PERIOD)
        return False

    def _prepare(self) -> bool:
        """Set up volumes and the holder of the pod's network."""
        if time.monotonic() < self._tried + AGAIN_SECONDS:
            return False
        self._tried = time.monotonic()
        try:
            self._volumes.set_up(self._first)
        except VolumeError as error:
            self._event("FailedMount", str(error), "Warning")
            return False
        self._hosts.parent.mkdir(parents=True, exist_ok=True)
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._holder, self._address = self._kubelet.start_holder(
            self._stem, self._uid, self._hostname
        )
        self._publish()
        return True

    def _run_inits(self) -> bool:
        for container in self._inits:
            self._refresh([container])
            if not container.ended:
                if not container.id:
                    self._start(container)
                return False
            if container.ended["exitCode"]:
                return True
        return True

    def _start_mains(self) -> bool:
        if any(each.ended and each.ended["exitCode"] for each in self._inits):
            return True
        waiting = [each for each in self._mains if not each.id]
        for container in waiting:
            self._start(container)
        self._refresh(self._mains)
        return all(each.id for each in self._mains)

    def _watch(self) -> bool:
        if any(each.ended and each.ended["exitCode"] for each in self._inits):
            return True
        self._refresh(self._mains)
        return all(each.ended for each in self._mains)

    def _stay(self) -> bool:
        """Wait for the pod's deletion: its logs are there until then."""
        return False

    def _start(self, container: Container) -> None:
        if time.monotonic() < container.tried + AGAIN_SECONDS:
            return
        container.tried = time.monotonic()
        try:
            container.id = self._create(container)
        except Waiting as why:
            self._hold(container, why)
            return
        except docker.errors.APIError as error:
            self._hold(container, Waiting("CreateContainerError", str(error.explanation)))
            return
        try:
            self._client.start(container.id)
        except docker.errors.APIError as error:
            container.state = start_error(error, timestamp(), container.id)
            self._event("Failed", f"Error: {error.explanation}", "Warning")
        else:
            self._event("Started", "Container started")
            self._refresh([container])
        self._publish()

    def _create(self, container: Container) -> str:
        pod = self._pod() or self._first
        image = find_image(self._client, self._store, pod, container.spec)
        container.image_id = image["Id"]
        return make_container(
            self._client,
            pod,
            container.spec,
            image,
            name=f"{self._stem}-{container.name}",
            labels=self._kubelet.labels(self._uid),
            holder=self._holder,
            env=environment(self._store, pod, container.spec, self._address),
            mounts=[mount_hosts(str(self._hosts)), *self._volumes.mounts(container.spec)],
        )

    def _hold(self, container: Container, why: Waiting) -> None:
        """Note why the container waits; a second failed pull is a back-off."""
        reason, message = why.reason, why.message
        before = ((container.state or {}).get("waiting") or {}).get("reason")
        if reason == "ErrImagePull":
            self._event("Failed", f"Failed to pull image: {message}", "Warning")
            if before in ("ErrImagePull", "ImagePullBackOff"):
                image, reason = container.spec["image"], "ImagePullBackOff"
                message = f'Back-off pulling image "{image}": ErrImagePull: {message}'
        if reason == "ErrImageNeverPull":
            self._event(reason, message, "Warning")
        container.state = {"waiting": {"reason": reason, "message": message}}
        self._event("Failed", f"Error: {reason if 'Image' in reason else message}", "Warning")
        self._publish()

    def _refresh(self, containers: list[Container]) -> None:
        """Look at the containers that are not known to have ended, and tell of changes."""
        changed = False
        for container in containers:
            if container.id and not container.ended:
                with contextlib.suppress(docker.errors.NotFound):
                    state = state_of(self._client.inspect_container(container.id))
                    changed |= state != container.state
                    container.state = state
        if changed:
            self._publish()

    def _publish(self) -> None:
        def write(pod: Obj) -> None:
            if pod["metadata"]["uid"] == self._uid:
                write_status(pod, self._inits, self._mains, self._address, self._started)

        self._store.mutate(PODS, *self._where, write)

    def _event(self, reason: str, message: str, type: str = "Normal") -> None:
        record_event(self._store, "Pod", self._first, reason, message, type=type)

    def _terminate(self) -> None:
        """End the containers within the grace that the pod has, and then the pod."""
        begin = time.monotonic()
        if self._pod() is not None:
            self._event("Killing", "Stopping containers")
            self._kill("SIGTERM")
        while (pod := self._pod()) is not None and any(each.running for each in self._all()):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            if self._kubelet.ended.wait(PERIOD) or time.monotonic() > begin + grace:
                break
            self._refresh(self._all())
        self._kill("SIGKILL")
        self._refresh(self._all())
        pod = self._pod()
        if pod is not None and not self._kubelet.ended.is_set():
            self._store.delete(PODS, *self._where, 0)

    def _kill(self, signal: str) -> None:
        for container in self._all():
            if container.running:
                with contextlib.suppress(docker.errors.APIError):
                    self._client.kill(container.id, signal)
                    if signal == "SIGKILL":
                        self._client.wait(container.id, timeout=30)
        if signal == "SIGKILL":
            self._refresh(self._all())

    def _remove(self) -> None:
        for id in [*(each.id for each in self._all()), self._holder]:
            if id:
                with contextlib.suppress(docker.errors.APIError):
                    self._client.remove_container(id, force=True, v=True)
        self._hosts.unlink(missing_ok=True)
        self._volumes.remove()
        self._kubelet.forget(self._uid)
