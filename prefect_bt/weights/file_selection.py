"""Which files of a listing a source asks for: one answer for who fetches and who asks why."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, quote, validate_paths
from prefect_bt.weights.sources.patterns import filter_paths
from prefect_bt.weights.url_redaction import redact_url


def select_files(plan: WeightsPlan, listing: Listing) -> list[ListedFile]:
    """In the listing's order. WeightsError for none, and for names that cannot be mounted."""
    files = {file.path: file for file in listing.files}
    _check_twice(plan, listing, files)
    chosen = filter_paths(files, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    if not chosen:
        why = f"the patterns match none of its {len(files)} files" if files else "it is empty"
        raise WeightsError(
            f"{redact_url(plan.source)}: {why}.",
            source=plan.source,
            next_step="`*` matches the top level only; `**/*` matches every folder."
            if files
            else "Check the source.",
        )
    validate_paths(redact_url(plan.source), chosen)
    return [files[path] for path in chosen]


def _check_twice(plan: WeightsPlan, listing: Listing, files: Mapping[str, ListedFile]) -> None:
    """WeightsError for one path with two contents."""
    for file in listing.files:
        if files[file.path] != file:
            raise WeightsError(
                f"{redact_url(plan.source)} lists {quote(file.path)} twice, and not the same file.",
                source=plan.source,
                next_step="Nothing was fetched. Tell whoever keeps the source.",
            )
