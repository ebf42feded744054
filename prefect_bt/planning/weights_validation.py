"""Validate weights: whether their sources can be mirrored and mounted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import ValidationError

from prefect_bt.definitions import TrainingJob, WeightsAuthMethod, WeightsSource, definition_error
from prefect_bt.errors import DefinitionError
from prefect_bt.planning.mount_validation import iter_target_problems
from prefect_bt.text.hub_uri import parse_hub_uri
from prefect_bt.text.url_redaction import redact_url

_SECRET: Final = WeightsAuthMethod.CUSTOM_SECRET
_METHODS: Final[Mapping[str, tuple[WeightsAuthMethod, ...]]] = {
    "s3": (_SECRET, WeightsAuthMethod.AWS_ASSUME_ROLE, WeightsAuthMethod.AWS_OIDC),
    "gs": (_SECRET, WeightsAuthMethod.GCP_OIDC),
    "file": (),
    "bt": (),
}
"""Authentication methods by scheme; the other schemes have a secret only."""


def validate_weights(job: TrainingJob) -> list[str]:
    """Return every reason why no machine could mirror or mount the job's weights."""
    problems = [*iter_source_problems(job), *iter_target_problems(job)]
    return [problem for problem in problems if problem.startswith("weights[")]


def iter_source_problems(job: TrainingJob) -> Iterator[str]:
    """Yield every reason why no machine could mirror the sources of the job's weights."""
    for index, source in enumerate(job.weights):
        yield from _validate_source(source, f"weights[{index}].")


def parse_weights_source(document: Mapping[str, object]) -> WeightsSource:
    """Return the source of an entry of `weights`, of which `mount_location` may be left out.

    Raise DefinitionError if it could not be mirrored.
    """
    try:
        source = WeightsSource.model_validate({"mount_location": "/weights", **document})
    except ValidationError as error:
        where = redact_url(str(document.get("source")))
        raise definition_error(error, WeightsSource, where=where) from None
    for problem in _validate_source(source, ""):
        raise DefinitionError(problem)
    return source


def _validate_source(source: WeightsSource, within: str) -> Iterator[str]:
    scheme, _, rest = source.source.partition("://")
    if why := _source_error(scheme, rest):
        yield f"{within}source {redact_url(source.source)!r} {why}"
    if source.allow_patterns == []:
        yield f"{within}allow_patterns is [], which matches no file; leave it out to mirror all."
    yield from _validate_weights_auth(source, scheme, within)


def _source_error(scheme: str, rest: str) -> str:
    """Return an error in the part after `://`; "" if there is none."""
    host, _, path = rest.partition("?")[0].partition("/")
    match scheme:
        case "hf" if rest.endswith("@") and host:
            why = "has no revision after the @; write a branch, a tag or a commit, or leave it out."
        case "hf" if not _is_hub_uri(f"hf://{rest}"):
            why = (
                "is not a repository; write hf://owner/repo[@revision][/path], or "
                "hf://datasets/owner/repo for a data set."
            )
        case "https" if "@" in host:
            why = "has a name or password before the @; leave it out and give auth_secret_name."
        case "https" if not path or path.endswith("/"):
            why = "names no file; write the URL of one file: https://host/path/file."
        case "r2" if not all(host.partition(".")[::2]):
            why = "names no bucket; write r2://account_id.bucket/prefix."
        case "azure" if not path.partition("/")[0]:
            why = "names no container; write azure://account/container/path."
        case "bt" if host.startswith("loops:"):
            why = "is a Loops checkpoint, which is not supported."
        case "bt" if "@" in path or host.startswith("@") or host.endswith("@"):
            why = "is malformed; write bt://project[@job][/checkpoint]."
        case _:
            why = ""
    return why


def _is_hub_uri(uri: str) -> bool:
    try:
        return bool(parse_hub_uri(uri))
    except ValueError:
        return False


def _validate_weights_auth(source: WeightsSource, scheme: str, within: str) -> Iterator[str]:
    possible = _METHODS.get(scheme, (_SECRET,))
    if not possible:
        if source.auth or source.auth_secret_name:
            what = "is a folder" if scheme == "file" else "is in this store"
            yield f"{within}source {source.source!r} {what} and takes no auth; leave auth out."
        return
    method = source.auth.auth_method if source.auth else _SECRET
    if method not in possible:
        yield (
            f"{within}auth.auth_method is {method.value}; {scheme}:// takes "
            f"{' or '.join(each.value for each in possible)}"
            f"{': give auth_secret_name' if possible == (_SECRET,) else ''}."
        )
    elif method is not _SECRET and source.auth_secret_name:
        yield (
            f"{within}auth_secret_name is given, but {method.value} takes no secret; "
            "leave one of them out."
        )
