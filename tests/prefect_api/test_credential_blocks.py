"""Credentials blocks of Prefect's integrations on a real server, as secrets of jobs.

The server knows their types and schemas by itself; prefect-aws, prefect-gcp, prefect-docker and
prefect-kubernetes are not installed.
"""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import BlockDocumentCreate

from prefect_bt.blocks import AwsKey, GcpKey, KubernetesSubstrate, RegistryLogin, TrainingImage
from prefect_bt.blocks.registry import RegistryAccess
from prefect_bt.credentials.secrets import resolve_secrets
from prefect_bt.credentials.weights_access import parse_google_secret, parse_s3_secret
from prefect_bt.errors import DefinitionError
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.prefect_api import client
from prefect_bt.prefect_api.client import SecretBlocks
from prefect_bt.registries import credentials
from prefect_bt.registries.reference import parse_reference

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.integration]

AWS = {
    "aws_access_key_id": "AKIA",
    "aws_secret_access_key": "planted-key",
    "aws_session_token": None,
    "region_name": "eu-west-1",
    "profile_name": None,
}
GOOGLE = {"type": "service_account", "client_email": "a@b", "private_key": "planted-pem"}
DOCKER = {"username": "team", "password": "planted:word", "registry_url": "ghcr.io"}

SaveBlock = Callable[[str, dict[str, Any]], str]


@pytest.fixture
def save_block(prefect_api: str) -> SaveBlock:
    """Store a document as the form of its type does; returns its name."""

    def save(slug: str, data: dict[str, Any], name: str = "") -> str:
        name = name or f"block-{uuid4().hex}"
        with get_client(sync_client=True) as direct:
            kind = direct.read_block_type_by_slug(slug)
            schema = direct.get_most_recent_block_schema_for_block_type(kind.id)
            assert schema
            document = BlockDocumentCreate(
                name=name, data=data, block_type_id=kind.id, block_schema_id=schema.id
            )
            direct.create_block_document(document)
        return name

    return save


def resolve(*names: str) -> dict[str, str]:
    return resolve_secrets(names, [SecretBlocks()])


def weights(source: str, secret: str) -> WeightsPlan:
    return WeightsPlan(source, "/w", "k1", secret=secret, auth=WeightsAuthPlan("CUSTOM_SECRET"))


def test_sources_of_weights_read_them(save_block: SaveBlock) -> None:
    aws = save_block("aws-credentials", AWS)
    google = save_block("gcp-credentials", {"service_account_info": GOOGLE, "project": "p"})
    found = resolve(aws, google)
    keys = parse_s3_secret(weights("s3://b", aws), found[aws])
    assert (keys.access_key_id, keys.secret_access_key) == ("AKIA", "planted-key")
    assert keys.region == "eu-west-1"
    assert json.loads(parse_google_secret(weights("gs://b", google), found[google])) == GOOGLE


def log_in(image: str, access: RegistryAccess) -> credentials.Login:
    planned = TrainingImage(base_image=image, registry_access=access).build().docker_auth
    assert planned is not None
    auth = planned.model_dump(mode="json")
    secrets = resolve(*credentials.list_login_secrets(auth))
    return credentials.resolve_login(parse_reference(image), auth, secrets)


def test_registries_read_them(save_block: SaveBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = save_block("docker-registry-credentials", DOCKER)
    login = log_in("ghcr.io/t/i", RegistryLogin(registry="ghcr.io", login_secret=docker))
    assert login.secrets[0] == "planted:word"

    google = save_block("gcp-credentials", {"service_account_info": json.dumps(GOOGLE)})
    login = log_in("eu-docker.pkg.dev/t/i", GcpKey(registry="eu-docker.pkg.dev", key_secret=google))
    assert json.loads(login.secrets[0]) == GOOGLE

    asked: list[tuple[Any, ...]] = []

    def request_ecr_password(identity: str, region: str, *keys: str) -> tuple[str, str, str]:
        asked.append((region, *keys))
        return "AWS", "a-password", identity

    monkeypatch.setattr(credentials, "request_ecr_password", request_ecr_password)
    aws = save_block("aws-credentials", {**AWS, "aws_session_token": "token"})
    host = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
    access = AwsKey(registry=host, access_key_secret=aws, secret_key_secret=aws)
    login = log_in(f"{host}/t/i", access)
    assert asked == [("eu-west-1", "AKIA", "planted-key", "token")]
    assert login.identity == f"the access key in the secret {aws!r}"


def test_the_kubernetes_substrate_reads_them(save_block: SaveBlock, prefect_api: str) -> None:
    """The form of Kubernetes Credentials refers to the document of a cluster config."""
    config = {"clusters": [{"name": "c"}], "users": [{"user": {"token": "planted-token"}}]}
    with get_client(sync_client=True) as direct:
        inner = save_block("kubernetes-cluster-config", {"config": config, "context_name": "prod"})
        document = direct.read_block_document_by_name(inner, "kubernetes-cluster-config")
    reference = {"$ref": {"block_document_id": str(document.id)}}
    name = save_block("kubernetes-credentials", {"cluster_config": reference})
    for given in (name, f"kubernetes-credentials/{name}"):
        settings = KubernetesSubstrate(credentials=given).cluster_settings()
        assert json.loads(settings.kubeconfig) == {**config, "current-context": "prod"}
        assert "planted-token" not in repr(settings)
    empty = save_block("kubernetes-credentials", {})
    with pytest.raises(DefinitionError, match="hold no kubeconfig"):
        KubernetesSubstrate(credentials=empty).cluster_settings()


def test_a_secret_block_wins_and_a_type_can_be_named(save_block: SaveBlock) -> None:
    name = save_block("aws-credentials", AWS)
    save_block("docker-registry-credentials", DOCKER, name)
    source = SecretBlocks()
    assert json.loads(source.find(name) or "")["aws_access_key_id"] == "AKIA"
    Secret.model_validate({"value": "v"}).save(name)
    assert source.find(name) == source.find(f"secret/{name}") == "v"
    assert source.find(f"docker-registry-credentials/{name}") == "team:planted:word"
    assert source.find(f"gcp-credentials/{name}") is None
    assert source.find(f"json/{name}") is None
    assert source.lookup_name("aws-credentials/a_b") == "Prefect block aws-credentials a_b or a-b"
    assert source.lookup_name("a_b").startswith("Prefect Secret block (or credentials block) a_b")


@pytest.mark.parametrize(
    ("slug", "data"),
    [
        ("aws-credentials", {"profile_name": "prod"}),
        ("aws-credentials", {**AWS, "assume_role_arn": "arn:aws:iam::1:role/r"}),
        ("gcp-credentials", {"service_account_file": "/etc/passwd"}),
    ],
)
def test_a_block_that_refers_to_the_machine_is_empty(save_block: SaveBlock, slug, data) -> None:
    """Its consumer names what it needs; no file or role of the machine is handed to a job."""
    assert resolve(name := save_block(slug, data)) == {name: "{}"}


def test_one_request_finds_it(save_block: SaveBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save_block("docker-registry-credentials", DOCKER)
    requests: list[str] = []
    original = client.SyncPrefectClient.request

    def request(self: Any, method: Any, path: Any, *args: Any, **given: Any) -> Any:
        requests.append(path)
        return original(self, method, path, *args, **given)

    monkeypatch.setattr(client.SyncPrefectClient, "request", request)
    assert SecretBlocks().find(name.upper().replace("-", "_")) == "team:planted:word"
    assert requests == ["/block_documents/filter"]
