"""Check the six registry auth methods, the four of weights, and source URIs."""

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    AWSOIDCDockerAuth,
    DockerAuth,
    DockerAuthType,
    GCPOIDCDockerAuth,
    WeightsAuth,
    WeightsSource,
)

SECRET = {"name": "s"}
DOCKER = {
    "AWS_IAM": {
        "aws_iam_docker_auth": {
            "access_key_secret_ref": SECRET,
            "secret_access_key_secret_ref": SECRET,
        }
    },
    "AWS_OIDC": {"aws_oidc_docker_auth": {"role_arn": "a", "region": "r"}},
    "AWS_ASSUME_ROLE": {"aws_assume_role_docker_auth": {"role_arn": "a", "region": "r"}},
    "GCP_OIDC": {
        "gcp_oidc_docker_auth": {"service_account": "a", "workload_identity_provider": "p"}
    },
    "GCP_SERVICE_ACCOUNT_JSON": {
        "gcp_service_account_json_docker_auth": {"service_account_json_secret_ref": SECRET}
    },
    "REGISTRY_SECRET": {"registry_secret_docker_auth": {"secret_ref": SECRET}},
}


def docker(method, **fields):
    return DockerAuth(auth_method=DockerAuthType(method), registry="r", **fields)


@pytest.mark.parametrize("method", DOCKER)
@pytest.mark.parametrize("given", DOCKER)
def test_docker_auth_takes_exactly_the_matching_one(method, given):
    if method == given:
        assert docker(method, **DOCKER[given])
        return
    with pytest.raises(ValidationError, match=f"must be given when auth_method is {method}"):
        docker(method, **DOCKER[given])
    with pytest.raises(ValidationError, match=f"cannot be given when auth_method is {method}"):
        docker(method, **DOCKER[method], **DOCKER[given])


@pytest.mark.parametrize("method", DOCKER)
def test_docker_auth_needs_one(method):
    with pytest.raises(ValidationError):
        docker(method)


def test_docker_auth_texts_must_not_be_empty():
    with pytest.raises(ValidationError):
        AWSOIDCDockerAuth(role_arn="", region="r")
    with pytest.raises(ValidationError):
        GCPOIDCDockerAuth(service_account="a", workload_identity_provider="")


WEIGHTS = {
    "CUSTOM_SECRET": {"auth_secret_name": "s"},
    "AWS_OIDC": {"aws_oidc_role_arn": "a", "aws_oidc_region": "r"},
    "GCP_OIDC": {"gcp_oidc_service_account": "a", "gcp_oidc_workload_id_provider": "p"},
    "AWS_ASSUME_ROLE": {"aws_assume_role_arn": "a", "aws_assume_role_region": "r"},
}


@pytest.mark.parametrize("method", WEIGHTS)
@pytest.mark.parametrize("given", WEIGHTS)
def test_weights_auth_takes_its_own_fields_only(method, given):
    if method == given:
        assert WeightsAuth(auth_method=method, **WEIGHTS[given])
        return
    with pytest.raises(ValidationError, match=f"must be given when auth_method is {method}"):
        WeightsAuth(auth_method=method, **WEIGHTS[given])
    with pytest.raises(ValidationError, match=f"cannot be given when auth_method is {method}"):
        WeightsAuth(auth_method=method, **WEIGHTS[method], **WEIGHTS[given])


@pytest.mark.parametrize(
    ("method", "field"), [(m, f) for m, fields in WEIGHTS.items() for f in fields]
)
def test_weights_auth_needs_all_of_its_fields(method, field):
    with pytest.raises(ValidationError, match=field):
        WeightsAuth(auth_method=method, **{**WEIGHTS[method], field: ""})


def test_weights_auth_method_in_any_case():
    assert WeightsAuth(auth_method="custom_secret", auth_secret_name="s").auth_method == (
        "CUSTOM_SECRET"
    )
    with pytest.raises(ValidationError):
        WeightsAuth(auth_method="password", auth_secret_name="s")


@pytest.mark.parametrize(
    "source",
    [
        "hf://owner/repo",
        "hf://owner/repo@main",
        "hf://single-name",
        "s3://bucket/prefix",
        "s3://bucket",
        "gs://bucket/prefix",
        "azure://account/container/path",
        "r2://account.bucket/prefix",
        "r2://account.eu.bucket/prefix",
        "cw://bucket/prefix",
        "https://example.com/model.bin",
        "https://user@example.com/x",
        "file:///data/models/base",
        "bt://project",
        "bt://project@abc1234/checkpoint-10",
        "bt://owner/project@latest",
    ],
)
def test_source_accepted(source):
    assert WeightsSource(source=source, mount_location="/m").source == source


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "at least 1 character"),
        ("owner/repo", "no scheme"),
        ("gcs://bucket/x", "write gs://"),
        ("http://example.com/x", "write https://"),
        ("ftp://example.com/x", "not supported"),
        ("HF://owner/repo", "not supported"),
        ("hf://", "incomplete"),
        ("hf:///owner/repo", "incomplete"),
        ("s3://", "incomplete"),
        ("s3:///prefix", "incomplete"),
        ("https:///x", "incomplete"),
        ("file://", "incomplete"),
        ("file:///", "incomplete"),
        ("file://relative/x", "file:///absolute/path"),
        ("bt://", "incomplete"),
        ("bt:///x", "incomplete"),
        ("s3://bucket/x@main", "only be given for hf://"),
        ("gs://bucket@main/x", "only be given for hf://"),
        ("azure://a/b@c", "only be given for hf://"),
        ("r2://a.b/c@d", "only be given for hf://"),
        ("cw://b/c@d", "only be given for hf://"),
    ],
)
def test_source_refused(source, says):
    with pytest.raises(ValidationError, match=says):
        WeightsSource(source=source, mount_location="/m")


@pytest.mark.parametrize("path", ["", "models", "./models", "~/models"])
def test_mount_location_is_absolute(path):
    with pytest.raises(ValidationError):
        WeightsSource(source="hf://a/b", mount_location=path)


def test_one_secret_name():
    auth = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "inside"}
    base = {"source": "hf://a/b", "mount_location": "/m"}
    with pytest.raises(ValidationError, match="twice"):
        WeightsSource(**base, auth=auth, auth_secret_name="outside")
    assert WeightsSource(**base, auth=auth).secret_name == "inside"
    assert WeightsSource(**base, auth_secret_name="outside").secret_name == "outside"
    assert WeightsSource(**base).secret_name is None
