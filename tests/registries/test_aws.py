"""Logins of ECR by key, role and web identity: real boto3 against a server that checks policies."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest

from prefect_bt.registries.credentials import Login, resolve_login
from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import parse_reference
from tests.checkpoints.buckets import use
from tests.registries.test_credentials import AMAZON, header
from tests.s3_server import shared_s3

pytestmark = pytest.mark.integration

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/train:1"
ROLE = "arn:aws:iam::123456789012:role/pulls"


class Amazon:
    """The server, and what STS was asked."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.url = upstream, ""
        self.asked: list[dict[str, list[str]]] = []


@pytest.fixture(scope="module")
def amazon() -> Iterator[Amazon]:
    amazon = Amazon(shared_s3(guarded=True))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            amazon.asked.append(parse_qs(body.decode()))
            request = urllib.request.Request(
                amazon.upstream + self.path, body, dict(self.headers), method="POST"
            )
            try:
                answer = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                told = answer.read()
                self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            self.wfile.write(told)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    amazon.url = f"http://127.0.0.1:{server.server_port}"
    yield amazon
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def machine(amazon: Amazon, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, amazon.url)
    monkeypatch.delenv("PREFECT_BT_AWS_EXTERNAL_ID", raising=False)
    amazon.asked.clear()


def auth(method: str, region: str = "eu-west-1") -> dict[str, object]:
    field = {"AWS_OIDC": "aws_oidc_docker_auth", "AWS_ASSUME_ROLE": "aws_assume_role_docker_auth"}
    return {
        "auth_method": method,
        "registry": "",
        field[method]: {"role_arn": ROLE, "region": region},
    }


def opened(auth: dict[str, object], **secrets: str) -> Login:
    return resolve_login(parse_reference(IMAGE), auth, secrets)


def refused(auth: dict[str, object], **secrets: str) -> PullError:
    with pytest.raises(PullError) as caught:
        opened(auth, **secrets)
    assert caught.value.next_step
    return caught.value


def assert_logged_in(login: Login) -> None:
    found = header(login)
    assert found["username"] == "AWS"
    assert found["password"]
    assert found["serveraddress"] == IMAGE.partition("/")[0]


def test_a_key_and_one_that_may_not(amazon: Amazon, monkeypatch: pytest.MonkeyPatch) -> None:
    iam = boto3.client("iam", endpoint_url=amazon.upstream)
    keys = {}
    for name in ("reader", "nobody"):
        iam.create_user(UserName=name)
        keys[name] = iam.create_access_key(UserName=name)["AccessKey"]
    allowed = {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="reader", PolicyName="pull", PolicyDocument=policy)
    given = {
        name: {"key-id": key["AccessKeyId"], "key": f"{key['SecretAccessKey']}\n"}
        for name, key in keys.items()
    }
    # Of another login: it must not be mixed into the secret's key.
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-the-machine")
    both = {"aws_access_key_id": keys["reader"]["AccessKeyId"]}
    both["aws_secret_access_key"] = keys["reader"]["SecretAccessKey"]
    _enforce(amazon, after=0)
    try:
        login = opened(AMAZON, **given["reader"])
        assert_logged_in(opened(AMAZON, **dict.fromkeys(("key-id", "key"), json.dumps(both))))
        other = refused(AMAZON, **given["nobody"])
        wrong = refused(AMAZON, **{**given["reader"], "key": "x" * 40})
    finally:
        _enforce(amazon, after=1_000_000)
    assert_logged_in(login)
    assert login.identity == "the access key in the secrets 'key-id' and 'key'"
    assert other.kind is wrong.kind is PullErrorKind.CREDENTIALS
    assert "gave no password to the access key in the secrets" in other.message
    assert "(403)" in other.message, "of XML where ECR has JSON, boto3 understands the status"


def _enforce(amazon: Amazon, *, after: int) -> None:
    request = urllib.request.Request(
        f"{amazon.upstream}/moto-api/reset-auth",
        str(after).encode(),
        {"Content-Type": "text/plain"},
        method="POST",
    )
    urllib.request.urlopen(request).close()


def test_a_role_with_and_without_an_external_id(
    amazon: Amazon, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = opened(auth("AWS_ASSUME_ROLE"))
    assert_logged_in(login)
    assert login.identity == f"the role {ROLE}"
    assert amazon.asked[0]["RoleArn"] == [ROLE]
    assert "ExternalId" not in amazon.asked[0]
    monkeypatch.setenv("PREFECT_BT_AWS_EXTERNAL_ID", "our-organisation")
    amazon.asked.clear()
    opened(auth("AWS_ASSUME_ROLE"))
    assert amazon.asked[0]["ExternalId"] == ["our-organisation"]


def test_the_region_is_that_of_the_registry() -> None:
    assert_logged_in(opened(auth("AWS_ASSUME_ROLE", "us-east-1")))


def test_a_role_needs_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    trouble = refused(auth("AWS_ASSUME_ROLE"))
    assert trouble.kind is PullErrorKind.CREDENTIALS
    assert "needs credentials of its own" in trouble.message


def test_a_service_that_is_away_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    trouble = refused(auth("AWS_ASSUME_ROLE"))
    assert trouble.kind is PullErrorKind.UNREACHABLE
    assert "EndpointConnectionError" in trouble.message


def test_a_web_identity(amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "AWS_WEB_IDENTITY_TOKEN_FILE does not name one here" in refused(auth("AWS_OIDC")).message
    (tmp_path / "token").write_text("a.jwt.of-ours\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    assert_logged_in(opened(auth("AWS_OIDC")))
    assert amazon.asked[0]["WebIdentityToken"] == ["a.jwt.of-ours"]
