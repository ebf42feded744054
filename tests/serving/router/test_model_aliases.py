"""A request may call a model by its deployment's name; nothing else of it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_bt.serving.router.model_aliases import replace_model_alias
from tests.serving.router.machine import Client, Deployment, Upstream

ALIASES = {"stories": "checkpoint-1"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":  "checkpoint-1"}',
        b'{"model": "other", "text": "stories"}',
        b'["stories"]',
        b'"stories"',
        b'{"model": ["stories"]}',
        b'{"model": "stories"',
        b"stories \xff",
        b"",
    ],
)
def test_what_names_no_alias_stays_byte_by_byte(body: bytes) -> None:
    assert replace_model_alias(body, ALIASES) is body


AWKWARD = st.text(alphabet='\\"{}[]:,model é', max_size=8) | st.sampled_from(["model", "stories"])
VALUES = st.recursive(
    AWKWARD | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(AWKWARD, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(AWKWARD, VALUES), VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_of_any_object_only_the_outermost_model_is_replaced(
    rest: dict[str, Any], model: Any, ascii_only: bool, indent: int | None
) -> None:
    asked = {**rest, "model": model}
    body = json.dumps(asked, ensure_ascii=ascii_only, indent=indent).encode()
    named = "checkpoint-1" if model == "stories" else model
    assert json.loads(replace_model_alias(body, ALIASES)) == {**asked, "model": named}


@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_alias_beyond_ascii_is_replaced(ascii_only: bool) -> None:
    body = json.dumps({"model": "Märchen"}, ensure_ascii=ascii_only).encode()
    assert json.loads(replace_model_alias(body, {"Märchen": "a"})) == {"model": "a"}


def test_a_long_value_is_read_over() -> None:
    asked = {"model": "stories" * 1000, "stories": "stories", "x": {"model": "stories"}}
    body = json.dumps(asked).encode()
    assert replace_model_alias(body, ALIASES) is body


def test_the_rest_of_a_request_stays() -> None:
    asked = {"stream": True, "model": "stories", "messages": [{"content": "stories é"}], "n": 1.5}
    passed = json.loads(replace_model_alias(json.dumps(asked).encode(), ALIASES))
    assert passed == {**asked, "model": "checkpoint-1"}
    assert list(passed) == list(asked)


@pytest.fixture
def client(routed: Deployment, one: Upstream) -> Iterator[Client]:
    routed.place.write_route(replace(one.route, aliases=ALIASES))
    client = routed.client()
    yield client
    client.close()
    routed.place.write_route(one.route)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 3 * 1024 * 1024], ids=["small", "3 MiB"])
def test_the_server_is_asked_for_its_own(client: Client, size: int) -> None:
    """Images in a chat make its JSON large."""
    body = {"model": "stories", "image": "x" * size}
    echoed = client.ask("/echo", body, **JSON)
    assert echoed.json == {**body, "model": "checkpoint-1"}
    assert client.chat().json["said"] == "hello", "the connection goes on"


def test_a_body_that_is_not_json_is_not_read(client: Client) -> None:
    raw = b'{"model": "stories"}'
    assert client.ask("/echo", raw, **{"Content-Type": "text/plain"}).body == raw
