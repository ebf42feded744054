"""The Hugging Face Hub as a weights source: revision to commit, listing, download.

The files are fetched by huggingface_hub into a folder: over Xet where the Hub offers it
(`HF_HUB_DISABLE_XET` turns that off), by plain HTTP where not; a file that its own cache on this
machine has is copied from there. Whole files survive an interruption, a half one is fetched again.
The token goes to the Hub alone, and no token of the environment is ever used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.weights.credentials import read_token
from prefect_bt.weights.listing import ListedFile, Listing
from prefect_bt.weights.source import READ_BYTES, STALL_SECONDS, Interrupted, SourceRequest
from prefect_bt.weights.streams import BUSY, byte_range, cut

SMALL_BYTES: Final = 16 * 1024**2
"""Files up to this size are fetched several at a time; a stop never waits for more of them."""
SMALL_AT_ONCE: Final = 8
LISTING_SECONDS: Final = 60.0
"""Without a byte, before the Hub is said not to answer; huggingface_hub alone would wait on."""
_PARTIAL: Final = 206
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def split_source(source: str) -> tuple[str, str]:
    """`hf://owner/repo@main` -> `("owner/repo", "main")`; the revision is empty when not given."""
    repo_id, _, revision = source.removeprefix("hf://").partition("@")
    return repo_id, revision


class HubSource:
    """Implements weights.source.Source and Fetches; `read` is the plain way beside Xet."""

    pins = True

    def __init__(self, source: str, token: str | None) -> None:
        self._source, self._token = source, token
        self._repo_id, self._revision = split_source(source)
        self._commit = self.fixed

    @classmethod
    def open(cls, request: SourceRequest) -> HubSource:
        secret = request.secret
        return cls(request.plan.source, read_token(request.plan, secret) if secret else None)

    @property
    def fixed(self) -> str:
        """The commit that the source itself names; "" when the Hub must be asked."""
        return self._revision if _COMMIT.fullmatch(self._revision) else ""

    def list(self) -> Listing:
        """The repository at the commit that its revision names now; WeightsError."""
        from huggingface_hub import HfApi

        with _Explained(self._source, self._token):
            info = HfApi().model_info(
                self._repo_id,
                revision=self._revision or None,
                files_metadata=True,
                token=self._token or False,
                timeout=LISTING_SECONDS,
            )
        files = tuple(
            ListedFile(
                path=sibling.rfilename,
                size=sibling.lfs.size if sibling.lfs else sibling.size,
                sha256=sibling.lfs.sha256 if sibling.lfs else "",
                git_sha1="" if sibling.lfs else sibling.blob_id or "",
            )
            for sibling in info.siblings or ()
        )
        if not info.sha:
            raise WeightsError(
                f"{self._source}: the Hub did not say which commit this is.",
                source=self._source,
                next_step="If HF_ENDPOINT is set, check that a Hub answers there.",
            )
        self._commit = info.sha
        return Listing(self._source, info.sha, files)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
            get_session,
            hf_raise_for_status,
        )

        url = hf_hub_url(self._repo_id, file.path, revision=self._commit)
        headers = build_hf_headers(token=self._token or False)
        headers |= {"Range": byte_range(start, length), "Accept-Encoding": "identity"}
        if not length or file.size == 0:
            return  # no server has a range of nothing
        with (
            _Explained(self._source, self._token),
            get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=STALL_SECONDS
            ) as answer,
        ):
            hf_raise_for_status(answer)
            skip = start if answer.status_code != _PARTIAL else 0
            yield from cut(answer.iter_raw(READ_BYTES), skip=skip, length=length)

    def fetch(self, files: Sequence[ListedFile], target: Path) -> None:
        """The files below `target`, in their folders; what is there whole is not fetched again."""
        from huggingface_hub import (
            hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
        )

        def bring(file: ListedFile) -> None:
            hf_hub_download(
                self._repo_id,
                file.path,
                revision=self._commit,
                local_dir=target,
                token=self._token or False,
            )

        small = [file for file in files if (file.size or 0) <= SMALL_BYTES]
        large = [file for file in files if (file.size or 0) > SMALL_BYTES]
        with _Explained(self._source, self._token):
            _drop_halves(target)
            with ThreadPoolExecutor(SMALL_AT_ONCE, "prefect-bt-weights") as pool:
                for _ in pool.map(bring, small):
                    pass
            for file in large:
                bring(file)

    def forget(self, file: ListedFile, target: Path) -> None:
        (target / file.path).unlink(missing_ok=True)
        (_bookkeeping(target) / "download" / f"{file.path}.metadata").unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Remove what huggingface_hub keeps beside the files."""
        shutil.rmtree(_bookkeeping(target), ignore_errors=True)
        with suppress(OSError):  # the repository has files of its own there, or no such folder
            (target / ".cache").rmdir()


def _bookkeeping(target: Path) -> Path:
    return target / ".cache" / "huggingface"


def _drop_halves(target: Path) -> None:
    """huggingface_hub gives a download a name of its own each time, so nobody continues these."""
    for half in _bookkeeping(target).rglob("*.incomplete"):
        half.unlink(missing_ok=True)


class _Explained:
    """Turns the Hub's errors into ours: one sentence, the next step, never a URL or a header."""

    def __init__(self, source: str, token: str | None) -> None:
        self._source, self._has_token = source, bool(token)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if error is None:
            return
        explained = self._explain(error)
        if explained is not None:
            what, next_step = explained
            kind_of_ours = Interrupted if _may_pass(error) else WeightsError
            raise kind_of_ours(
                f"{self._source} {what}.", source=self._source, next_step=next_step
            ) from error

    def _explain(self, error: BaseException) -> tuple[str, str] | None:
        from huggingface_hub import constants, errors

        if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
            return self._explain(error.__cause__)  # its own text is about its cache
        hub = constants.ENDPOINT
        give = "Give auth with a token that may read it."
        if self._has_token:
            give = "Check that its token is valid and may read it."
        transport = errors.HfHubHTTPError.__bases__[0]  # of whichever httpx huggingface_hub uses
        table: list[tuple[type[BaseException], str, str]] = [
            (errors.GatedRepoError, "is gated", f"Accept its terms on the Hub. {give}"),
            (errors.RevisionNotFoundError, "has no such revision", "Check what follows the @."),
            (
                errors.RepositoryNotFoundError,
                f"does not exist at {hub}, or is private",
                f"Check its name. {give}",
            ),
            (errors.HFValidationError, "is no repository", "Write hf://owner/repo[@revision]."),
            (
                errors.OfflineModeIsEnabled,
                "cannot be asked for: HF_HUB_OFFLINE is set",
                "Unset it, or name a commit that was mirrored before: hf://owner/repo@<commit>.",
            ),
            (
                errors.HfHubHTTPError,
                f"could not be read: {hub} answered {_status(error)}",
                give if _status(error) in {"401", "403"} else "Push again when it is well.",
            ),
            (
                transport,
                f"could not be fetched from {hub} ({type(error).__name__}: {error})",
                "Check the network and HF_ENDPOINT, and push again: what is here already is kept.",
            ),
            (
                OSError,
                f"could not be fetched ({error})",
                "Check the disk and the network, and push again: what is here already is kept.",
            ),
        ]
        return next(((what, step) for kind, what, step in table if isinstance(error, kind)), None)


def _may_pass(error: BaseException) -> bool:
    """Whether the Hub may be well the next time it is asked."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        return _may_pass(error.__cause__)
    if isinstance(error, errors.HfHubHTTPError):
        return _status(error) in BUSY
    return isinstance(error, errors.HfHubHTTPError.__bases__[0])


def _status(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(getattr(response, "status_code", "with an error"))
