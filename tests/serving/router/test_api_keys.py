"""Who may ask."""

from __future__ import annotations

import stat

import pytest

from prefect_bt.credentials.key_hashes import hash_key, parse_authorization, verify_key
from tests.serving.router.machine import Deployment

KEY = "a-key-that-nobody-guesses"


def test_a_hash_is_of_one_key_and_salted() -> None:
    known = hash_key(KEY)
    assert verify_key(known, KEY)
    assert not verify_key(known, KEY + " ") and not verify_key(known, "")
    assert known != hash_key(KEY)
    assert KEY not in str(known)


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        hash_key(key)


@pytest.mark.parametrize(
    ("header", "key"),
    [("Bearer k", "k"), ("bearer   k ", "k"), ("Basic k", ""), ("Bearer", ""), ("k", ""), ("", "")],
)
def test_a_header_carries_a_key(header: str, key: str) -> None:
    assert parse_authorization(header, "bearer") == key


def test_only_requests_with_the_key_are_answered(routed: Deployment) -> None:
    place, client = routed.place, routed.client()
    assert client.ask("/v1/models").status == 200
    place.write_key(KEY)
    try:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            answer = client.ask("/v1/models", **given)
            assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert client.ask("/v1/models", Authorization=f"Bearer {KEY}").status == 200
        assert client.ask("/_router/status").status == 200

        assert stat.S_IMODE(place.key_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
        for path in place.path.iterdir():
            assert KEY not in path.read_text()
    finally:
        place.key_file.unlink()


@pytest.mark.slow
def test_a_damaged_key_rejects_every_request(deployment: Deployment) -> None:
    deployment.place.create()
    deployment.place.key_file.write_text("{")
    deployment.ensure()
    client = deployment.client()
    answer = client.ask("/v1/models", Authorization=f"Bearer {KEY}")
    assert (answer.status, answer.code) == (503, "key_unreadable")
    deployment.place.write_key(KEY)
    assert client.ask("/v1/models").status == 401
    # One that is damaged later leaves the last one in force.
    deployment.place.key_file.write_text('{"salt": "", "hash": ""}')
    assert client.ask("/v1/models", Authorization="Bearer ").status == 401
