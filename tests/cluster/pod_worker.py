"""One pod on the Engine, from its containers' start until nothing of it is left."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from .pod_containers import AGAIN_SECONDS, PodContainers
from .resources import PODS, Obj
from .volumes import VolumeError

if TYPE_CHECKING:
    from .kubelet import Kubelet

PERIOD = 0.1


class PodWorker:
    """Goes through the pod's life step by step; every step is asked again until it is done."""

    def __init__(self, kubelet: Kubelet, pod: Obj) -> None:
        self._kubelet, self.node = kubelet, pod["spec"]["nodeName"]
        self.containers = PodContainers(kubelet, pod)
        self.namespace: str = pod["metadata"]["namespace"]
        self._uid: str = pod["metadata"]["uid"]
        self._tried = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        steps = (self._prepare, self._run_inits, self._start_mains, self._watch, self._stay)
        try:
            self.containers.publish()
            if not all(self._finish(step) for step in steps):
                self._terminate()
        except Exception:
            self._kubelet.faults.append(traceback.format_exc())
        finally:
            self.containers.remove()
            self._kubelet.forget(self._uid)

    def _finish(self, step: Callable[[], bool]) -> bool:
        """Repeat the step until it is done; False when the pod is to end before."""
        while not self._kubelet.ended.is_set():
            pod = self.containers.pod()
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                if self.node not in self._kubelet.lost:
                    return False
            elif pod["status"].get("reason") == "Evicted" and step != self._stay:
                self.containers.kill("SIGKILL")
                self.containers.publish()
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
            self.containers.prepare()
        except VolumeError as error:
            self.containers.event("FailedMount", str(error), "Warning")
            return False
        return True

    def _run_inits(self) -> bool:
        for container in self.containers.inits:
            self.containers.refresh([container])
            if not container.ended:
                if not container.id:
                    self.containers.start(container)
                return False
            if container.ended["exitCode"]:
                return True
        return True

    def _init_failed(self) -> bool:
        return any(each.ended and each.ended["exitCode"] for each in self.containers.inits)

    def _start_mains(self) -> bool:
        if self._init_failed():
            return True
        waiting = [each for each in self.containers.mains if not each.id]
        for container in waiting:
            self.containers.start(container)
        self.containers.refresh(self.containers.mains)
        return all(each.id for each in self.containers.mains)

    def _watch(self) -> bool:
        if self._init_failed():
            return True
        self.containers.refresh(self.containers.mains)
        return all(each.ended for each in self.containers.mains)

    def _stay(self) -> bool:
        """Wait for the pod's deletion: its logs are there until then."""
        return False

    def _terminate(self) -> None:
        """End the containers within the grace that the pod has, and then the pod."""
        begin = time.monotonic()
        if self.containers.pod() is not None:
            self.containers.event("Killing", "Stopping containers")
            self.containers.kill("SIGTERM")
        while any(each.running for each in self.containers.all()):
            pod = self.containers.pod()
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0) if pod else 0
            if self._kubelet.ended.wait(PERIOD) or time.monotonic() > begin + grace:
                break
            self.containers.refresh(self.containers.all())
        self.containers.kill("SIGKILL")
        self.containers.give_up()
        if self.containers.pod() is not None and not self._kubelet.ended.is_set():
            self._kubelet.store.delete(PODS, *self.containers.where, 0)
