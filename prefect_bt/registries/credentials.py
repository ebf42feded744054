"""Resolve docker_auth and secrets to a user and password for one registry.

User and password are sent only in a header of the call to the Engine. Messages name the method and
the secrets, never a value or a part of one. The methods: docs/registries.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, cast

from pydantic import ValidationError

from prefect_bt.credentials.cloud_identity import exchange_google_token
from prefect_bt.definitions.image import DockerAuth, DockerAuthType
from prefect_bt.definitions.variables import SecretReference
from prefect_bt.errors import IdentityError, SecretError
from prefect_bt.registries.ecr import log_in_with_keys, log_in_with_role
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import (
    DOCKER_HUB,
    ImageReference,
    normalize_registry_host,
)

GOOGLE_KEY_USER: Final = "_json_key"
_HUB_ADDRESS: Final = "https://index.docker.io/v1/"
GOOGLE_TOKEN_USER: Final = "oauth2accesstoken"


@dataclass(frozen=True)
class Login:
    """`header` is X-Registry-Auth; `identity` is for sentences, `secrets` are never to be shown."""

    identity: str
    header: str = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


def list_login_secrets(auth: Mapping[str, object] | None) -> tuple[str, ...]:
    """Names of the secrets that a docker_auth refers to, sorted."""
    return tuple(sorted(_references(auth or {})))


def _references(value: object) -> set[str]:
    """A reference is what lies under a key that ends with `secret_ref`."""
    found = set[str]()
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, object]", value).items():
            if key.endswith("secret_ref") and isinstance(inner, Mapping):
                found.add(str(cast("Mapping[str, object]", inner).get("name", "")))
            else:
                found |= _references(inner)
    return found - {""}


def resolve_login(
    reference: ImageReference, auth: Mapping[str, object], secrets: Mapping[str, str]
) -> Login:
    """May ask AWS or Google. Trouble; SecretError for a secret that is not among `secrets`."""
    given = _parse_auth(auth)
    host = normalize_registry_host(given.registry)
    if host and host != reference.host.lower():
        raise PullError(
            PullErrorKind.CREDENTIALS,
            f"it is for {host}, and the image is at {reference.host}",
            next_step="Correct docker_auth.registry, or image.base_image: credentials are sent to "
            "no other registry.",
        )
    log_in = _LOGIN_METHODS[given.auth_method]
    try:
        return log_in(reference.host, given, secrets)
    except IdentityError as error:
        fault = PullErrorKind.CREDENTIALS if error.refused else PullErrorKind.NO_TOKEN
        raise PullError(fault, error.message, next_step=error.next_step) from None


def docker_configuration(
    reference: ImageReference, auth: Mapping[str, object], secrets: Mapping[str, str]
) -> str:
    """Return the login in the format of Docker's config.json, for a pull secret.

    Errors are those of `resolve_login`.
    """
    login = resolve_login(reference, auth, secrets)
    known = json.loads(base64.urlsafe_b64decode(login.header))
    pair = base64.b64encode(f"{known['username']}:{known['password']}".encode()).decode()
    host = _HUB_ADDRESS if reference.host == DOCKER_HUB else reference.host
    entry = {"username": known["username"], "password": known["password"], "auth": pair}
    return json.dumps({"auths": {host: entry}})


def find_docker_login(engine: Any, host: str) -> Login | None:
    """What `docker login` left for this user; None when there is nothing, or it cannot be read."""
    auth: Any = import_module("docker.auth")
    faults: Any = import_module("docker.errors")
    try:
        header = auth.get_config_header(engine, host)
    except (faults.DockerException, OSError, ValueError):
        return None
    if not header:
        return None
    text = header.decode() if isinstance(header, bytes) else str(header)
    return Login(f"this machine's docker login for {host}", text, _decode_secrets(text))


def _decode_secrets(header: str) -> tuple[str, ...]:
    try:
        known = json.loads(base64.urlsafe_b64decode(header))
        names = ("password", "Password", "identitytoken", "IdentityToken", "Secret")
        return tuple(str(known[name]) for name in names if known.get(name))
    except (ValueError, AttributeError, TypeError):
        return (header,)


def _parse_auth(auth: Mapping[str, object]) -> DockerAuth:
    try:
        return DockerAuth.model_validate_json(json.dumps(auth))
    except (ValidationError, TypeError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "no JSON"
        raise PullError(PullErrorKind.CREDENTIALS, said) from None


def _log_in_with_secret(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> Login:
    assert auth.registry_secret_docker_auth
    reference = auth.registry_secret_docker_auth.secret_ref
    text = _value(reference, secrets).strip()
    username, colon, password = text.partition(":")
    if not colon or not username or not password or not _is_single_line(text):
        raise _malformed_secret_error(reference, "is no login", "username:password, on one line")
    return _login(host, username, password, f"the login in the secret {reference.name!r}")


def _log_in_with_google_key(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> Login:
    assert auth.gcp_service_account_json_docker_auth
    reference = auth.gcp_service_account_json_docker_auth.service_account_json_secret_ref
    text = _value(reference, secrets)
    says = (
        'the JSON key of a service account: "type": "service_account", client_email and '
        "private_key among its keys"
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise _malformed_secret_error(reference, "is no JSON", says) from None
    known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    filled = all(
        isinstance(known.get(k), str) and known[k] for k in ("client_email", "private_key")
    )
    if known.get("type") != "service_account" or not filled:
        raise _malformed_secret_error(reference, "is no service account", says)
    return _login(
        host, GOOGLE_KEY_USER, text.strip(), f"the service account in the secret {reference.name!r}"
    )


def _log_in_with_google_identity(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> Login:
    given = auth.gcp_oidc_docker_auth
    assert given
    token = exchange_google_token(given.service_account, given.workload_identity_provider)
    whose = f"the service account {given.service_account}"
    return _login(host, GOOGLE_TOKEN_USER, token.token, whose)


def _log_in_with_aws_key(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> Login:
    given = auth.aws_iam_docker_auth
    assert given
    references = (given.access_key_secret_ref, given.secret_access_key_secret_ref)
    wanted = {
        "aws_access_key_id": "an access key's id",
        "aws_secret_access_key": "a secret access key",
    }
    values: list[str] = []
    token = ""
    for reference, (name, what) in zip(references, wanted.items(), strict=True):
        value = _value(reference, secrets).strip()
        if value.startswith("{"):
            keys = _parse_aws_keys(value)
            value, token = keys.get(name, ""), keys.get("aws_session_token", "")
        if not _is_single_line(value) or " " in value:
            raise _malformed_secret_error(reference, f"is not {what}", f"{what} alone, on one line")
        values.append(value)
    names = " and ".join(dict.fromkeys(repr(reference.name) for reference in references))
    whose = f"the access key in the secret{'s' * (references[0] != references[1])} {names}"
    user, password = log_in_with_keys(host, *values, session_token=token, identity=whose)
    return _login(host, user, password, whose)


def _parse_aws_keys(text: str) -> dict[str, str]:
    """Return the entries of a JSON document of keys, such as an AWS Credentials block gives."""
    try:
        found = cast("dict[str, Any]", json.loads(text))
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _log_in_with_aws_role(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> Login:
    given = auth.aws_assume_role_docker_auth or auth.aws_oidc_docker_auth
    assert given
    oidc = auth.auth_method is DockerAuthType.AWS_OIDC
    user, password = log_in_with_role(host, given.role_arn, given.region, web_identity=oidc)
    return _login(host, user, password, f"the role {given.role_arn}")


_LOGIN_METHODS: Final[
    dict[DockerAuthType, Callable[[str, DockerAuth, Mapping[str, str]], Login]]
] = {
    DockerAuthType.REGISTRY_SECRET: _log_in_with_secret,
    DockerAuthType.GCP_SERVICE_ACCOUNT_JSON: _log_in_with_google_key,
    DockerAuthType.GCP_OIDC: _log_in_with_google_identity,
    DockerAuthType.AWS_IAM: _log_in_with_aws_key,
    DockerAuthType.AWS_OIDC: _log_in_with_aws_role,
    DockerAuthType.AWS_ASSUME_ROLE: _log_in_with_aws_role,
}


def _login(host: str, username: str, password: str, identity: str) -> Login:
    known = {"username": username, "password": password, "serveraddress": host}
    header = base64.urlsafe_b64encode(json.dumps(known).encode()).decode()
    return Login(identity, header, (password, header))


def _value(reference: SecretReference, secrets: Mapping[str, str]) -> str:
    try:
        return secrets[reference.name]
    except KeyError:
        raise SecretError([reference.name], ["the job's secrets"]) from None


def _is_single_line(text: str) -> bool:
    return bool(text) and text.isprintable()


def _malformed_secret_error(reference: SecretReference, secret: str, problem: str) -> PullError:
    return PullError(
        PullErrorKind.CREDENTIALS,
        f"the secret {reference.name!r} {secret}",
        next_step=f"It is to hold {problem}.",
    )
