"""URIs of the Hub: types, revisions in either position, paths. As huggingface_hub reads them."""

from __future__ import annotations

import pytest

from prefect_bt.text.hub_uri import HubUri, parse_hub_uri, pin_hub_uri

COMMIT = "0123456789" * 4
SHARED = {
    "o/r": HubUri("o/r"),
    "o/r@main": HubUri("o/r", "main"),
    "o/r@pkg@1.0": HubUri("o/r", "pkg@1.0"),
    "o/r@feature%2Fx": HubUri("o/r", "feature/x"),
    "o/r@refs/pr/12": HubUri("o/r", "refs/pr/12"),
    "o/r@refs%2Fpr%2F12": HubUri("o/r", "refs/pr/12"),
    "o/r@refs/pr/12/sub": HubUri("o/r", "refs/pr/12", "sub"),
    "o/r@refs/convert/parquet/default/train": HubUri(
        "o/r", "refs/convert/parquet", "default/train"
    ),
    "o/r/sub": HubUri("o/r", "", "sub"),
    "o/r/a/b.json": HubUri("o/r", "", "a/b.json"),
    "o/r@v1/sub": HubUri("o/r", "v1", "sub"),
    "o/r@v1/a@b/c": HubUri("o/r", "v1", "a@b/c"),
    "models/o/r": HubUri("o/r"),
    "datasets/o/r": HubUri("o/r", type="datasets"),
    "datasets/o/r@v1/train": HubUri("o/r", "v1", "train", "datasets"),
    "spaces/o/r/app.py": HubUri("o/r", "", "app.py", "spaces"),
}
"""URIs that huggingface_hub reads, too."""
OURS = {
    "gpt2": HubUri("gpt2"),
    "gpt2@main": HubUri("gpt2", "main"),
    "o/r/sub/": HubUri("o/r", "", "sub"),
    "o/r/sub@v1": HubUri("o/r", "v1", "sub"),
    "o/r/sub@feature/x": HubUri("o/r", "feature/x", "sub"),
    "o/r/sub@refs/pr/1": HubUri("o/r", "refs/pr/1", "sub"),
    "datasets/squad": HubUri("squad", type="datasets"),
}
URIS = SHARED | OURS


@pytest.mark.parametrize("text", URIS)
def test_a_uri(text: str) -> None:
    assert parse_hub_uri(f"hf://{text}") == URIS[text]


@pytest.mark.parametrize("text", URIS)
def test_a_pinned_uri(text: str) -> None:
    parsed = parse_hub_uri(pin_hub_uri(f"hf://{text}", COMMIT))
    assert parsed == HubUri(URIS[text].repo_id, COMMIT, URIS[text].path, URIS[text].type)


@pytest.mark.parametrize("text", SHARED)
def test_a_uri_of_huggingface_hub(text: str) -> None:
    hf = pytest.importorskip("huggingface_hub.utils._hf_uris")
    theirs = hf.parse_hf_uri(f"hf://{text}")
    ours = URIS[text]
    assert (theirs.id, theirs.revision or "", theirs.path_in_repo, f"{theirs.type}s") == (
        *(ours.repo_id, ours.revision, ours.path, ours.type),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "o/", "o//r", "@main", "o/r@", "o/r/", "o/r//a", "o/r/a//b", "o/r/../x", "o/r/."),
        *("datasets/", "datasets/o/r/", "buckets/o/r", "kernels/o/r", "o/r@v1/a//b", "o/r@v1/.."),
    ],
)
def test_no_uri(text: str) -> None:
    with pytest.raises(ValueError, match="hf://"):
        parse_hub_uri(f"hf://{text}")
