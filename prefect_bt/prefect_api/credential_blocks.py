"""Convert credentials blocks to the text that a secret for the same use contains.

These are Prefect's Secret blocks, and the credentials blocks of prefect-aws, prefect-gcp,
prefect-docker and prefect-kubernetes. Those packages are not imported. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_AWS_KEYS: Final = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
}


def format_secret(data: Mapping[str, Any]) -> str | None:
    """Return the value as text; JSON if it is no text, None if there is no value."""
    # Not Secret.load(...).get(): that reads a value like "0123" as JSON and changes it.
    value = data.get("value")
    return value if value is None or isinstance(value, str) else json.dumps(value)


def format_aws_credentials(data: Mapping[str, Any]) -> str:
    """Return the access key as JSON, as sources of weights and registries read it.

    Without keys where the block assumes a role: they are not the credentials it stands for.

    >>> format_aws_credentials({"aws_access_key_id": "AKIA", "region_name": "eu-west-1"})
    '{"aws_access_key_id": "AKIA", "aws_region": "eu-west-1"}'
    """
    names = {} if data.get("assume_role_arn") else _AWS_KEYS
    return json.dumps({ours: data[name] for name, ours in names.items() if data.get(name)})


def format_gcp_credentials(data: Mapping[str, Any]) -> str:
    """Return the JSON key of the service account; an empty object where a file has it."""
    return format_secret({"value": data.get("service_account_info") or {}}) or ""


def format_docker_credentials(data: Mapping[str, Any]) -> str:
    """Return `username:password`."""
    return f"{data.get('username', '')}:{data.get('password', '')}"


def format_kubernetes_credentials(data: Mapping[str, Any]) -> str:
    """Return the kubeconfig as JSON, with the block's context as its current one.

    An empty object where the block has none and refers to the machine's.

    >>> format_kubernetes_credentials(
    ...     {"cluster_config": {"config": {"clusters": []}, "context_name": "prod"}}
    ... )
    '{"clusters": [], "current-context": "prod"}'
    """
    cluster: dict[str, Any] = data.get("cluster_config") or {}
    context = cluster.get("context_name")
    chosen = {"current-context": context} if context else {}
    return json.dumps({**(cluster.get("config") or {}), **chosen} if cluster else {})


FORMATS: Final[dict[str, Callable[[Mapping[str, Any]], str | None]]] = {
    "secret": format_secret,
    "aws-credentials": format_aws_credentials,
    "gcp-credentials": format_gcp_credentials,
    "docker-registry-credentials": format_docker_credentials,
    "kubernetes-credentials": format_kubernetes_credentials,
}
"""Block type -> its text; an earlier type is preferred where several have a block of one name."""
