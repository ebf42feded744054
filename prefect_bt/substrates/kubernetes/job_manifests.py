"""Objects of one attempt, from its gang plan: a Job, a Service and a Secret. Pure."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from prefect_bt import codec
from prefect_bt.host.nodes import pod_layout
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.planning.plan import GangPlan
from prefect_bt.substrates.kubernetes.json_merge import Json, merge
from prefect_bt.substrates.kubernetes.names import (
    AGENT,
    CACHE_CLAIM,
    LABEL_QUEUE,
    MANAGED_BY,
    gang_name,
    render_labels,
)
from prefect_bt.substrates.kubernetes.pod_manifest import PULL_SECRET_KEY, render_pod

KEPT_SECONDS: Final = 7 * 86400
"""Seconds for which the cluster keeps a Job that has ended and was not removed."""


@dataclass(frozen=True)
class GangSecrets:
    """Contents of the attempt's Secret besides the plan. All values are secret.

    `values` by reference name; `environment` are variables of the agent, such as the store's
    credentials; `registry_login` is a Docker configuration with the login of the job's image.
    """

    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    registry_login: str = field(default="", repr=False)


def render_job(gang: GangPlan, settings: ClusterSettings, *, pulls_with_login: bool) -> Json:
    """Return the Job, suspended: its pods start after the other objects are created.

    A pod is never replaced: the next attempt is another Job. The Job's Failed condition names an
    exit code or a disruption.
    """
    labels = render_labels(gang)
    queue = {LABEL_QUEUE: settings.queue_name} if settings.queue_name else {}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": gang_name(gang.job_id, gang.attempt),
            "labels": {**labels, **queue},
        },
        "spec": {
            "suspend": True,
            "completions": len(gang.nodes),
            "parallelism": len(gang.nodes),
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": AGENT,
                            "operator": "NotIn",
                            "values": [0],
                        },
                    },
                ]
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": render_pod(gang, settings, pulls_with_login=pulls_with_login),
            },
        },
    }
    return merge(job, settings.job_patch)


def render_service(gang: GangPlan, owner: Json) -> Json:
    """Return the headless Service that gives each pod of the gang a DNS name, ready or not."""
    labels = render_labels(gang)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned_metadata(gang, owner),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
        },
    }


def render_secret(gang: GangPlan, secrets: GangSecrets, owner: Json) -> Json:
    """Return the Secret of the attempt, which also holds the login of its image."""
    texts = {
        pod_layout.PLAN_FILE: codec.dumps(gang.nodes[0]),
        pod_layout.WEIGHTS_FILE: json.dumps([codec.encode(one) for one in gang.weights]),
        pod_layout.SECRETS_FILE: json.dumps(dict(secrets.values)),
        pod_layout.ENVIRONMENT_FILE: json.dumps(dict(secrets.environment)),
    }
    if secrets.registry_login:
        texts[PULL_SECRET_KEY] = secrets.registry_login
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson" if secrets.registry_login else "Opaque",
        "immutable": True,
        "metadata": _owned_metadata(gang, owner),
        "data": {name: b64encode(text.encode()).decode() for name, text in texts.items()},
    }


def render_cache_claim(settings: ClusterSettings) -> Json:
    """Return the volume claim for a cache with a storage class. All jobs share it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CACHE_CLAIM, "labels": {MANAGED_BY: "prefect-bt"}},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": settings.cache_storage_class,
            "resources": {"requests": {"storage": settings.cache_size}},
        },
    }


def _owned_metadata(gang: GangPlan, owner: Json) -> Json:
    """Return the metadata of an object that the Job owns and shares its name with."""
    return {
        "name": owner["metadata"]["name"],
        "labels": render_labels(gang),
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ],
    }
