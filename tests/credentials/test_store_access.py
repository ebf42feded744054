"""Which variables give a pod access to the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.credentials.store_access import forwarded_variables

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture(autouse=True)
def no_machine_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """boto3 finds nothing but what a test writes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "PREFECT_BT_R2_ENDPOINT",
        "PREFECT_BT_STALL_SECONDS",
        "HTTPS_PROXY",
        "no_proxy",
    ],
)
def test_what_a_store_takes_is_forwarded(name: str) -> None:
    assert forwarded_variables("s3://b", {**KEYS, name: "x"}) == {**KEYS, name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "AWS_PROFILE",
        "MY_AWS_REGION",
        "AWS_REGION_X",
        "PREFECT_API_KEY",
        "PREFECT_BT_SECRET_HF",
        "PREFECT_BT_STORE",
        "KUBECONFIG",
        "WANDB_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)
def test_nothing_else_is(name: str) -> None:
    assert forwarded_variables("s3://b", {**KEYS, name: "x"}) == KEYS


@pytest.mark.parametrize("store", ["s3://b/p", "r2://b", "cw://b"])
def test_keys_of_a_profile_are_read(tmp_path: Path, store: str) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=id\naws_secret_access_key=key\naws_session_token=token\n"
    )
    (tmp_path / "config").write_text("[default]\nregion=eu-west-1\n")
    assert forwarded_variables(store, {}) == {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "eu-west-1",
    }
    assert forwarded_variables(store, KEYS) == {"AWS_REGION": "eu-west-1", **KEYS}


@pytest.mark.parametrize("store", ["s3://b", "gs://b", "/folder", "azure://b"])
def test_a_machine_without_credentials_forwards_none(store: str) -> None:
    assert forwarded_variables(store, {}) == {}


def test_a_key_file_of_google_is_read(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text('{"type": "service_account"}')
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    found = forwarded_variables("gs://b", environment)
    assert found == {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"type": "service_account"}'}
    given = {**environment, "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}
    assert forwarded_variables("gs://b", given) == {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}
    assert forwarded_variables("s3://b", environment) == {}
