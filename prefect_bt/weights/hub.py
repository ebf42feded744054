"""The Hugging Face Hub as a weights source: revision to commit, listing, download."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.errors import WeightsError


@dataclass(frozen=True)
class PinnedRepo:
    """A repository at one commit; `files` are its paths."""

    source: str
    repo_id: str
    revision: str
    files: tuple[str, ...]


def pin_revision(source: str, *, token: str | None = None) -> PinnedRepo:
    """`hf://owner/repo[@revision]` at the commit its revision names now; WeightsError."""
    from huggingface_hub import HfApi

    repo_id, _, revision = source.removeprefix("hf://").partition("@")
    with _Explained(source):
        info = HfApi().model_info(repo_id, revision=revision or None, token=token or False)
    files = tuple(sibling.rfilename for sibling in info.siblings or ())
    return PinnedRepo(source, repo_id, info.sha or revision or "main", files)


def download_files(
    repo: PinnedRepo, files: Sequence[str], target: Path, *, token: str | None = None
) -> None:
    """The files below `target`, in their folders; what is there already is not fetched again."""
    from huggingface_hub import (
        hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
    )

    with _Explained(repo.source):
        for name in files:
            hf_hub_download(
                repo.repo_id, name, revision=repo.revision, local_dir=target, token=token or False
            )
    shutil.rmtree(target / ".cache", ignore_errors=True)


class _Explained:
    """Turns the Hub's errors into ours, with the next step."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        import httpx
        from huggingface_hub import errors

        if error is None:
            return
        table: list[tuple[type[BaseException], str, str]] = [
            (errors.GatedRepoError, "is gated", "Accept its terms, and give auth with a token."),
            (errors.RevisionNotFoundError, "has no such revision", "Check what follows the @."),
            (
                errors.RepositoryNotFoundError,
                "does not exist, or is private",
                "Check its name, or give auth with a token that may read it.",
            ),
            (errors.HfHubHTTPError, f"could not be read ({error})", "Try again."),
            (httpx.HTTPError, f"could not be reached ({error})", "Is the Hub reachable from here?"),
            (OSError, f"could not be fetched ({error})", "Is the disk full, the network there?"),
        ]
        for known, what, next_step in table:
            if isinstance(error, known):
                raise WeightsError(
                    f"{self._source} {what}.", source=self._source, next_step=next_step
                ) from error
