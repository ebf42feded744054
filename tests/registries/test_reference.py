"""What names an image, as the Docker Engine takes it."""

from __future__ import annotations

import pytest

from prefect_bt.registries.pull_errors import PullError, PullErrorKind
from prefect_bt.registries.reference import normalize_registry_host, parse_reference

FORM = "it is not [host[:port]/]repository[:tag][@digest], in lower case"
DIGEST = f"sha256:{'a1' * 32}"


@pytest.mark.parametrize(
    ("text", "host", "asked"),
    [
        ("busybox", "docker.io", "busybox:latest"),
        ("busybox:1.36", "docker.io", "busybox:1.36"),
        ("library/busybox", "docker.io", "busybox:latest"),
        ("docker.io/library/busybox:1", "docker.io", "busybox:1"),
        ("docker.io/busybox:1", "docker.io", "busybox:1"),
        ("index.docker.io/team/x", "docker.io", "team/x:latest"),
        ("pytorch/pytorch:2.9.1-cuda12.8", "docker.io", "pytorch/pytorch:2.9.1-cuda12.8"),
        ("ghcr.io/team/train", "ghcr.io", "ghcr.io/team/train:latest"),
        ("localhost/train:1", "localhost", "localhost/train:1"),
        ("host:5000/a/b/c__d:T_1.x-y", "host:5000", "host:5000/a/b/c__d:T_1.x-y"),
        ("[::1]:5000/x:1", "[::1]:5000", "[::1]:5000/x:1"),
        (f"ghcr.io/x/y@{DIGEST}", "ghcr.io", f"ghcr.io/x/y@{DIGEST}"),
        (f"ghcr.io/x/y:1@{DIGEST}", "ghcr.io", f"ghcr.io/x/y@{DIGEST}"),
        (DIGEST, "", DIGEST),
    ],
)
def test_parsed(text: str, host: str, asked: str) -> None:
    found = parse_reference(text)
    assert (found.host, found.pull_name) == (host, asked)
    assert found.is_id is (text == DIGEST)


def test_a_host_is_given_or_meant() -> None:
    assert not parse_reference("team/train").has_explicit_host
    assert parse_reference("docker.io/team/train").has_explicit_host
    assert parse_reference("localhost:5000/train").has_explicit_host


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", FORM),
        ("a b", FORM),
        ("train\n", FORM),
        ("-x", FORM),
        ("team//train", FORM),
        ("../../images", FORM),
        ("team/..", FORM),
        ("team/train?x=1", FORM),
        ("Train", FORM),
        ("team/Train:1", FORM),
        ("train:", FORM),
        ("train:a b", FORM),
        ("train:" + "x" * 129, FORM),
        ("train@sha256:12", FORM),
        ("train@", FORM),
        ("a" * 300, FORM),
        ("ab" * 32, "write sha256: before them"),
        ("https://ghcr.io/team/train:1", FORM),
        ("http://localhost/x", FORM),
    ],
)
def test_refused(text: str, problem: str) -> None:
    with pytest.raises(PullError) as caught:
        parse_reference(text)
    assert caught.value.kind is PullErrorKind.REFERENCE
    assert problem in caught.value.message
    assert repr(text)[:20] in caught.value.message


@pytest.mark.parametrize(
    ("registry", "host"),
    [
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
        ("GHCR.io", "ghcr.io"),
        (" https://ghcr.io/team ", "ghcr.io"),
        ("us-docker.pkg.dev/project/repository", "us-docker.pkg.dev"),
        ("http://127.0.0.1:5000", "127.0.0.1:5000"),
        ("", ""),
    ],
)
def test_the_host_that_docker_auth_means(registry: str, host: str) -> None:
    assert normalize_registry_host(registry) == host
