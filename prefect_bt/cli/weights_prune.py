"""`prefect-bt weights prune`: remove mirrored sources that nobody uses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli import ages
from prefect_bt.cli.options import Here, Output, Yes
from prefect_bt.cli.terminal import FAILED, OK, Terminal, counted
from prefect_bt.cli.weights_places import Place, open_place
from prefect_bt.errors import PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.weights.inventory import Kept

LEFTOVER_SECONDS: Final = 7 * 86400.0
"""How long what is unfinished may wait for somebody to go on with it."""


@dataclass(frozen=True)
class _Policy:
    """Sizes in bytes, ages in seconds; what is None or empty asks for nothing."""

    names: tuple[str, ...] = ()
    keep_bytes: int | None = None
    older_than: float | None = None
    everything: bool = False

    @property
    def leftovers(self) -> float | None:
        """From which age on what is unfinished goes; None: it stays."""
        if self.everything:
            return 0.0
        return None if self.names else LEFTOVER_SECONDS


@dataclass
class _Choice:
    """`going` in order; `staying` is (tree, why). `freed` and `leftovers` in bytes."""

    going: list[Kept] = field(default_factory=list["Kept"])
    staying: list[tuple[Kept, str]] = field(default_factory=list[tuple["Kept", str]])
    freed: int = 0
    leftovers: int = 0

    @property
    def empty(self) -> bool:
        return not self.going and not self.leftovers


def prune_weights(
    *names: Annotated[str, Parameter(help="These: names, sources, or beginnings of names.")],
    keep_bytes: Annotated[
        str | None,
        Parameter(
            name=["--keep-bytes", "--max-bytes"],
            help="Until so much is left, such as 100GB: longest unused first. With --store by "
            "default PREFECT_BT_STORE_WEIGHTS_BYTES.",
        ),
    ] = None,
    older_than: Annotated[
        str | None, Parameter(help="What was not used for so long, such as 30d or 12h.")
    ] = None,
    everything: Annotated[bool, Parameter(name="--all", help="All of it.")] = False,
    store: Annotated[bool, Parameter(help="The store's copies instead of this machine's.")] = False,
    dry_run: Annotated[bool, Parameter(help="Only show what would go.")] = False,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Remove mirrored sources from this machine, or their copies from the store.

    What a running job uses stays; in the store also what a job needs that may be taken up again, a
    deployment, or a host that mirrors it now. What was begun and not touched for seven days goes as
    well, with --all whatever its age. A source that is gone is fetched again by the next job that
    needs it.

    `prefect-bt weights prune --keep-bytes 100GB --dry-run`

    `prefect-bt weights prune --store --max-bytes 1TB --dry-run`

    `prefect-bt weights prune --older-than 30d`
    """
    from prefect_bt.settings import Settings

    settings = Settings()
    if store and settings.store_weights_bytes and not (names or older_than or everything):
        keep_bytes = keep_bytes or str(int(settings.store_weights_bytes))
    policy = _policy(names, keep_bytes, older_than, everything)
    beside, place = terminal.beside(output), open_place(settings, store=store)
    choice = _choose(place, policy)
    _show(beside, place, choice)
    if dry_run or choice.empty:
        return _close(beside, choice, dry_run=dry_run, done=False, output=output)
    what = counted(len(choice.going), "tree") if choice.going else "what was begun and left"
    if not (yes or beside.confirm(f"Remove {what} from {place.title}?")):
        terminal.error("Nothing was removed.")
        return FAILED
    with beside.working("Removing"):
        _remove(place, policy, choice)
    return _close(beside, choice, dry_run=dry_run, done=True, output=output)


def _policy(
    names: tuple[str, ...], keep_bytes: str | None, older_than: str | None, everything: bool
) -> _Policy:
    asked = [bool(names), keep_bytes is not None, older_than is not None, everything]
    if sum(asked) != 1:
        raise PrefectBtError(
            "Nothing to prune was named." if not any(asked) else "Only one choice is possible.",
            next_step="Give names, --keep-bytes, --older-than or --all.",
        )
    return _Policy(
        names,
        _bytes(keep_bytes) if keep_bytes is not None else None,
        ages.older_than(older_than) if older_than is not None else None,
        everything,
    )


def _bytes(text: str) -> int:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise PrefectBtError(
            f"--keep-bytes {text!r} is no size.", next_step="Write 100GB, 1.5TB or 64GiB."
        ) from None


def _choose(place: Place, policy: _Policy) -> _Choice:
    kept = place.kept()
    wanted = _wanted(place, kept, policy)
    choice = _Choice()
    for one in kept:
        needed = place.needed(one)
        if needed and (one.name in wanted or policy.keep_bytes is not None):
            choice.staying.append((one, needed))
        elif one.name in wanted:
            choice.going.append(one)
        else:
            choice.staying.append((one, _why(policy)))
    choice.going.sort(key=lambda one: (place.used(one), one.name))
    choice.freed = place.freed_by({one.name for one in choice.going})
    if policy.leftovers is not None:
        choice.leftovers = place.leftovers(policy.leftovers)
    return choice


def _wanted(place: Place, kept: list[Kept], policy: _Policy) -> set[str]:
    from prefect_bt.cli.weights_verify import unknown
    from prefect_bt.weights.inventory import find_kept

    if policy.everything:
        return {one.name for one in kept}
    if policy.keep_bytes is not None:
        return set(place.evictions(policy.keep_bytes))
    if policy.older_than is not None:
        before = time.time() - policy.older_than
        return {one.name for one in kept if place.used(one) < before}
    found: set[str] = set()
    for name in policy.names:
        meant = find_kept(kept, name)
        if not meant:
            raise unknown(name, kept, place.title)
        found |= {one.name for one in meant}
    return found


def _why(policy: _Policy) -> str:
    if policy.older_than is not None:
        return "used since"
    return "there is room for it" if policy.keep_bytes is not None else "not named"


def _remove(place: Place, policy: _Policy, choice: _Choice) -> None:
    """What came into use in the last moment stays, and is told so."""
    freed = 0
    for one in list(choice.going):
        gone, size = place.remove(one)
        freed += size
        if not gone:
            choice.going.remove(one)
            choice.staying.append((one, "a job began to use it"))
    if policy.leftovers is not None:
        choice.leftovers = place.sweep(policy.leftovers)
    choice.freed = freed


def _show(terminal: Terminal, place: Place, choice: _Choice) -> None:
    from prefect_bt.checkpoints.telling import size
    from prefect_bt.cli.tables import Column, show_table
    from prefect_bt.weights.telling import shown

    if terminal.documents:
        return
    rows = [(one, "goes") for one in choice.going]
    rows += [(one, f"stays: {why}") for one, why in choice.staying]
    if rows:
        columns = [
            Column("Source", lambda row: shown(row["kept"].summary.source), least=20),
            Column("Revision", lambda row: row["kept"].summary.revision[:12], solid=True),
            Column("Size", lambda row: size(row["kept"].summary.bytes), solid=True),
            Column("What Happens", lambda row: row["what"], least=20),
        ]
        documents: list[dict[str, Any]] = [{"kept": one, "what": what} for one, what in rows]
        show_table(terminal, f"Weights on {place.title}", columns, documents)
    if choice.leftovers:
        terminal.say(f"As well: {size(choice.leftovers)} of what was begun and left.")


def _close(terminal: Terminal, choice: _Choice, *, dry_run: bool, done: bool, output: str) -> int:
    from prefect_bt.checkpoints.telling import size

    freed = choice.freed + choice.leftovers
    if output == "json":
        terminal.document(_document(choice, dry_run))
    elif done:
        terminal.say(f"Freed {size(freed)}.", style="green")
    elif dry_run and not choice.empty:
        terminal.say(f"Would free {size(freed)}. Nothing was removed.", style="yellow")
    else:
        terminal.say("Nothing is to be removed.")
    return OK


def _document(choice: _Choice, dry_run: bool) -> dict[str, Any]:
    from prefect_bt.weights.telling import shown

    def row(one: Kept) -> dict[str, Any]:
        source = shown(one.summary.source)
        return {"name": one.name, "source": source, "bytes": one.summary.bytes}

    return {
        "dry_run": dry_run,
        "freed_bytes": choice.freed + choice.leftovers,
        "leftover_bytes": choice.leftovers,
        "removed": [row(one) for one in choice.going],
        "kept": [{**row(one), "why": why} for one, why in choice.staying],
    }
