"""The containers of one pod: how they are started, looked at, told of, killed and removed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from .containers import (
    Container,
    Waiting,
    environment,
    find_image,
    make_container,
    start_error,
    state_of,
)
from .engine import bind, errors
from .events import record_event
from .objects import timestamp
from .pod_status import write_status
from .resources import PODS, Obj, part, parts
from .volumes import Volumes

if TYPE_CHECKING:
    from .kubelet import Kubelet

AGAIN_SECONDS = 1.0


class PodContainers:
    def __init__(self, kubelet: Kubelet, pod: Obj) -> None:
        self._kubelet, self._client, self._store = kubelet, kubelet.client, kubelet.store
        self.first = pod
        """The pod as it was when it got its node."""
        meta = pod["metadata"]
        self.where: tuple[str, str] = (meta["namespace"], meta["name"])
        self._uid: str = meta["uid"]
        self._stem = f"{kubelet.name}-{meta['name']}-{self._uid[:8]}"
        self.inits = [Container(each) for each in parts(pod["spec"], "initContainers")]
        self.mains = [Container(each) for each in pod["spec"]["containers"]]
        self._volumes = Volumes(self._store, *kubelet.folders(self._uid))
        self._hosts = self._volumes.folder.parent / f"{self._uid}.hosts"
        self._holder, self._address, self._hostname = "", "", ""
        self._started = timestamp()

    def prepare(self) -> None:
        """Set up the volumes and the holder of the pod's network; VolumeError if that fails."""
        self._volumes.set_up(self.first)
        self._hosts.parent.mkdir(parents=True, exist_ok=True)
        self._hosts.write_text("127.0.0.1 localhost\n")
        name = self.first["metadata"]["name"]
        hostname = self.first["spec"].get("hostname") or name[:63]
        self._holder, self._address = self._kubelet.start_holder(self._stem, self._uid, hostname)
        self._hostname = hostname
        self.publish()

    def log(self, name: str, tail: int | None) -> bytes | None:
        """Return what the container printed; None when it has not been started."""
        found = next(each for each in self.all() if each.name == name)
        if not found.id:
            return None
        return self._client.logs(found.id, tail="all" if tail is None else tail)

    def waiting_reason(self, name: str) -> str:
        found = next(each for each in self.all() if each.name == name)
        state = part(found.state, "waiting")
        return state.get("reason", "ContainerCreating")

    def kill_silently(self) -> None:
        for container in self.all():
            if container.id:
                with contextlib.suppress(errors.APIError):
                    self._client.kill(container.id, "SIGKILL")

    def write_hosts(self, lines: str) -> None:
        """Write the names that the containers know into their /etc/hosts."""
        own = f"{self._address} {self._hostname}\n" if self._address else ""
        text = f"127.0.0.1 localhost\n{own}{lines}"
        with contextlib.suppress(FileNotFoundError):  # the pod is not set up yet, or gone
            if self._hosts.read_text() != text:
                with self._hosts.open("r+") as file:  # in place: containers have mounted it
                    file.write(text)
                    file.truncate()

    def all(self) -> list[Container]:
        return [*self.inits, *self.mains]

    def pod(self) -> Obj | None:
        """Return the pod, None when it is gone, or another one of its name is there."""
        found = self._store.find(PODS, *self.where)
        return found if found and found["metadata"]["uid"] == self._uid else None

    def start(self, container: Container) -> None:
        if time.monotonic() < container.tried + AGAIN_SECONDS:
            return
        container.tried = time.monotonic()
        try:
            container.id = self._create(container)
        except Waiting as why:
            self._hold(container, why)
            return
        except errors.APIError as error:
            self._hold(container, Waiting("CreateContainerError", str(error.explanation)))
            return
        try:
            self._client.start(container.id)
        except errors.APIError as error:
            container.state = start_error(error, timestamp(), container.id)
            self.event("Failed", f"Error: {error.explanation}", "Warning")
        else:
            self.event("Started", "Container started")
            self.refresh([container])
        self.publish()

    def _create(self, container: Container) -> str:
        pod = self.pod() or self.first
        hosts = bind(str(self._hosts), "/etc/hosts", read_only=True)
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
            mounts=[hosts, *self._volumes.mounts(container.spec)],
        )

    def _hold(self, container: Container, why: Waiting) -> None:
        """Note why the container waits; a second failed pull is a back-off."""
        reason, message = why.reason, why.message
        before = part(container.state, "waiting").get("reason")
        if reason == "ErrImagePull":
            self.event("Failed", f"Failed to pull image: {message}", "Warning")
            if before in ("ErrImagePull", "ImagePullBackOff"):
                image, reason = container.spec["image"], "ImagePullBackOff"
                message = f'Back-off pulling image "{image}": ErrImagePull: {message}'
        if reason == "ErrImageNeverPull":
            self.event(reason, message, "Warning")
        container.state = {"waiting": {"reason": reason, "message": message}}
        self.event("Failed", f"Error: {reason if 'Image' in reason else message}", "Warning")
        self.publish()

    def refresh(self, containers: list[Container]) -> None:
        """Look at the containers that are not known to have ended, and tell of changes."""
        changed = False
        for container in containers:
            if container.id and not container.ended:
                with contextlib.suppress(errors.NotFound):
                    state = state_of(self._client.inspect_container(container.id))
                    changed |= state != container.state
                    container.state = state
        if changed:
            self.publish()

    def give_up(self) -> None:
        """Note the end of those that never began, as a kubelet does that ends a pod."""
        for container in self.mains:
            if not container.ended:
                said = "The container could not be located when the pod was terminated"
                ended: Obj = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": said}
                container.state = {"terminated": {**ended, "startedAt": None, "finishedAt": None}}
        self.publish()

    def publish(self) -> None:
        def write(pod: Obj) -> None:
            lost = pod["spec"]["nodeName"] in self._kubelet.lost
            if pod["metadata"]["uid"] == self._uid and not lost:
                write_status(pod, self.inits, self.mains, self._address, self._started)

        self._store.mutate(PODS, *self.where, write)

    def event(self, reason: str, message: str, type: str = "Normal") -> None:
        record_event(self._store, "Pod", self.first, reason, message, type=type)

    def kill(self, signal: str) -> None:
        for container in self.all():
            if container.running:
                with contextlib.suppress(errors.APIError):
                    self._client.kill(container.id, signal)
                    if signal == "SIGKILL":
                        self._client.wait(container.id, timeout=30)
        if signal == "SIGKILL":
            self.refresh(self.all())

    def remove(self) -> None:
        """Remove what the pod has on the Engine and on this machine."""
        for id in [*(each.id for each in self.all()), self._holder]:
            if id:
                with contextlib.suppress(errors.APIError):
                    self._client.remove_container(id, force=True, v=True)
        self._hosts.unlink(missing_ok=True)
        self._volumes.remove()
