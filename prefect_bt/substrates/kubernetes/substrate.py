"""Substrate that runs nodes as pods of an Indexed Job, with their state in the job's store."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final

from prefect_bt.credentials.store_access import forwarded_variables
from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError, SubstrateError
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.node_objects import GangObjects, GangRecord
from prefect_bt.ledger.records import Cause
from prefect_bt.object_keys import job_index_key, job_nodes_prefix
from prefect_bt.object_store import is_local_url, open_store
from prefect_bt.planning.plan import GangPlan, ImagePlan
from prefect_bt.registries.credentials import docker_configuration
from prefect_bt.registries.pull_errors import PullError
from prefect_bt.registries.reference import parse_reference
from prefect_bt.settings import process_environment
from prefect_bt.substrates.checks.cluster import check_cluster
from prefect_bt.substrates.kubernetes.client import (
    SUBSTRATE_NAME,
    ClusterClient,
    ClusterError,
    store_error,
)
from prefect_bt.substrates.kubernetes.gang_status import KubernetesGang
from prefect_bt.substrates.kubernetes.job_manifests import (
    GangSecrets,
    render_cache_claim,
    render_job,
    render_secret,
    render_service,
)
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.names import gang_name, host_name
from prefect_bt.substrates.kubernetes.node_handle import KubernetesNodeHandle
from prefect_bt.substrates.kubernetes.pod_manifest import agent_user
from prefect_bt.substrates.protocol import Capacity, CheckResult, Enforcement, PreparedImage

_REFUSED: Final = range(400, 500)
"""HTTP status codes of requests that the API server refused, so that they had no effect."""
_STORE_FAILURE: Final = "The store of the nodes' state does not answer"
UNBOUNDED: Final = 1 << 60
"""Capacity of a cluster in plans: only its scheduler knows the real capacity."""


class KubernetesSubstrate:
    """Runs gangs in one namespace of a cluster. `store`: the URL of the jobs' store."""

    name = SUBSTRATE_NAME
    supports_images = True

    def __init__(self, settings: ClusterSettings, store: str) -> None:
        self.settings, self.store_url = settings, store
        self.client = ClusterClient(settings)
        self._clients: dict[tuple[str, str], ClusterClient] = {}
        self._projects: dict[str, str] = {}
        self._gangs: dict[tuple[str, int], KubernetesGang] = {}

    @cached_property
    def store(self) -> Any:
        return open_store(self.store_url)

    def capacity(self) -> Capacity:
        limits = self.settings.enforce_limits
        return Capacity(
            cpus=UNBOUNDED,
            memory=UNBOUNDED,
            gpus=UNBOUNDED,
            disk=UNBOUNDED,
            enforcement=Enforcement.LIMITS if limits else Enforcement.REQUESTS,
            is_machine=False,
            store_problem=_find_store_problem(self.settings, self.store_url),
        )

    def leader_address(self, job_id: str, attempt: int) -> str:
        return host_name(job_id, attempt, 0)

    def warm_up(self) -> None:
        self.client.connect_in_background()

    def check_access(self) -> Iterator[CheckResult]:
        return check_cluster(self.client, self.settings)

    def prepare_image(self, image: ImagePlan, **given: object) -> PreparedImage:
        """Do nothing: the machines of the cluster pull the image."""
        _ = given
        return PreparedImage(image.reference)

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> list[KubernetesNodeHandle]:
        """Create a suspended Job, then its Secret and Service, then start it. SubstrateError."""
        given = self._collect_secrets(gang, secrets)
        self._end_earlier_attempts(gang)
        made = self._record(gang)
        try:
            owner = self._create_job(gang, given, made.job)
        except ClusterError as error:
            if error.status in _REFUSED:
                # This launch created nothing: a Job with that name belongs to another launch.
                with suppress(StoreError):
                    made.objects.delete()
            else:
                _remove_failed_launch(made, error)
            raise
        try:
            made.watch.list_pods()  # fail now if the user may not list pods
            self._complete(gang, given, made.job, owner)
        except BaseException as error:
            _remove_failed_launch(made, error)
            raise
        self._gangs[gang.job_id, gang.attempt] = made
        return [KubernetesNodeHandle(made, gang.attempt, node.rank) for node in gang.nodes]

    def list_nodes(self, job_id: str) -> Sequence[KubernetesNodeHandle]:
        """Return the nodes of the records in the store. SubstrateError."""
        try:
            attempts = self._list_attempts(job_id)
            gangs = [(attempt, self._open_gang(job_id, attempt)) for attempt in attempts]
        except StoreError as error:
            raise store_error(error, _STORE_FAILURE) from error
        return [
            KubernetesNodeHandle(gang, attempt, rank)
            for attempt, gang in gangs
            if gang is not None
            for rank in range(gang.record.size)
        ]

    # -- launching --------------------------------------------------------------------------

    def _end_earlier_attempts(self, gang: GangPlan) -> None:
        """Delete the Jobs and pods of earlier attempts. SubstrateError."""
        earlier = {handle.attempt: handle.gang for handle in self.list_nodes(gang.job_id)}
        for attempt in sorted(earlier):
            if attempt < gang.attempt:
                earlier[attempt].job.end()

    def _record(self, gang: GangPlan) -> KubernetesGang:
        """Record the place of the gang in the store before objects are created. SubstrateError."""
        record = GangRecord(
            gang_name(gang.job_id, gang.attempt),
            self.client.namespace,
            self.client.context,
            self.client.server,
            len(gang.nodes),
            time.time(),
        )
        objects = GangObjects.of_attempt(self.store, gang.project_id, gang.job_id, gang.attempt)
        try:
            objects.create_record(record)
        except ObjectExists:
            raise _already_launched_error(gang) from None
        except StoreError as error:
            raise store_error(error, _STORE_FAILURE) from error
        return self._make_gang(self.client, objects, record)

    def _make_gang(
        self, client: ClusterClient, objects: GangObjects, record: GangRecord
    ) -> KubernetesGang:
        return KubernetesGang(
            JobObjects(client, record.namespace, record.name),
            objects,
            record,
            patience=self.settings.patience_seconds,
            queue=self.settings.queue_name,
        )

    def _create_job(self, gang: GangPlan, secrets: GangSecrets, job: JobObjects) -> Json:
        """Create the Job, suspended. ClusterError."""
        if self.settings.cache_storage_class and not self.settings.cache_claim:
            self._ensure_cache_claim(job)
        pulls_with_login = bool(secrets.registry_login)
        return job.create(render_job(gang, self.settings, pulls_with_login=pulls_with_login))

    def _complete(self, gang: GangPlan, secrets: GangSecrets, job: JobObjects, owner: Json) -> None:
        """Create the objects that the Job owns, then start it. ClusterError."""
        job.create_object(render_secret(gang, secrets, owner))
        job.create_object(render_service(gang, owner))
        if not self.settings.queue_name:  # else Kueue starts it
            job.start()

    def _ensure_cache_claim(self, job: JobObjects) -> None:
        try:
            job.create_object(render_cache_claim(self.settings))
        except ClusterError as error:
            # A quota is checked before the name: the claim may be there, and count in it.
            if error.status != HTTPStatus.CONFLICT and error.cause != Cause.QUOTA_EXCEEDED:
                raise

    def _collect_secrets(self, gang: GangPlan, secrets: Mapping[str, str]) -> GangSecrets:
        """Return the secrets that the agents need, and the login of the job's image."""
        named = set(gang.nodes[0].secret_environment.values())
        named |= {source.secret for source in gang.weights if source.secret}
        image = gang.nodes[0].image
        login = ""
        if image.auth:
            try:
                login = docker_configuration(parse_reference(image.reference), image.auth, secrets)
            except PullError as error:
                raise _login_error(image, error) from error
        forwards = self.settings.forward_credentials
        return GangSecrets(
            {name: secrets[name] for name in sorted(named)},
            forwarded_variables(self.store_url, process_environment()) if forwards else {},
            login,
        )

    # -- finding ----------------------------------------------------------------------------

    def _list_attempts(self, job_id: str) -> list[int]:
        project_id = self._find_project(job_id)
        if project_id is None:
            return []
        prefix = job_nodes_prefix(project_id, job_id)
        places = [
            info.key.removeprefix(f"{prefix}/").partition("/") for info in self.store.list(prefix)
        ]
        return sorted(int(attempt) for attempt, _, name in places if name == "gang.json")

    def _find_project(self, job_id: str) -> str | None:
        if job_id not in self._projects:
            with suppress(ObjectNotFound):
                known = json.loads(self.store.get(job_index_key(job_id)))
                self._projects[job_id] = str(known["project_id"])
        return self._projects.get(job_id)

    def _open_gang(self, job_id: str, attempt: int) -> KubernetesGang | None:
        known = self._gangs.get((job_id, attempt))
        if known is not None:
            return known
        project_id = self._projects[job_id]
        objects = GangObjects.of_attempt(self.store, project_id, job_id, attempt)
        record = objects.read_record()
        if record is None:
            return None
        opened = self._make_gang(self._client_of(record), objects, record)
        self._gangs[job_id, attempt] = opened
        return opened

    def _client_of(self, record: GangRecord) -> ClusterClient:
        """Return the client of the gang's cluster. It connects at its first use."""
        place = record.context, record.server
        if place not in self._clients:
            settings = self.settings.model_copy(update={"context": record.context})
            self._clients[place] = ClusterClient(settings, server=record.server)
        return self._clients[place]


def _remove_failed_launch(made: KubernetesGang, error: BaseException) -> None:
    """Remove the objects of a gang that could not be launched."""
    try:
        made.remove()
    except SubstrateError as trouble:
        error.add_note(str(trouble))


def _find_store_problem(settings: ClusterSettings, store: str) -> str:
    """Return why pods cannot use a store in a folder, and what to change; "" if they can."""
    if not is_local_url(store):
        return ""
    if not settings.store_claim:
        return (
            f"The store {store} is a folder of this machine, which pods do not reach. Use a bucket "
            "(PREFECT_BT_STORE=s3://bucket/prefix), or a folder that all machines share, and name "
            "its claim in store_claim of the Kubernetes Substrate block."
        )
    user, agent = os.getuid(), agent_user(settings)
    if user == agent:
        return ""
    return (
        f"The store {store} is a folder that this process writes as user {user}, and the agents in "
        f"the pods as user {agent}. Use a bucket, or "
        + (
            f"set run_as_user to {user} in the Kubernetes Substrate block."
            if user
            else "push as a user other than root, with run_as_user set to that user's id."
        )
    )


def create_substrate(cluster: ClusterSettings, store: str) -> KubernetesSubstrate:
    """Return the substrate, for the table of substrates."""
    return KubernetesSubstrate(cluster, store)


def _already_launched_error(gang: GangPlan) -> SubstrateError:
    return SubstrateError(
        f"Attempt {gang.attempt} of job {gang.job_id} was launched before.",
        substrate=SUBSTRATE_NAME,
        rank=0,
        next_step="Give the next attempt a new number.",
    )


def _login_error(image: ImagePlan, error: PullError) -> SubstrateError:
    return SubstrateError(
        f"docker_auth does not give a login for {image.reference}: {error.message}.",
        substrate=SUBSTRATE_NAME,
        next_step=error.next_step or "Correct image.docker_auth.",
        cause=Cause.REGISTRY_REFUSED,
    )
