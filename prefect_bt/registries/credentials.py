"""Resolve docker_auth and secrets to the login of one registry.

Credentials are sent only in a header of calls to the Engine. Messages name the method and the
secrets, never a part of a value. docs/registries.md describes the methods.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, cast

from pydantic import ValidationError

from prefect_bt.credentials.cloud_identity import exchange_google_token
from prefect_bt.definitions.image import AWSIAMDockerAuth, DockerAuth
from prefect_bt.definitions.variables import SecretReference
from prefect_bt.errors import IdentityError, SecretError
from prefect_bt.registries.ecr import request_key_password, request_role_password
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import DOCKER_HUB, ImageReference, normalize_registry_host

GOOGLE_KEY_USER: Final = "_json_key"
GOOGLE_TOKEN_USER: Final = "oauth2accesstoken"
_HUB_ADDRESS: Final = "https://index.docker.io/v1/"
_NOT_SECRET: Final = {"username", "email", "serveraddress"}
_AWS_KEYS: Final = {
    "aws_access_key_id": "an access key's id",
    "aws_secret_access_key": "a secret access key",
}


@dataclass(frozen=True)
class Login:
    """The login of a registry, as Docker's AuthConfig. `identity` describes it in messages."""

    identity: str
    config: Mapping[str, Any] = field(repr=False)

    @property
    def header(self) -> str:
        """Return the value of the header X-Registry-Auth; empty without credentials."""
        if not self.config:
            return ""
        return base64.urlsafe_b64encode(json.dumps(dict(self.config)).encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that no message may show."""
        values = [str(v) for k, v in self.config.items() if v and k.lower() not in _NOT_SECRET]
        return (*values, self.header)


ANONYMOUS: Final = Login("", {})


def list_login_secrets(auth: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the secrets that a docker_auth references, sorted."""
    methods: list[Any] = [method for method in (auth or {}).values() if isinstance(method, dict)]
    references = {
        str(reference["name"])
        for method in methods
        for key, reference in method.items()
        if key.endswith("secret_ref")
    }
    return tuple(sorted(references))


def resolve_login(
    reference: ImageReference, auth: Mapping[str, object], secrets: Mapping[str, str]
) -> Login:
    """Return the login, with a request to AWS or Google if the method needs one.

    PullError; SecretError for a secret that is not in `secrets`.
    """
    given = _parse_auth(auth)
    host = normalize_registry_host(given.registry)
    if host and host != reference.host.lower():
        raise PullError(
            PullErrorKind.CREDENTIALS,
            f"it is for {host}, and the image is at {reference.host}",
            next_step="Correct docker_auth.registry or image.base_image: credentials are sent to "
            "no other registry.",
        )
    try:
        user, password, identity = _log_in(reference.host, given, secrets)
    except IdentityError as error:
        kind = PullErrorKind.CREDENTIALS if error.refused else PullErrorKind.UNREACHABLE
        raise PullError(kind, error.message, next_step=error.next_step) from None
    config = {"username": user, "password": password, "serveraddress": reference.host}
    return Login(identity, config)


def docker_configuration(
    reference: ImageReference, auth: Mapping[str, object], secrets: Mapping[str, str]
) -> str:
    """Return the login in the format of Docker's config.json, for a Kubernetes pull secret.

    Errors are those of `resolve_login`.
    """
    config = resolve_login(reference, auth, secrets).config
    user, password = config["username"], config["password"]
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    host = _HUB_ADDRESS if reference.host == DOCKER_HUB else reference.host
    return json.dumps({"auths": {host: {"username": user, "password": password, "auth": pair}}})


def find_docker_login(host: str) -> Login:
    """Return this user's `docker login` for a registry; ANONYMOUS if none can be read."""
    auth: Any = import_module("docker.auth")
    errors: Any = import_module("docker.errors")
    try:
        config = auth.resolve_authconfig(auth.load_config(), host)
    except (errors.DockerException, OSError, ValueError):
        return ANONYMOUS
    return Login(f"this machine's docker login for {host}", config) if config else ANONYMOUS


def _parse_auth(auth: Mapping[str, object]) -> DockerAuth:
    try:
        return DockerAuth.model_validate_json(json.dumps(auth))
    except (ValidationError, TypeError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "not JSON"
        raise PullError(PullErrorKind.CREDENTIALS, problem) from None


def _log_in(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> tuple[str, str, str]:
    """Return user, password and a description of the identity. `auth` has one method's field."""
    if login := auth.registry_secret_docker_auth:
        return _parse_login(login.secret_ref, secrets)
    if key := auth.gcp_service_account_json_docker_auth:
        return _parse_google_key(key.service_account_json_secret_ref, secrets)
    if google := auth.gcp_oidc_docker_auth:
        token = exchange_google_token(google.service_account, google.workload_identity_provider)
        return GOOGLE_TOKEN_USER, token.token, f"the service account {google.service_account}"
    if keys := auth.aws_iam_docker_auth:
        return _log_in_with_aws_key(host, keys, secrets)
    role = auth.aws_assume_role_docker_auth or auth.aws_oidc_docker_auth
    assert role
    is_oidc = auth.aws_oidc_docker_auth is not None
    user, password = request_role_password(host, role.role_arn, role.region, is_oidc)
    return user, password, f"the role {role.role_arn}"


def _parse_login(reference: SecretReference, secrets: Mapping[str, str]) -> tuple[str, str, str]:
    text = _get_secret(reference, secrets).strip()
    username, _, password = text.partition(":")
    if not username or not password or not text.isprintable():
        raise _secret_error(reference, "is no login", "username:password, on one line")
    return username, password, f"the login in the secret {reference.name!r}"


def _parse_google_key(
    reference: SecretReference, secrets: Mapping[str, str]
) -> tuple[str, str, str]:
    text = _get_secret(reference, secrets).strip()
    key = _parse_json_texts(text)
    complete = key.get("client_email") and key.get("private_key")
    if key.get("type") != "service_account" or not complete:
        raise _secret_error(
            reference,
            "is no service account",
            "a service account's JSON key, with type, client_email and private_key",
        )
    return GOOGLE_KEY_USER, text, f"the service account in the secret {reference.name!r}"


def _log_in_with_aws_key(
    host: str, auth: AWSIAMDockerAuth, secrets: Mapping[str, str]
) -> tuple[str, str, str]:
    references = (auth.access_key_secret_ref, auth.secret_access_key_secret_ref)
    keys: dict[str, str] = {}
    for reference, (name, what) in zip(references, _AWS_KEYS.items(), strict=True):
        text = _get_secret(reference, secrets).strip()
        fields = _parse_json_texts(text) if text.startswith("{") else {name: text}
        value = fields.get(name, "")
        if not value or not value.isprintable() or " " in value:
            raise _secret_error(reference, f"is not {what}", f"{what} alone, on one line")
        keys |= {name: value, "aws_session_token": fields.get("aws_session_token", "")}
    names = " and ".join(dict.fromkeys(repr(reference.name) for reference in references))
    identity = f"the access key in the secret{'s' * (references[0] != references[1])} {names}"
    return *request_key_password(host, identity, keys), identity


def _parse_json_texts(text: str) -> dict[str, str]:
    """Return the text values of a JSON object; none if `text` is not one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    values = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _get_secret(reference: SecretReference, secrets: Mapping[str, str]) -> str:
    try:
        return secrets[reference.name]
    except KeyError:
        raise SecretError([reference.name], ["the job's secrets"]) from None


def _secret_error(reference: SecretReference, problem: str, expected: str) -> PullError:
    return PullError(
        PullErrorKind.CREDENTIALS,
        f"the secret {reference.name!r} {problem}",
        next_step=f"It must hold {expected}.",
    )
