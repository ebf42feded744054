"""`prefect-bt weights why`: what a job would fetch, from where, and why again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.cli.weights.sources import (
    NO_SOURCES,
    ConfigPath,
    RequestedSource,
    SourceOptions,
    open_cache,
    open_weights_store,
    resolve_secret,
    resolve_sources,
)
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.object_store.protocols import Store
    from prefect_bt.settings import Settings
    from prefect_bt.weights.cache.node_cache import NodeCache
    from prefect_bt.weights.explain import Explanation

_STATUS_MESSAGES: Final = {
    "staged": "here: a job mounts it at once",
    "cached": "all of its content is here: a job links it",
    "in_store": "the store has it; the source sends nothing",
    "partial": "some of it is here; the rest comes from the source",
    "upstream": "nothing of it is here; all of it comes from the source",
    "refused": "refused: a job would fail",
}
_STYLES: Final = {"refused": "red", "staged": "green", "cached": "green"}


def why_weights(
    config: ConfigPath = None,
    /,
    *,
    given: SourceOptions = NO_SOURCES,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show what a job would fetch of each source: how much, from where, and why again.

    Asks the sources what they hold; fetches nothing and writes nothing. Ends with 1 when a source
    would be refused.

    `prefect-bt weights why config.py`

    `prefect-bt weights why --source hf://owner/repo@main --allow "*.safetensors" -o json`
    """
    from prefect_bt import codec
    from prefect_bt.settings import Settings
    from prefect_bt.weights.explain import SourceStatus

    settings, beside = Settings(), terminal.for_output(output)
    asked = resolve_sources(config, given)
    cache, store = open_cache(settings), open_weights_store(settings)
    with beside.spinner("Asking the sources"):
        answers = [_explain_source(one, cache, store, settings) for one in asked]
    if output == "json":
        beside.print_json({"weights": [_row(codec.encode(one)) for one in answers]})
    else:
        for answer in answers:
            _show(beside, answer)
        _show_total(beside, answers)
    return FAILED if any(one.status is SourceStatus.REFUSED for one in answers) else OK


def _explain_source(
    source: RequestedSource, cache: NodeCache, store: Store, settings: Settings
) -> Explanation:
    from prefect_bt.weights.explain import explain_source, refused_explanation

    plan = source.plan
    if source.problems:
        return refused_explanation(plan, PrefectBtError(" ".join(source.problems)))
    try:
        secret = resolve_secret(plan)
    except PrefectBtError as error:
        return refused_explanation(plan, error)
    return explain_source(
        plan,
        cache=cache,
        secret=secret,
        store=store,
        upload_to_store=settings.mirror_to_store,
        stall_timeout=settings.stall_seconds,
    )


def _show_total(terminal: Terminal, answers: list[Explanation]) -> None:
    """Each may fit, and not all of them together."""
    from prefect_bt.text.quantities import format_size

    needed = sum(one.disk.needed for one in answers)
    if len(answers) < 2 or not needed:
        return
    free = max(one.disk.free for one in answers)
    terminal.echo(
        f"All together: {format_size(needed)} needed, {format_size(free)} free.",
        style="red" if needed > free else "",
    )


def _row(encoded: dict[str, Any]) -> dict[str, Any]:
    largest = [{"path": path, "bytes": size} for path, size in encoded["largest"]]
    return {**encoded, "largest": largest}


def _show(terminal: Terminal, answer: Explanation) -> None:
    from rich.text import Text

    from prefect_bt.cli.ui.tables import Cell, show_fields
    from prefect_bt.text.progress import format_items
    from prefect_bt.text.quantities import format_size

    def share(count: int, total: int) -> str | None:
        return f"{format_items(count)}, {format_size(total)}" if count else None

    disk, status = answer.disk, answer.status.value
    fields: list[tuple[str, Cell | None]] = [
        ("Status", Text(_STATUS_MESSAGES[status], style=_STYLES.get(status, ""))),
        ("Error", Text(answer.error, style="red") if answer.error else None),
        ("Next Step", answer.next_step or None),
        ("Mounted At", answer.mount_location),
        ("Revision", answer.revision or None),
        ("Pinned By", answer.pinned_by or None),
        ("Read With", answer.auth),
        ("In All", share(answer.files, answer.bytes)),
        ("Here", share(answer.here.files, answer.here.bytes)),
        ("From The Store", share(answer.store.files, answer.store.bytes)),
        ("From The Source", share(answer.upstream.files, answer.upstream.bytes)),
        ("Begun", f"{format_size(answer.partial_bytes)} of that" if answer.partial_bytes else None),
        ("Fetched Again", answer.again or None),
        ("Largest", ", ".join(f"{path} ({format_size(n)})" for path, n in answer.largest) or None),
        (
            "Disk",
            f"{format_size(disk.needed)} needed, {format_size(disk.free)} free"
            if disk.needed
            else None,
        ),
        ("Evicts", ", ".join(answer.evicts) or None),
    ]
    show_fields(terminal, answer.source, fields)
