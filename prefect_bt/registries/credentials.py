"""Resolve docker_auth and secrets to the login of one registry.

Credentials are sent only in a header of calls to the Engine. Messages name the method and the
secrets, never a part of a value. docs/registries.md describes the methods.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from pydantic import ValidationError

from prefect_bt.credentials import cloud_identity
from prefect_bt.definitions.environment_variables import SecretReference
from prefect_bt.definitions.image import AWSIAMDockerAuth, DockerAuth
from prefect_bt.errors import IdentityError, SecretError
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import DOCKER_HUB, ImageReference, normalize_registry_host

_NOT_SECRET: Final = {"username", "email", "serveraddress"}
_Account = tuple[str, str, str]
"""User, password, and a description of the identity for messages."""
_AWS_KEYS: Final = {
    "aws_access_key_id": "an access key's id",
    "aws_secret_access_key": "a secret access key",
}
_ECR_HOST: Final = re.compile(
    r"(?:\d{12}|vpce-[a-z0-9-]+)\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(?:(?:vpce\.)?amazonaws\.com(?:\.cn)?|on\.aws)"
)


@dataclass(frozen=True)
class Login:
    """The login of a registry, as Docker's AuthConfig. `identity` describes it in messages."""

    identity: str
    config: Mapping[str, Any] = field(repr=False)

    @property
    def header(self) -> str:
        """Return the value of the header X-Registry-Auth; empty without credentials."""
        text = json.dumps(dict(self.config)) if self.config else ""
        return base64.urlsafe_b64encode(text.encode()).decode()

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that no message may show."""
        values = [str(v) for k, v in self.config.items() if v and k.lower() not in _NOT_SECRET]
        return (*values, self.header)


ANONYMOUS: Final = Login("", {})


def list_login_secrets(auth: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the secrets that a docker_auth references, sorted."""
    methods: list[Any] = [method for method in (auth or {}).values() if isinstance(method, dict)]
    fields = [field for method in methods for field in method.items()]
    return tuple(sorted({ref["name"] for key, ref in fields if key.endswith("secret_ref")}))


def resolve_login(
    reference: ImageReference, auth: Mapping[str, object] | None, secrets: Mapping[str, str]
) -> Login:
    """Return the login; without `auth`, this user's `docker login`. PullError, SecretError."""
    if auth is None:
        return _find_docker_login(reference.host)
    try:
        given = DockerAuth.model_validate_json(json.dumps(auth))
    except ValidationError as error:
        raise PullError(PullErrorKind.CREDENTIALS, error.errors()[0]["msg"]) from None
    host = normalize_registry_host(given.registry)
    if host and host != reference.host.lower():
        message = f"it is for {host}, and the image is at {reference.host}"
        hint = "Correct docker_auth.registry or image.base_image: they must name one registry."
        raise PullError(PullErrorKind.CREDENTIALS, message, next_step=hint)
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
    """Return `resolve_login`'s login as a config.json of Docker, for a Kubernetes pull secret."""
    config = resolve_login(reference, auth, secrets).config
    user, password = config["username"], config["password"]
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    host = "https://index.docker.io/v1/" if reference.host == DOCKER_HUB else reference.host
    return json.dumps({"auths": {host: {"username": user, "password": password, "auth": pair}}})


def _find_docker_login(host: str) -> Login:
    """Return this user's `docker login` for a registry; ANONYMOUS if none can be read."""
    auth: Any = import_module("docker.auth")
    try:
        config = auth.resolve_authconfig(auth.load_config(), host)
    except (auth.errors.DockerException, OSError, ValueError):
        return ANONYMOUS
    return Login(f"this machine's docker login for {host}", config) if config else ANONYMOUS


def _log_in(host: str, auth: DockerAuth, secrets: Mapping[str, str]) -> _Account:
    if login := auth.registry_secret_docker_auth:
        return _parse_login(login.secret_ref, secrets)
    if key := auth.gcp_service_account_json_docker_auth:
        return _parse_google_key(key.service_account_json_secret_ref, secrets)
    if google := auth.gcp_oidc_docker_auth:
        account, provider = google.service_account, google.workload_identity_provider
        token = cloud_identity.exchange_google_token(account, provider).token
        return "oauth2accesstoken", token, f"the service account {account}"
    ecr = _ECR_HOST.fullmatch(host)
    if ecr is None:
        hint = (
            "Amazon's are <account>.dkr.ecr.<region>.amazonaws.com; REGISTRY_SECRET is for others."
        )
        raise IdentityError(f"{host} is not a registry of Amazon.", next_step=hint)
    region = ecr["region"]  # a password is valid only in the registry's own region
    if access_key := auth.aws_iam_docker_auth:
        keys, identity = _parse_aws_key(access_key, secrets)
        return request_ecr_password(identity, region, *keys)
    if role := auth.aws_oidc_docker_auth:
        found = cloud_identity.assume_role_with_web_identity(role.role_arn, region)
    else:
        role = auth.aws_assume_role_docker_auth
        assert role
        found = cloud_identity.assume_role(role.role_arn, region)
    keys = (found.access_key_id, found.secret_access_key, found.token)
    return request_ecr_password(f"the role {role.role_arn}", region, *keys)


def _parse_login(reference: SecretReference, secrets: Mapping[str, str]) -> _Account:
    text = _get_secret(reference, secrets)
    username, _, password = text.partition(":")
    if not username or not password or not text.isprintable():
        raise _secret_error(reference, "is no login", "username:password, on one line")
    return username, password, f"the login in the secret {reference.name!r}"


def _parse_google_key(reference: SecretReference, secrets: Mapping[str, str]) -> _Account:
    text = _get_secret(reference, secrets)
    key = _parse_json_texts(text)
    complete = key.get("client_email") and key.get("private_key")
    if key.get("type") != "service_account" or not complete:
        expected = "a service account's JSON key, with type, client_email and private_key"
        raise _secret_error(reference, "is not a service account", expected)
    return "_json_key", text, f"the service account in the secret {reference.name!r}"


def _parse_aws_key(
    auth: AWSIAMDockerAuth, secrets: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    """Return an access key's id, secret and token, and a description of it."""
    references = (auth.access_key_secret_ref, auth.secret_access_key_secret_ref)
    keys, token = list[str](), ""
    for reference, (name, what) in zip(references, _AWS_KEYS.items(), strict=True):
        text = _get_secret(reference, secrets)
        fields = _parse_json_texts(text) if text.startswith("{") else {name: text}
        value, token = fields.get(name, ""), fields.get("aws_session_token", "")
        if not value or not value.isprintable() or " " in value:
            raise _secret_error(reference, f"is not {what}", f"{what} alone, on one line")
        keys.append(value)
    names = " and ".join(dict.fromkeys(repr(reference.name) for reference in references))
    plural = "s" * (references[0] != references[1])
    return (*keys, token), f"the access key in the secret{plural} {names}"


def request_ecr_password(identity: str, region: str, *keys: str) -> _Account:
    """Request a password, valid for twelve hours, with a key's id, secret and token or ""."""
    boto3: Any = import_module("boto3.session")
    errors: Any = import_module("botocore.exceptions")
    try:
        session = boto3.Session(*(key or None for key in keys), region_name=region)
        client = session.client("ecr", config=cloud_identity.make_aws_config())
        token = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(token).decode().partition(":")
    except (errors.ClientError, errors.BotoCoreError, ValueError, LookupError) as error:
        code, refused = cloud_identity.aws_error_code(error), isinstance(error, errors.ClientError)
        hint = (
            "Check the key or role, and that it may ecr:GetAuthorizationToken, ecr:BatchGetImage "
            "and ecr:GetDownloadUrlForLayer."
        )
        what = f"Amazon's registry in {region} gave no password to {identity} ({code})."
        raise IdentityError(what, next_step=hint, refused=refused) from None
    return user, password, identity


def _parse_json_texts(text: str) -> dict[str, str]:
    """Return the text values of a JSON object; none if `text` is not one."""
    with suppress(ValueError, AttributeError):
        return {name: value for name, value in json.loads(text).items() if isinstance(value, str)}
    return {}


def _get_secret(reference: SecretReference, secrets: Mapping[str, str]) -> str:
    if reference.name not in secrets:
        raise SecretError([reference.name], ["the job's secrets"])
    return secrets[reference.name].strip()


def _secret_error(reference: SecretReference, problem: str, expected: str) -> PullError:
    message, hint = f"the secret {reference.name!r} {problem}", f"It must hold {expected}."
    return PullError(PullErrorKind.CREDENTIALS, message, next_step=hint)
