"""Images from a real registry onto a real Docker Engine: logins, digests, what is here already."""

from __future__ import annotations

import base64
import json
import logging
import threading
import traceback
from pathlib import Path

import docker
import pytest

from prefect_bt.errors import ImageError, SecretError
from prefect_bt.registries.pull import PulledImage, pull_image
from prefect_bt.text.progress import Progress
from tests.weights.file_server import make_certificate

from .conftest import BASE, WORKER, build, push
from .registry import PASSWORD, USER, Registry, running_registry

pytestmark = [pytest.mark.integration]


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any docker login."""
    folder = tmp_path / "docker-config"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stalls here, and a busy registry may take its time to say a digest."""
    monkeypatch.setattr("prefect_bt.registries.pull.DIGEST_TIMEOUT", 600.0)
    monkeypatch.setenv("PREFECT_BT_STALL_SECONDS", "600")


@pytest.fixture(scope="module")
def image(engine: docker.APIClient, base_image: str, registry: Registry) -> tuple[str, str]:
    """(name, digest) of an image that is in the guarded registry."""
    name = f"{registry.host}/team/train:{WORKER}"
    build(engine, name, 300_000, 20_000)
    return name, push(engine, name, registry)


def auth(registry: Registry) -> dict[str, object]:
    reference = {"secret_ref": {"name": "registry"}}
    return {
        "auth_method": "REGISTRY_SECRET",
        "registry": registry.host,
        "registry_secret_docker_auth": reference,
    }


def forget(engine: docker.APIClient, pulled: PulledImage) -> None:
    engine.remove_image(pulled.id, force=True)


def refused(engine: docker.APIClient, reference: str, *given: object, **more: object) -> ImageError:
    with pytest.raises(ImageError) as caught:
        pull_image(engine, reference, *given, **more)
    assert caught.value.reference == reference
    assert caught.value.next_step
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_login_a_pin_and_nothing_the_second_time(
    engine: docker.APIClient,
    image: tuple[str, str],
    registry: Registry,
    docker_config: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (name, digest), told = image, list[Progress]()
    with caplog.at_level(logging.DEBUG):
        first = pull_image(
            engine,
            name,
            auth(registry),
            secrets={"registry": registry.login},
            on_progress=told.append,
        )
    assert first.reference == f"{registry.host}/team/train@{digest}"
    assert (first.digest, first.notes) == (digest, ())
    here = engine.inspect_image(name)
    assert here["Id"] == first.id
    assert engine.inspect_image(first.reference)["Id"] == first.id
    last = told[-1]
    assert last.items_done == last.items_total >= 2
    assert last.bytes_done == last.bytes_total >= 320_000
    spelled = base64.b64encode(PASSWORD.encode()).decode().rstrip("=")
    assert PASSWORD not in caplog.text
    assert spelled not in caplog.text
    assert list(docker_config.iterdir()) == []

    told.clear()
    again = pull_image(
        engine, name, auth(registry), secrets={"registry": registry.login}, on_progress=told.append
    )
    assert again == first
    assert told == [], "nothing was pulled"
    assert pull_image(engine, first.reference, auth(registry)) == first, (
        "a digest here needs no secret"
    )
    forget(engine, first)


def test_a_wrong_password_has_another_message_than_none(
    engine: docker.APIClient, image: tuple[str, str], registry: Registry
) -> None:
    name, _ = image
    wrong = f"{USER}:wrong-planted-password"
    error = refused(engine, name, auth(registry), secrets={"registry": wrong})
    assert (error.fault, error.cause) == ("refused", "registry_refused")
    assert "the login in the secret 'registry'" in str(error)
    assert "planted" not in "".join(traceback.format_exception(error))
    error = refused(engine, name)
    assert (error.fault, error.cause) == ("refused", "registry_refused")
    assert "refused a pull without credentials" in str(error)
    assert "docker_auth" in error.next_step
    with pytest.raises(SecretError, match="registry"):
        pull_image(engine, name, auth(registry))


def test_a_login_goes_to_its_own_registry_alone(
    engine: docker.APIClient, open_registry: Registry, registry: Registry
) -> None:
    error = refused(
        engine,
        f"{open_registry.host}/team/train:1",
        auth(registry),
        secrets={"registry": registry.login},
    )
    assert error.fault == "credentials"
    assert f"it is for {registry.host}" in str(error)


def test_the_machines_docker_login_is_used_without_auth(
    own_daemon: object,
    engine: docker.APIClient,
    image: tuple[str, str],
    registry: Registry,
    docker_config: Path,
) -> None:
    name, digest = image
    told = base64.b64encode(registry.login.encode()).decode()
    known = {"auths": {registry.host: {"auth": told}}}
    (docker_config / "config.json").write_text(json.dumps(known))
    client = docker.APIClient(_address(engine), version="auto")
    pulled = pull_image(client, name)
    assert pulled.digest == digest
    forget(engine, pulled)
    known["auths"][registry.host]["auth"] = base64.b64encode(b"someone:stale").decode()
    (docker_config / "config.json").write_text(json.dumps(known))
    error = refused(docker.APIClient(_address(engine), version="auto"), name)
    assert error.fault == "refused"
    assert "docker login" in str(error)


def _address(engine: docker.APIClient) -> str:
    if engine.base_url.startswith("http+docker"):
        return f"unix://{engine.adapters['http+docker://'].socket_path}"
    return engine.base_url


def test_a_tag_that_moves_leaves_the_pin(
    engine: docker.APIClient, base_image: str, open_registry: Registry
) -> None:
    name = f"{open_registry.host}/team/moving:1"
    build(engine, name, 1000)
    push(engine, name, open_registry)
    before = pull_image(engine, name)
    build(engine, name, 2000)
    moved = push(engine, name, open_registry)
    after = pull_image(engine, name)
    assert after.digest == moved != before.digest
    assert engine.inspect_image(name)["Id"] == after.id
    assert pull_image(engine, before.reference).id == before.id
    forget(engine, before)
    assert pull_image(engine, before.reference).id == before.id, "the pin brings the old one back"
    assert engine.inspect_image(name)["Id"] == after.id, "and leaves the tag alone"
    forget(engine, before)
    forget(engine, after)


def test_missing_images_are_not_found(
    engine: docker.APIClient, image: tuple[str, str], registry: Registry
) -> None:
    for name in (f"{registry.host}/team/train:none", f"{registry.host}/team/none:1"):
        error = refused(engine, name, auth(registry), secrets={"registry": registry.login})
        assert (error.fault, error.cause) == ("not_found", "image_not_found")
    digest = f"sha256:{'0' * 64}"
    name = f"{registry.host}/team/train@{digest}"
    error = refused(engine, name, auth(registry), secrets={"registry": registry.login})
    assert error.fault == "not_found"
    assert refused(engine, digest).fault == "not_found"


def test_a_registry_that_is_gone(engine: docker.APIClient, base_image: str, tmp_path: Path) -> None:
    with running_registry(tmp_path, with_login=False) as registry:
        name = f"{registry.host}/team/train:1"
        build(engine, name, 1000)
        digest = push(engine, name, registry)
        pulled = pull_image(engine, name)
    offline = pull_image(engine, name)
    assert (offline.reference, offline.id) == (pulled.reference, pulled.id)
    [note] = offline.notes
    assert f"{registry.host} did not provide {name} (unreachable)" in note
    error = refused(engine, f"{registry.host}/team/train:2")
    assert (error.fault, error.cause) == ("unreachable", "registry_unreachable")
    forget(engine, pulled)
    error = refused(engine, pulled.reference)
    assert error.fault == "unreachable"
    assert digest in error.reference


def test_what_was_built_here_is_taken_by_its_id(
    engine: docker.APIClient, base_image: str, open_registry: Registry
) -> None:
    built = engine.inspect_image(base_image)["Id"]
    pulled = pull_image(engine, base_image)
    assert (pulled.reference, pulled.digest, pulled.id) == (built, "", built)
    assert "no registry is asked" in pulled.notes[0]
    assert pull_image(engine, built).id == built
    name = f"{open_registry.host}/team/only-here:1"
    engine.tag(BASE, name.removesuffix(":1"), "1")
    pulled = pull_image(engine, name)
    assert (pulled.reference, pulled.id) == (built, built)
    assert f"did not provide {name} (not_found)" in pulled.notes[0]
    error = refused(engine, name, auth(open_registry), secrets={"registry": "some:body"})
    assert error.fault == "not_found", "with credentials, what the registry says counts"
    engine.remove_image(name)


def test_two_at_once(engine: docker.APIClient, base_image: str, open_registry: Registry) -> None:
    name = f"{open_registry.host}/team/both:1"
    build(engine, name, 3_000_000)
    digest = push(engine, name, open_registry)
    found = list[PulledImage]()
    threads = [
        threading.Thread(target=lambda: found.append(pull_image(engine, name))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.digest for one in found] == [digest, digest]
    forget(engine, found[0])


def test_another_processors_image(
    engine: docker.APIClient, base_image: str, open_registry: Registry
) -> None:
    if engine.version()["Arch"] != "amd64":
        pytest.skip("the image is made for what this Engine is not: arm64")
    name = f"{open_registry.host}/team/arm:1"
    build(engine, name, 10, base="scratch", platform="linux/arm64")
    push(engine, name, open_registry)
    error = refused(engine, name)
    assert (error.fault, error.cause) == ("platform", "image_unusable")
    assert "it is for linux/arm64" in str(error)
    assert not engine.images(name=f"{open_registry.host}/team/arm"), "it was not brought"


def test_names_that_are_none_and_an_engine_that_is_none(engine: docker.APIClient) -> None:
    for name in ("Team/Train:1", "a b", "https://ghcr.io/team/train", "train@sha256:1", ""):
        assert refused(engine, name).fault == "reference"
    nobody = docker.APIClient("unix:///nowhere/docker.sock", version="1.41")
    error = refused(nobody, BASE)
    assert (error.fault, error.cause) == ("engine_unreachable", "launch_failed")
    assert "No such file" in str(error)


def test_a_registry_without_tls_and_one_that_nobody_vouches_for(
    engine: docker.APIClient, tmp_path: Path
) -> None:
    """0.0.0.0 reaches this machine, too, but the Engine asks of it what it asks of strangers."""
    (tmp_path / "plain").mkdir()
    with running_registry(tmp_path / "plain", with_login=False, address="0.0.0.0") as plain:
        error = refused(engine, f"0.0.0.0:{plain.port}/team/train:1")
        assert error.fault == "unreachable"
        assert "HTTP response to HTTPS client" in str(error)
        assert "insecure-registries" in error.next_step
    (tmp_path / "tls").mkdir()
    _, certificate = make_certificate(tmp_path)
    with running_registry(
        tmp_path / "tls", with_login=False, address="0.0.0.0", tls=certificate
    ) as strange:
        error = refused(engine, f"0.0.0.0:{strange.port}/team/train:1")
        assert error.fault == "unreachable"
        assert "x509" in str(error)
        assert f"/etc/docker/certs.d/0.0.0.0:{strange.port}/" in error.next_step
