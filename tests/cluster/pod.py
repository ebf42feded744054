"""One pod on the Engine, from the start of its containers until all of them are removed."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from typing import TYPE_CHECKING

from .api_errors import ApiError
from .containers import (
    Container,
    ended_state,
    errors,
    find_image,
    inspect,
    make_container,
    write_status,
)
from .resources import PODS, Obj, parts, place
from .store import is_deleted
from .volumes import Volumes

if TYPE_CHECKING:
    from .kubelet import Kubelet

PERIOD = 0.1
AGAIN_SECONDS = 1.0


class PodWorker:
    """A thread that looks at the pod and its containers each PERIOD, and takes the next step."""

    def __init__(self, kubelet: Kubelet, pod: Obj) -> None:
        self._kubelet, self._client, self._store = kubelet, kubelet.client, kubelet.store
        self._first, self.node = pod, pod["spec"]["nodeName"]
        """The pod as it was when it got its node."""
        self._place = place(pod)
        self._name = self._place[1]
        self._uid: str = pod["metadata"]["uid"]
        self._stem = f"{kubelet.name}-{self._name}-{self._uid[:8]}"
        self._inits = [Container(each) for each in parts(pod["spec"], "initContainers")]
        self._mains = [Container(each) for each in pod["spec"]["containers"]]
        self._all = [*self._inits, *self._mains]
        self._volumes = Volumes(self._store, *kubelet.folders(self._uid))
        self._hostname: str = pod["spec"].get("hostname") or self._name[:63]
        self._holder, self._address = "", ""
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._publish()
            while not self._kubelet.ended.wait(PERIOD):
                if self.node in self._kubelet.lost:
                    break
                pod = self._pod()
                if pod is None or is_deleted(pod):
                    self._terminate()
                    break
                self._go_on()
        except Exception:
            self._kubelet.faults.append(traceback.format_exc())
        finally:
            self._remove()
            self._kubelet.workers.pop(self._uid, None)

    def _go_on(self) -> None:
        """Set up volumes and network, run the init containers in turn, then start the others."""
        if not self._holder:
            self._prepare()
            return
        self._refresh()
        for container in self._inits:
            if not container.ended:
                self._start(container)
                return
            if container.failed:
                return
        for container in self._mains:
            self._start(container)

    def _prepare(self) -> None:
        try:
            self._volumes.set_up(self._first)
        except ApiError:
            return  # its Job and the secret are being deleted
        made = self._kubelet.start_holder(self._stem, self._first, self._hostname)
        self._holder, self._address = made
        self._publish()

    def _start(self, container: Container) -> None:
        if container.id or time.monotonic() < container.tried + AGAIN_SECONDS:
            return
        container.tried = time.monotonic()
        name = container.spec["image"]
        try:
            image = find_image(self._client, name)
        except errors.DockerException as error:
            said = f'failed to pull and unpack image "{name}": {error}'
            container.state = {"waiting": {"reason": "ErrImagePull", "message": said}}
            self._publish()
            return
        container.id = make_container(
            self._client,
            self._pod() or self._first,
            container.spec,
            image,
            name=f"{self._stem}-{container.name}",
            labels=self._kubelet.labels(self._uid),
            holder=self._holder,
            mounts=self._volumes.mounts(container.spec),
        )
        self._client.start(container.id)
        self._refresh()

    def _refresh(self) -> None:
        """Read the states of the containers from the Engine; publish them if one has changed."""
        before = [container.state for container in self._all]
        for container in self._all:
            if container.id and not container.ended:
                inspect(self._client, container)
        if before != [container.state for container in self._all]:
            self._publish()

    def _terminate(self) -> None:
        """End the containers within the pod's grace, then remove the pod from the API."""
        begin = time.monotonic()
        if self._pod() is not None:
            self._kill("SIGTERM")
        while any(each.running for each in self._all):
            pod = self._pod()
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0) if pod else 0
            if self._kubelet.ended.wait(PERIOD) or time.monotonic() > begin + grace:
                break
            self._refresh()
        self._kill("SIGKILL")
        self._refresh()
        for container in self._mains:
            if not container.ended:
                said = "The container could not be located when the pod was terminated"
                unknown = ended_state(137, "ContainerStatusUnknown", message=said)
                container.state = unknown
        self._publish()
        if self._pod() is not None and not self._kubelet.ended.is_set():
            self._store.delete(PODS, *self._place, 0)

    def _kill(self, signal: str) -> None:
        for container in self._all:
            if container.running:
                with contextlib.suppress(errors.APIError):
                    self._client.kill(container.id, signal)
                    if signal == "SIGKILL":
                        self._client.wait(container.id, timeout=30)

    def _remove(self) -> None:
        """Remove the pod's containers and volumes."""
        for id in filter(None, [*(each.id for each in self._all), self._holder]):
            with contextlib.suppress(errors.DockerException, OSError):  # Kubelet.close tries again
                self._client.remove_container(id, force=True, v=True)
        self._volumes.remove()

    def _pod(self) -> Obj | None:
        """Return the pod; None if it is gone, also if another pod has its name."""
        found = self._store.find(PODS, *self._place)
        return found if found and found["metadata"]["uid"] == self._uid else None

    def _publish(self) -> None:
        def write(pod: Obj) -> None:
            if pod["metadata"]["uid"] == self._uid and self.node not in self._kubelet.lost:
                write_status(pod, self._inits, self._mains, self._address)

        self._store.mutate(PODS, *self._place, write)
