"""What secrets are to hold, what planning refuses, and what re-mirrors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_bt.credentials.weights_access import (
    list_accesses,
    parse_azure_secret,
    parse_google_secret,
    parse_s3_secret,
    parse_token,
)
from prefect_bt.definitions import TrainingProject
from prefect_bt.errors import PlanError, WeightsError
from prefect_bt.object_store.connect import create_bucket_store, parse_bucket_url
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.planning.planner import plan_gang, plan_weights
from prefect_bt.substrates.protocol import Capacity
from prefect_bt.weights.sources.protocol import SourceRequest, open_source

SERVICE_ACCOUNT = {"type": "service_account", "client_email": "a@b", "private_key": "planted-pem"}
SECRET = WeightsAuthPlan("CUSTOM_SECRET")


def plan(source: str) -> WeightsPlan:
    return WeightsPlan(source, "/w", "k1", secret="keys", auth=SECRET)


def test_s3_keys() -> None:
    text = {"aws_access_key_id": "id", "aws_secret_access_key": "key"}
    found = parse_s3_secret(plan("s3://b"), json.dumps(text))
    assert (found.access_key_id, found.secret_access_key) == ("id", "key")
    assert (found.region, found.token) == ("us-east-1", "")
    more = {**text, "aws_region": "eu-west-1", "aws_session_token": "t"}
    found = parse_s3_secret(plan("r2://a.b"), json.dumps(more))
    assert (found.region, found.token) == ("eu-west-1", "t")
    assert "key" not in repr(found).replace("access_key", "")


@pytest.mark.parametrize(
    "text",
    [
        "planted",
        '["planted"]',
        "{}",
        '{"access_key_id": "planted", "secret_access_key": "planted"}',
        '{"aws_access_key_id": "planted", "aws_secret_access_key": ""}',
        '{"aws_access_key_id": "planted", "aws_secret_access_key": "x", "planted": "y"}',
        '{"aws_access_key_id": "planted", "aws_secret_access_key": "x", "aws_region": 1}',
    ],
)
def test_other_keys_name_the_two_required(text: str) -> None:
    with pytest.raises(WeightsError) as caught:
        parse_s3_secret(plan("s3://b"), text)
    told = str(caught.value)
    assert "aws_access_key_id and aws_secret_access_key" in told
    assert "The secret 'keys' of s3://b" in told
    assert "planted" not in told
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_service_account() -> None:
    text = json.dumps(SERVICE_ACCOUNT)
    assert parse_google_secret(plan("gs://b"), text) == text
    for bad in ("planted", "{}", json.dumps({**SERVICE_ACCOUNT, "type": "authorized_user"})):
        with pytest.raises(WeightsError, match="service account") as caught:
            parse_google_secret(plan("gs://b"), bad)
        assert "planted" not in str(caught.value)


def test_azure_keys_and_tokens() -> None:
    source = plan("azure://a/c")
    assert parse_azure_secret(source, "a2V5\n") == {"access_key": "a2V5"}
    token = "?sv=2024&se=x&sig=planted"
    assert parse_azure_secret(source, token) == {"sas_token": token[1:]}
    assert parse_azure_secret(source, '{"account_key": "a2V5"}') == {"access_key": "a2V5"}
    assert parse_azure_secret(source, '{"sas_token": "?a&sig=b"}') == {"sas_token": "a&sig=b"}
    for bad in ("", "{}", '{"key": "planted"}', '{"account_key": 1}', '{"account_key": ""}'):
        with pytest.raises(WeightsError, match="account_key") as caught:
            parse_azure_secret(source, bad)
        assert "planted" not in str(caught.value)


def test_tokens_fit_a_header() -> None:
    assert parse_token(plan("hf://o/r"), " hf_x\n") == "hf_x"
    for bad in ("", " ", "a\nplanted", "planted ü", "planted b"):
        with pytest.raises(WeightsError, match="is malformed") as caught:
            parse_token(plan("hf://o/r"), bad)
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "secret"),
    [
        ("azure://account/container/models", "a2V5"),
        ("azure://account/container", '{"sas_token": "sv=1&sig=x"}'),
        ("r2://account.eu.bucket/p", '{"aws_access_key_id": "a", "aws_secret_access_key": "b"}'),
        ("cw://bucket/p", '{"aws_access_key_id": "a", "aws_secret_access_key": "b"}'),
        (
            "s3://bucket/p",
            '{"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": null,'
            ' "aws_session_token": null}',
        ),
    ],
)
def test_every_bucket_opens(source: str, secret: str) -> None:
    address = parse_bucket_url(source)
    [access] = list_accesses(plan(source), address, secret)
    assert create_bucket_store(address, access) is not None


def test_a_key_of_google_that_is_no_key_is_a_sentence() -> None:
    opened = open_source(SourceRequest(plan("gs://bucket/p"), json.dumps(SERVICE_ACCOUNT)))
    with pytest.raises(WeightsError) as caught:
        opened.list_files()
    assert "gs://bucket/p cannot be opened with the secret 'keys'" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_google_identity_names_missing_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    auth = WeightsAuthPlan(
        "GCP_OIDC", service_account="a@b", identity_provider="projects/1/providers/x"
    )
    opened = open_source(SourceRequest(WeightsPlan("gs://b/p", "/w", "k1", auth=auth)))
    with pytest.raises(WeightsError, match="GOOGLE_APPLICATION_CREDENTIALS names no file"):
        opened.list_files()
    (tmp_path / "key.json").write_text(json.dumps(SERVICE_ACCOUNT))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(WeightsError, match="of type external_account"):
        opened.list_files()


# -- planning -------------------------------------------------------------------------------

AWS_ROLE = {
    "auth_method": "AWS_ASSUME_ROLE",
    "aws_assume_role_arn": "arn:aws:iam::1:role/r",
    "aws_assume_role_region": "eu-west-1",
}
GCP = {
    "auth_method": "gcp_oidc",
    "gcp_oidc_service_account": "a@b",
    "gcp_oidc_workload_id_provider": "p",
}


def project(*weights: dict[str, object]) -> TrainingProject:
    placed = [{"mount_location": f"/w/{i}", **one} for i, one in enumerate(weights)]
    return TrainingProject.model_validate(
        {
            "name": "p",
            "job": {
                "image": {"base_image": "x"},
                "compute": {"memory": "1Gi"},
                "runtime": {"start_commands": ["true"]},
                "weights": placed,
            },
        }
    )


def problems(*weights: dict[str, object]) -> tuple[str, ...]:
    capacity = Capacity(cpus=4, memory=8 * 1024**3, gpus=0)
    context = PlanContext("abc1234", "j", "pr0j3ct", "file:///s", capacity)
    try:
        plan_gang(project(*weights), context)
    except PlanError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "https://me:pw@host/x"}, "before the @"),
        ({"source": "https://host/dir/"}, "names no file"),
        ({"source": "https://host"}, "names no file"),
        ({"source": "r2://bucket/x"}, "r2://account_id.bucket/prefix"),
        ({"source": "azure://account"}, "azure://account/container/path"),
        ({"source": "bt://project@"}, "bt://project[@job][/checkpoint]"),
        ({"source": "bt://loops:x"}, "Loops"),
        ({"source": "bt://project", "auth_secret_name": "s"}, "takes no auth"),
        ({"source": "r2://a.b/x", "auth": AWS_ROLE}, "r2:// takes CUSTOM_SECRET"),
        ({"source": "gs://b/x", "auth": AWS_ROLE}, "gs:// takes CUSTOM_SECRET or GCP_OIDC"),
        ({"source": "s3://b/x", "auth": GCP}, "CUSTOM_SECRET or AWS_ASSUME_ROLE or AWS_OIDC"),
        ({"source": "s3://b", "auth": AWS_ROLE, "auth_secret_name": "s"}, "takes no secret"),
    ],
)
def test_refused_before_anything_is_written(given: dict[str, object], words: str) -> None:
    [problem] = problems(given)
    assert problem.startswith("weights[0].")
    assert words in problem
    assert "pw" not in problem


def test_all_at_once() -> None:
    found = problems(
        {"source": "r2://bucket"},
        {"source": "https://host/dir/", "mount_location": "/proc/x"},
        {"source": "s3://b", "mount_location": "/w/0"},
    )
    assert len(found) == 4


@pytest.mark.parametrize(
    "given",
    [
        {"source": "s3://b/p"},
        {"source": "s3://b/p", "auth": AWS_ROLE},
        {"source": "gs://b/p", "auth": GCP},
        {"source": "r2://account.eu.bucket/p", "auth_secret_name": "s"},
        {"source": "cw://b/p", "auth_secret_name": "s"},
        {"source": "azure://account/container/p"},
        {"source": "https://host/x?a=b@c", "auth_secret_name": "s"},
        {"source": "bt://project@latest/checkpoint-10"},
        {"source": "file:///a/b@c"},
    ],
)
def test_planned(given: dict[str, object]) -> None:
    assert problems(given) == ()


def test_what_mirrors_anew() -> None:
    def key(**given: object) -> str:
        [planned] = plan_weights(project({"source": "s3://b/p", **given}).job)
        return planned.key

    custom = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "one"}
    assert key() == key(mount_location="/elsewhere")
    assert key(auth_secret_name="one") == key(auth=custom)
    different = [
        key(),
        key(auth_secret_name="one"),
        key(auth_secret_name="two"),
        key(auth=AWS_ROLE),
        key(auth={**AWS_ROLE, "aws_assume_role_region": "us-east-1"}),
        key(allow_patterns=["*"]),
        key(ignore_patterns=["*"]),
    ]
    assert len(set(different)) == len(different)
