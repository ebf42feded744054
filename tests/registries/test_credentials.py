"""What each secret is to look like, and that nothing of it is told."""

from __future__ import annotations

import base64
import json
import traceback

import pytest

from prefect_bt.definitions import (
    AWSIAMDockerAuth,
    DockerAuth,
    DockerAuthType,
    GCPServiceAccountJSONDockerAuth,
    RegistrySecretDockerAuth,
    SecretReference,
)
from prefect_bt.errors import SecretError
from prefect_bt.registries.credentials import (
    Login,
    docker_configuration,
    list_login_secrets,
    resolve_login,
)
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import parse_reference

PLANTED = "planted-value"
KEY = {"type": "service_account", "client_email": "a@b", "private_key": PLANTED}


def secret(name: str) -> SecretReference:
    return SecretReference(name=name)


def as_plan(auth: DockerAuth) -> dict[str, object]:
    """As planning writes it into ImagePlan.auth."""
    return auth.model_dump(mode="json")


LOGIN = as_plan(
    DockerAuth(
        auth_method=DockerAuthType.REGISTRY_SECRET,
        registry="https://ghcr.io",
        registry_secret_docker_auth=RegistrySecretDockerAuth(secret_ref=secret("ghcr")),
    )
)
GOOGLE = as_plan(
    DockerAuth(
        auth_method=DockerAuthType.GCP_SERVICE_ACCOUNT_JSON,
        registry="us-docker.pkg.dev/project",
        gcp_service_account_json_docker_auth=GCPServiceAccountJSONDockerAuth(
            service_account_json_secret_ref=secret("gcp")
        ),
    )
)
AMAZON = as_plan(
    DockerAuth(
        auth_method=DockerAuthType.AWS_IAM,
        registry="",
        aws_iam_docker_auth=AWSIAMDockerAuth(
            access_key_secret_ref=secret("key-id"), secret_access_key_secret_ref=secret("key")
        ),
    )
)


def opened(image: str, auth: dict[str, object], **secrets: str) -> Login:
    return resolve_login(parse_reference(image), auth, secrets)


def header(login: Login) -> dict[str, str]:
    return json.loads(base64.urlsafe_b64decode(login.header))


def refused(image: str, auth: dict[str, object], **secrets: str) -> PullError:
    with pytest.raises(PullError) as caught:
        opened(image, auth, **secrets)
    told = "".join(traceback.format_exception(caught.value))
    assert PLANTED not in told + caught.value.message + caught.value.next_step
    assert caught.value.kind is PullErrorKind.CREDENTIALS
    return caught.value


def test_a_password_may_hold_colons() -> None:
    login = opened("ghcr.io/team/train", LOGIN, ghcr=f"someone:{PLANTED}:with:colons\n")
    assert header(login) == {
        "username": "someone",
        "password": f"{PLANTED}:with:colons",
        "serveraddress": "ghcr.io",
    }
    assert PLANTED not in repr(login)
    assert login.header not in repr(login)
    assert login.identity == "the login in the secret 'ghcr'"


@pytest.mark.parametrize(
    "text", ["", PLANTED, f":{PLANTED}", f"{PLANTED}:", f"a:{PLANTED}\nb", f"a:{PLANTED}\x00"]
)
def test_invalid_logins(text: str) -> None:
    trouble = refused("ghcr.io/team/train", LOGIN, ghcr=text)
    assert trouble.message == "the secret 'ghcr' is no login"
    assert "username:password" in trouble.next_step


def test_a_google_key_is_the_password_as_it_is() -> None:
    text = json.dumps(KEY)
    login = opened("us-docker.pkg.dev/project/r/train:1", GOOGLE, gcp=f"{text}\n")
    assert header(login)["username"] == "_json_key"
    assert header(login)["password"] == text
    assert login.identity == "the service account in the secret 'gcp'"


@pytest.mark.parametrize(
    "text",
    [
        PLANTED,
        f'["{PLANTED}"]',
        json.dumps({**KEY, "type": PLANTED}),
        json.dumps({**KEY, "private_key": ""}),
        json.dumps({"type": "service_account", PLANTED: "x"}),
    ],
)
def test_invalid_google_keys(text: str) -> None:
    trouble = refused("us-docker.pkg.dev/project/r/train:1", GOOGLE, gcp=text)
    assert "the secret 'gcp' is no" in trouble.message
    assert "private_key" in trouble.next_step


def test_invalid_amazon_keys() -> None:
    host = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train"
    trouble = refused(host, AMAZON, **{"key-id": f"a b {PLANTED}", "key": PLANTED})
    assert trouble.message == "the secret 'key-id' is not an access key's id"
    trouble = refused(host, AMAZON, **{"key-id": "AKIA", "key": f"{PLANTED}\n{PLANTED}"})
    assert trouble.message == "the secret 'key' is not a secret access key"
    trouble = refused("ghcr.io/team/train", AMAZON, **{"key-id": "AKIA", "key": PLANTED})
    assert "ghcr.io is not a registry of Amazon" in trouble.message
    assert "<account>.dkr.ecr.<region>.amazonaws.com" in trouble.next_step


@pytest.mark.parametrize("image", ["ghcr.io.evil.example/team/train", "team/train", "ghcr.io:1/x"])
def test_a_login_is_for_its_own_registry(image: str) -> None:
    trouble = refused(image, LOGIN, ghcr=f"someone:{PLANTED}")
    assert "it is for ghcr.io, and the image is at" in trouble.message


def test_a_secret_that_was_not_handed_over() -> None:
    with pytest.raises(SecretError) as caught:
        opened("ghcr.io/team/train", LOGIN)
    assert caught.value.names == ("ghcr",)


def test_an_auth_that_is_none() -> None:
    assert "must be given" in refused("x", {"auth_method": "AWS_IAM", "registry": ""}).message
    refused("x", {"auth_method": "NO_SUCH"})
    refused("x", {})


def test_the_secrets_that_are_needed() -> None:
    assert list_login_secrets(LOGIN) == ("ghcr",)
    assert list_login_secrets(GOOGLE) == ("gcp",)
    assert list_login_secrets(AMAZON) == ("key", "key-id")
    assert list_login_secrets(None) == ()


@pytest.mark.parametrize(
    ("image", "registry", "entry"),
    [
        ("ghcr.io/team/train:1", "ghcr.io", "ghcr.io"),
        ("team/train", "docker.io", "https://index.docker.io/v1/"),
        ("localhost:5000/train", "localhost:5000", "localhost:5000"),
    ],
)
def test_a_login_as_docker_keeps_it(image: str, registry: str, entry: str) -> None:
    reference = parse_reference(image)
    auth = {**LOGIN, "registry": registry}
    text = docker_configuration(reference, auth, {"ghcr": f"me:{PLANTED}:ü\n"})
    [(host, known)] = json.loads(text)["auths"].items()
    assert (host, known["username"], known["password"]) == (entry, "me", f"{PLANTED}:ü")
    assert base64.b64decode(known["auth"]).decode() == f"me:{PLANTED}:ü"


def test_a_key_of_google_as_docker_keeps_it() -> None:
    reference = parse_reference("us-docker.pkg.dev/project/repo/train:1")
    [(host, known)] = json.loads(docker_configuration(reference, GOOGLE, {"gcp": json.dumps(KEY)}))[
        "auths"
    ].items()
    assert (host, known["username"]) == ("us-docker.pkg.dev", "_json_key")
    assert json.loads(known["password"]) == KEY


def test_no_login_is_made_for_another_registry() -> None:
    with pytest.raises(PullError) as caught:
        docker_configuration(parse_reference("quay.io/a/b"), LOGIN, {"ghcr": f"me:{PLANTED}"})
    assert "it is for ghcr.io" in caught.value.message
