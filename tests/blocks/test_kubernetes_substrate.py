"""The block Kubernetes Substrate: its fields become the cluster's settings of a run."""

import json
from typing import Any, ClassVar

import pytest
from prefect.blocks.core import Block
from pydantic import ValidationError

from prefect_bt.blocks import KubernetesSubstrate, LocalSubstrate
from prefect_bt.credentials.secrets import InMemorySecrets
from prefect_bt.errors import DefinitionError, SecretError
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.jobs.starting import launcher
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.settings import Settings, use_settings
from prefect_bt.substrates.kubernetes.substrate import KubernetesSubstrate as Cluster

KUBECONFIG = {
    "current-context": "prod",
    "clusters": [{"name": "c", "cluster": {"server": "https://planted-host:6443"}}],
    "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "planted-token"}}],
}
YAML = """
clusters:
- name: c
  cluster: {server: "https://planted-host:6443"}
users:
- name: u
  user: {token: planted-token}
"""


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Values that the default sources of secrets find."""
    values: dict[str, str] = {}
    sources = (InMemorySecrets(values),)
    monkeypatch.setattr(launcher, "default_secret_sources", lambda: sources)
    return values


def run_settings(block: KubernetesSubstrate) -> Settings:
    return JobRequest(definition={}, substrate=block).settings()


def test_its_fields_are_those_of_the_settings_and_two_more() -> None:
    ours = set(KubernetesSubstrate.model_fields) - set(ClusterSettings.model_fields)
    assert ours == {"grace_seconds", "credentials"}
    assert KubernetesSubstrate().cluster_settings() == ClusterSettings()


def test_a_run_has_the_settings_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", "/state/of/the/machine")
    given: dict[str, Any] = {
        "namespace": "training",
        "agent_image": "r/agent:1",
        "node_selector": {"pool": "a"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "run_as_user": None,
        "patience_seconds": 60.0,
    }
    settings = run_settings(KubernetesSubstrate(grace_seconds=7, **given))
    assert (settings.substrate, settings.grace) == ("kubernetes", 7)
    assert str(settings.state_dir) == "/state/of/the/machine"
    assert settings.kubernetes == ClusterSettings(**given)
    options = settings.substrate_options("kubernetes", store="s3://b")
    assert options == {"cluster": ClusterSettings(**given), "store": "s3://b"}


def test_a_default_of_the_block_wins_over_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the processes that the run starts, which read the machine's variables."""
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_NAMESPACE", "of-the-machine")
    monkeypatch.setenv("PREFECT_BT_KUBERNETES", json.dumps({"run_as_user": 1000}))
    assert Settings().kubernetes == ClusterSettings(namespace="of-the-machine", run_as_user=1000)
    with use_settings(run_settings(KubernetesSubstrate())):
        assert Settings().kubernetes == ClusterSettings()


def test_it_builds_the_substrate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_STORE", "s3://settings")
    built = KubernetesSubstrate(namespace="training").build()
    assert isinstance(built, Cluster)
    assert (built.settings.namespace, built.store_url) == ("training", "s3://settings")
    other = KubernetesSubstrate().build("s3://other")
    assert isinstance(other, Cluster)
    assert other.store_url == "s3://other"


@pytest.mark.parametrize("text", [json.dumps(KUBECONFIG), YAML], ids=["json", "yaml"])
def test_credentials_are_read_for_the_run_and_not_stored(
    secrets: dict[str, str], text: str
) -> None:
    secrets["prod"] = text
    block = KubernetesSubstrate(credentials="prod")
    settings = run_settings(block)
    assert json.loads(settings.kubernetes.kubeconfig)["users"][0]["user"]["token"]
    request = JobRequest(definition={}, substrate=block)
    request.settings()
    shown = [repr(settings), repr(block), block.model_dump_json(), repr(request)]
    shown += [json.dumps(request.fingerprint), str(vars(block)), repr(vars(request))]
    assert not [text for text in shown if "planted" in text]


@pytest.mark.parametrize("text", ["{}", "user:planted", "[planted", "clusters: []\nx: planted"])
def test_an_invalid_kubeconfig_is_refused_unshown(secrets: dict[str, str], text: str) -> None:
    secrets["prod"] = text
    with pytest.raises(DefinitionError, match="'prod' hold no kubeconfig") as caught:
        KubernetesSubstrate(credentials="prod").cluster_settings()
    assert "planted" not in str(caught.value)
    with pytest.raises(SecretError, match="'gone' not found"):
        KubernetesSubstrate(credentials="gone").cluster_settings()


class KubernetesCredentials(Block):
    """Stands for the block of prefect-kubernetes, which is not installed."""

    _block_type_name: ClassVar[str | None] = "Kubernetes Credentials"


def test_a_loaded_credentials_block_is_stored_by_its_name() -> None:
    block = KubernetesCredentials()
    with pytest.raises(ValidationError, match="save the credentials block first"):
        KubernetesSubstrate.model_validate({"credentials": block})
    block._block_document_name = "prod"
    named = KubernetesSubstrate.model_validate({"credentials": block})
    assert named.credentials == "kubernetes-credentials/prod"


@pytest.mark.parametrize("text", ['{"clusters": []}', "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfigs_text_is_refused_in_the_form(text: str) -> None:
    with pytest.raises(ValidationError, match="name it in credentials"):
        KubernetesSubstrate(kubeconfig=text)


@pytest.mark.parametrize(
    ("slug", "kind"),
    [
        (KubernetesSubstrate.get_block_type_slug(), KubernetesSubstrate),
        (LocalSubstrate.get_block_type_slug(), LocalSubstrate),
        (None, LocalSubstrate),
    ],
)
def test_a_stored_parameter_names_its_block(slug: str | None, kind: type) -> None:
    given = {"block_type_slug": slug} if slug else {}
    request = JobRequest.from_run_parameters({"substrate": {**given, "grace_seconds": 3}})
    assert type(request.substrate) is kind
    assert request.settings().grace == 3


def test_a_substrate_name_uses_settings_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_BT_KUBERNETES_NAMESPACE", "training")
    settings = JobRequest(definition={}, substrate="kubernetes").settings()
    assert (settings.substrate, settings.kubernetes.namespace) == ("kubernetes", "training")
