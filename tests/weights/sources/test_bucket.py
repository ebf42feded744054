"""Buckets as sources, against a real S3 server: credentials, pins, faults on the way."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.weights.download import downloader
from prefect_bt.weights.sources import bucket
from prefect_bt.weights.sources.file_listing import Listing
from prefect_bt.weights.sources.protocol import SourceRequest, open_source
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import Answer, FaultyServer, Hang, SetHeader, Truncate
from tests.s3_server import shared_s3
from tests.weights.conftest import mirror, tree

pytestmark = pytest.mark.integration

FILES = {"config.json": b"{}", "sub/model.bin": os.urandom(3_000_000), "empty": b""}
KEYS = '{"aws_access_key_id": "test", "aws_secret_access_key": "planted-s3-secret"}'


@pytest.fixture(scope="module")
def upstream() -> str:
    return shared_s3(guarded=True)


@pytest.fixture
def server(upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """The environment points at it; nothing waits for long."""
    monkeypatch.setattr(downloader, "RETRY_DELAYS", (0.01, 0.01))
    monkeypatch.setattr("prefect_bt.weights.mirror.RETRY_DELAYS", (0.01,))
    with FaultyServer(upstream) as faulty:
        use(monkeypatch, faulty.url)
        yield faulty


@pytest.fixture
def made(server: FaultyServer) -> Iterator[Bucket]:
    made = Bucket(server.upstream)
    for name, data in FILES.items():
        put(made, f"models/base/{name}", data)
    put(made, "models/base-2/other", b"not below the prefix")
    yield made
    made.empty()


def put(made: Bucket, key: str, data: bytes) -> None:
    made.client.put_object(Bucket=made.name, Key=key, Body=data)


def plan(made: Bucket, prefix: str = "models/base", **given: object) -> WeightsPlan:
    return WeightsPlan(f"s3://{made.name}/{prefix}", "/w", "k1", **given)


def mirrored(
    plan: WeightsPlan, state: Path, secret: str | None = None, **given: Any
) -> dict[str, bytes]:
    return tree(mirror(plan, state, secret=secret, **given))


def refused(plan: WeightsPlan, state: Path, secret: str | None = None, **given: Any) -> str:
    with pytest.raises(WeightsError) as caught:
        mirror(plan, state, secret=secret, **given)
    assert caught.value.source == plan.source
    assert caught.value.next_step
    assert "\n" not in str(caught.value)
    assert not list((state / "weights").glob("trees/*"))
    return str(caught.value)


def bodies(server: FaultyServer) -> int:
    return sum("/models/" in one.path for one in server.sent("GET"))


# -- what is fetched ------------------------------------------------------------------------


def test_fetched_once_and_again_when_an_object_changed(
    server: FaultyServer, made: Bucket, tmp_path: Path
) -> None:
    put(made, "models/base/sub/", b"")  # as consoles show a folder
    assert mirrored(plan(made), tmp_path) == FILES
    asked = bodies(server)
    assert asked == 2, "and nothing for the empty object"
    assert mirrored(plan(made), tmp_path) == FILES
    assert bodies(server) == asked
    put(made, "models/base/config.json", b"[]")
    assert mirrored(plan(made), tmp_path) == {**FILES, "config.json": b"[]"}


def test_the_files_of_the_program_that_downloaded_it(made: Bucket, tmp_path: Path) -> None:
    assert mirrored(plan(made), tmp_path) == FILES
    for name in (".cache/huggingface/download/a.metadata", ".cache/huggingface/.gitignore", ".msc"):
        put(made, f"models/base/{name}", b"state")
    assert mirrored(plan(made), tmp_path) == FILES


def test_patterns_one_object_and_unwanted_objects_that_change(
    server: FaultyServer, made: Bucket, tmp_path: Path
) -> None:
    wanted = plan(made, allow_patterns=("**/*.bin",))
    only = {"sub/model.bin": FILES["sub/model.bin"]}
    assert mirrored(wanted, tmp_path) == only
    asked = bodies(server)
    put(made, "models/base/config.json", b"[]")
    assert mirrored(wanted, tmp_path) == only
    assert bodies(server) == asked
    single = mirrored(plan(made, "models/base/sub/model.bin"), tmp_path / "2")
    assert single == {"model.bin": FILES["sub/model.bin"]}


@pytest.mark.parametrize("place", ["r2://0123456789abcdef.{}/models/base", "cw://{}/models/base"])
def test_others_that_speak_s3(
    server: FaultyServer, made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    # These know their server themselves.
    monkeypatch.setenv("PREFECT_BT_R2_ENDPOINT", server.url)
    monkeypatch.setenv("PREFECT_BT_CW_ENDPOINT", server.url)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    asked = WeightsPlan(
        place.format(made.name), "/w", "k1", secret="keys", auth=WeightsAuthPlan("CUSTOM_SECRET")
    )
    assert mirrored(asked, tmp_path, KEYS) == FILES


def test_a_range_is_that_range(server: FaultyServer, made: Bucket) -> None:
    source = open_source(SourceRequest(plan(made)))
    [file] = [file for file in source.list_files().files if file.path == "sub/model.bin"]
    data = FILES["sub/model.bin"]
    assert file.version_tag and file.size == len(data)
    assert b"".join(source.read(file, start=5, length=1_500_000)) == data[5:1_500_005]
    assert b"".join(source.read(file, start=2_999_990, length=-1)) == data[-10:]


# -- who may read ---------------------------------------------------------------------------


@pytest.fixture
def guarded(made: Bucket, upstream: str) -> Iterator[dict[str, str]]:
    """The server checks signatures and policies; a user and a role may read."""
    iam = boto3.client(
        "iam",
        endpoint_url=upstream,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    name = made.name
    allow = {"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    iam.create_user(UserName=f"{name}-nobody")
    other = iam.create_access_key(UserName=f"{name}-nobody")["AccessKey"]
    _enforce(upstream, after=0)
    yield {
        "role": role,
        "good": _secret(key),
        "other": _secret(other),
        "id": key["AccessKeyId"],
        "key": key["SecretAccessKey"],
    }
    _enforce(upstream, after=1_000_000)


def _secret(key: dict[str, str]) -> str:
    return json.dumps(
        {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    )


def _enforce(upstream: str, *, after: int) -> None:
    request = urllib.request.Request(
        f"{upstream}/moto-api/reset-auth",
        str(after).encode(),
        {"Content-Type": "text/plain"},
        method="POST",
    )
    urllib.request.urlopen(request).close()


def test_a_secret_reads_and_another_does_not(
    guarded: dict[str, str], made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of another login: it must not be mixed into the secret's key.
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-of-the-machine")
    keyed = plan(made, secret="keys", auth=WeightsAuthPlan("CUSTOM_SECRET"))
    told = refused(keyed, tmp_path, guarded["other"])
    assert "may not be read with the secret 'keys'" in told
    wrong = guarded["good"].replace(guarded["key"], "x" * 40)
    assert "may not be read" in refused(keyed, tmp_path, wrong)
    assert mirrored(keyed, tmp_path, guarded["good"]) == FILES


def test_a_role_is_assumed(
    guarded: dict[str, str],
    made: Bucket,
    upstream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auth = WeightsAuthPlan("AWS_ASSUME_ROLE", role_arn=guarded["role"], region="eu-west-1")
    asked = plan(made, auth=auth)
    told = refused(asked, tmp_path)
    assert f"The role {guarded['role']} could not be assumed (InvalidClientTokenId)" in told
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "needs credentials of its own" in refused(asked, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", guarded["id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", guarded["key"])
    _enforce(upstream, after=1)  # moto lets no policy allow it: asking for the role is not checked
    assert mirrored(asked, tmp_path) == FILES


def test_a_role_is_not_assumed_by_a_wrong_clock(
    server: FaultyServer, made: Bucket, tmp_path: Path
) -> None:
    text = "Signature expired: 20261128T100000Z is now earlier than 20261128T110000Z"
    expired = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{text}</Message></Error>"
    server.on(Answer(403, "Sender", expired), method="POST", times=None)
    auth = WeightsAuthPlan("AWS_ASSUME_ROLE", role_arn="arn:aws:iam::1:role/r", region="eu-west-1")
    error = refused(plan(made, auth=auth), tmp_path)
    assert "could not be assumed: the clock of this machine differs from the server's" in error
    assert "Set the clock" in error


def test_a_web_identity_has_a_role(
    made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = "arn:aws:iam::123456789012:role/reader"
    asked = plan(made, auth=WeightsAuthPlan("AWS_OIDC", role_arn=role, region="us-east-1"))
    assert "AWS_WEB_IDENTITY_TOKEN_FILE does not name one here" in refused(asked, tmp_path)
    (tmp_path / "token").write_text("a.jwt.of-ours\n")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert mirrored(asked, tmp_path) == FILES


def test_without_auth_the_machine_then_nobody_then_a_sentence(
    server: FaultyServer, made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mirrored(plan(made), tmp_path / "1") == FILES
    for name in FILES:
        made.client.put_object_acl(Bucket=made.name, Key=f"models/base/{name}", ACL="public-read")
    server.on(Answer(403, "AccessDenied"), query="list-type", times=1)
    assert mirrored(plan(made), tmp_path / "2") == FILES
    server.on(Answer(403, "AccessDenied"), query="list-type", times=None)
    told = refused(plan(made), tmp_path / "3")
    assert "with the credentials of this machine or with no credentials" in told
    assert "Give auth" in told
    server.clear()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert mirrored(plan(made), tmp_path / "4") == FILES
    with monkeypatch.context() as broken:
        broken.setenv("AWS_PROFILE", "no-such-profile")
        assert "cannot be used (ProfileNotFound)" in refused(plan(made), tmp_path / "5")


# -- faults on the way ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Answer(429, "SlowDown"), Answer(503, "SlowDown"), Truncate(2_000_000)]
)
def test_a_fault_that_passes(
    server: FaultyServer, made: Bucket, tmp_path: Path, fault: Answer | Truncate
) -> None:
    rule = server.on(fault, method="GET", path="model.bin")
    assert mirrored(plan(made), tmp_path) == FILES
    assert rule.hits == 1


@pytest.mark.extended  # ten seconds; in the gate test_https.py has a silence that is made good
def test_a_connection_without_a_byte_is_made_again(
    server: FaultyServer, made: Bucket, tmp_path: Path
) -> None:
    silent = server.on(Hang(), method="GET", path="model.bin")
    middle = server.on(Hang(after=2_000_000), method="GET", path="model.bin")
    assert mirrored(plan(made), tmp_path, stall_timeout=5.0) == FILES
    assert (silent.hits, middle.hits) == (1, 1)


def test_connections_without_a_byte_are_an_error(
    server: FaultyServer, made: Bucket, tmp_path: Path
) -> None:
    server.on(Hang(), method="GET", path="model.bin", times=None)
    assert "no byte for 0.5 s" in refused(plan(made), tmp_path, stall_timeout=0.5)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Answer(503, "SlowDown"), "could not be read at sub/model.bin (SlowDown"),
        (Answer(403, "AccessDenied"), "lists sub/model.bin, but it may not be read"),
        (SetHeader("ETag", '"another"'), "changed while it was read: sub/model.bin"),
        (Answer(412, "PreconditionFailed"), "changed while it was read: sub/model.bin"),
    ],
)
def test_a_fault_that_stays_is_a_sentence_and_the_next_run_goes_on(
    server: FaultyServer, made: Bucket, tmp_path: Path, fault: Answer, words: str
) -> None:
    server.on(fault, method="GET", path="model.bin", times=None)
    assert words in refused(plan(made), tmp_path)
    server.clear()
    before = len([one for one in server.sent("GET") if "config.json" in one.path])
    assert mirrored(plan(made), tmp_path) == FILES
    after = len([one for one in server.sent("GET") if "config.json" in one.path])
    assert (before, after) == (1, 1), "what was here is not fetched again"


@pytest.mark.parametrize("path", ["", "model.bin"], ids=["listing", "object"])
def test_a_clock_that_differs_is_named(
    server: FaultyServer, made: Bucket, tmp_path: Path, path: str
) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3630))
    skewed = Answer(403, "RequestTimeTooSkewed", f"<ServerTime>{stamp}</ServerTime>")
    rule = server.on(skewed, method="GET", path=path, times=None)
    error = refused(plan(made), tmp_path)
    assert "cannot be read: the clock of this machine is 1 h 0 min behind the server's" in error
    assert "Set the clock" in error
    assert "network" not in error
    assert rule.hits == 1, "it is not tried again"


def test_an_object_that_is_replaced_while_it_is_read(
    server: FaultyServer, made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = bucket.BucketSource.list_files

    def then_replaced(source: bucket.BucketSource) -> Listing:
        found = listing(source)
        put(made, "models/base/sub/model.bin", b"x" * 3_000_000)
        return found

    monkeypatch.setattr(bucket.BucketSource, "list_files", then_replaced)
    assert "changed while it was read: sub/model.bin" in refused(plan(made), tmp_path)


def test_sentences_about_addresses(server: FaultyServer, made: Bucket, tmp_path: Path) -> None:
    nowhere = WeightsPlan("s3://no-such-bucket-of-ours/x", "/w", "k1")
    assert "there is no bucket 'no-such-bucket-of-ours'" in refused(nowhere, tmp_path)
    assert "it is empty" in refused(plan(made, "models/none"), tmp_path)
    assert "match none" in refused(plan(made, allow_patterns=("*.gguf",)), tmp_path)
    put(made, "models/twice/note", b"text")
    put(made, "models/twice/note/", b"")
    assert "lists 'note' twice" in refused(plan(made, "models/twice"), tmp_path)
    put(made, "models/base/config.json/inner", b"1")
    assert "as a file and 'config.json/inner' as a file in it" in refused(plan(made), tmp_path)


@pytest.mark.parametrize("name", ["../out", "a//b", "./a"])
def test_names_that_lead_elsewhere(
    server: FaultyServer, made: Bucket, tmp_path: Path, name: str
) -> None:
    put(made, f"models/base/{name}", b"evil")
    told = refused(plan(made), tmp_path)
    assert "cannot be a path below the mount" in told or name in told
    assert bodies(server) == 0


def test_too_many_objects(made: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_MAX_OBJECTS", len(FILES))
    assert len(mirrored(plan(made), tmp_path)) == len(FILES)
    put(made, "models/base/more", b"1")
    assert "lists more than 3 objects" in refused(plan(made), tmp_path / "2")


def test_the_secret_is_nowhere(
    guarded: dict[str, str], made: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    keyed = plan(made, secret="keys", auth=WeightsAuthPlan("CUSTOM_SECRET"))
    mirror(keyed, tmp_path, secret=guarded["good"])
    wrong = guarded["good"].replace(guarded["key"], "wr0ng-secret-of-s3")
    told = refused(keyed, tmp_path / "2", wrong)
    assert "wr0ng" not in told
    for place in tmp_path.rglob("*"):
        assert guarded["key"] not in str(place)
    assert guarded["key"] not in caplog.text
    assert guarded["key"] not in repr(SourceRequest(keyed, guarded["good"]))
