"""`prefect-bt api-key`: create, list and revoke the keys of the HTTP API."""

from __future__ import annotations

from typing import Final

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.tables import Column, format_time, show_table
from prefect_bt.http_api.keys import ApiKeys, key_document
from prefect_bt.job_service.remotes import check_remote, find_trussrc, write_remote
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.text.durations import parse_duration

_COLUMNS: Final = [
    Column("ID", "id"),
    Column("Name", "name"),
    Column("Team", "", lambda row: row["team"] or "all"),
    Column("Created", "created_at", format_time),
    Column("Expires", "", lambda row: format_time(row["expires_at"]) or "never"),
]


def create_key(
    name: str,
    /,
    *,
    team: str | None = None,
    expires: str | None = None,
    trussrc: str | None = None,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Create a key and print it. It is shown once: the store has only its hash.

    Args:
        name: Name of the key, such as that of its user or machine.
        team: Team whose projects the key gives access to; default: all teams.
        expires: Time after which the key is refused: 30d, 12h.
        trussrc: Also write a remote of this name to ~/.trussrc, for `truss` and `--remote`.

    Examples:

    `prefect-bt api-key create laptop --trussrc ours`

    `prefect-bt api-key create ci --team research --expires 30d`
    """
    lifetime = None if expires is None else parse_duration(expires, field="--expires")
    path = find_trussrc()
    if trussrc is not None:
        check_remote(path, trussrc)
    key, record = ApiKeys(open_ledger().store).create(name, team=team, lifetime=lifetime)
    if trussrc is not None:
        write_remote(path, trussrc, key)

    def show() -> None:
        terminal.echo(key)
        terminal.info("Keep it: it is not shown again.")
        if trussrc is not None:
            terminal.info(f"The remote {trussrc!r} is in {path}. Try it:")
            terminal.info(f"  prefect-bt view --remote {trussrc}")
            terminal.info(f"  prefect-bt truss -- train view --remote {trussrc}")

    return terminal.print_result({**key_document(record), "key": key}, show)


def list_keys(*, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """List the keys, without the keys themselves.

    Examples:

    `prefect-bt api-key list`
    """
    rows = [key_document(record) for record in ApiKeys(open_ledger().store).list()]

    def show() -> None:
        if rows:
            show_table(terminal, "API keys", _COLUMNS, rows)
        else:
            terminal.echo("There is no key yet. Create one: prefect-bt api-key create NAME")

    return terminal.print_result({"api_keys": rows}, show)


def revoke_key(name: str, /, *, output: Output = "cli-table", terminal: InjectedTerminal) -> int:
    """Revoke a key. Servers refuse it within five seconds.

    Args:
        name: Name or ID of the key.

    Examples:

    `prefect-bt api-key revoke laptop`
    """
    record = ApiKeys(open_ledger().store).revoke(name)
    done = f"The key {record.name} ({record.id}) is revoked."
    return terminal.print_result(key_document(record), lambda: terminal.echo(done, style="green"))
