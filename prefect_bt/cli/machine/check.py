"""`prefect-bt check`: whether jobs can run on a substrate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt import codec
from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.definitions import parse_accelerator_option
from prefect_bt.jobs.substrate_check.checks import DEFAULT_IMAGE, CheckOptions, run_checks
from prefect_bt.settings import Settings
from prefect_bt.substrates.protocol import CheckResult, CheckStatus

_MARKS = {
    CheckStatus.PASSED: ("ok", "green"),
    CheckStatus.FAILED: ("FAILED", "red"),
    CheckStatus.SKIPPED: ("skipped", "yellow"),
}


def check(
    *,
    substrate: str | None = None,
    image: str = DEFAULT_IMAGE,
    accelerator: str | None = None,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 180.0,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Check that jobs can run: rights, store, image, two nodes, their network and GPUs.

    Two nodes are launched and removed. Each failure has its cure. The exit code is 1 after one.

    Args:
        substrate: Where nodes run: local, docker or kubernetes; default: PREFECT_BT_SUBSTRATE.
        image: Image of the two nodes, with a shell and Python.
        accelerator: GPUs of each node, as TYPE[:N]; default: none.
        timeout: Seconds that the nodes may need to start and end.

    Examples:

    `prefect-bt check --substrate kubernetes`

    `prefect-bt check --substrate docker --accelerator H100:1`
    """
    options = CheckOptions(
        substrate or Settings().substrate,
        image,
        parse_accelerator_option(accelerator) if accelerator else None,
        timeout,
    )
    results: list[CheckResult] = []
    for result in _run_with_spinner(terminal, options):
        results.append(result)
        if not terminal.machine_readable:
            _show(terminal, result)
    failed = sum(result.status is CheckStatus.FAILED for result in results)
    if terminal.machine_readable:
        checks = [codec.encode(result) for result in results]
        terminal.print_json(
            {"substrate": options.substrate, "passed": not failed, "checks": checks}
        )
    elif failed:
        terminal.error(f"{failed} of {len(results)} checks failed.")
    else:
        terminal.echo(f"Jobs can run on the substrate {options.substrate}.", style="green")
    return FAILED if failed else OK


def _run_with_spinner(terminal: Terminal, options: CheckOptions) -> Iterator[CheckResult]:
    """Yield the results. A spinner shows what is waited for, and is gone while one is printed."""
    updates: list[Callable[[str], None]] = []

    def report(text: str) -> None:
        updates[-1](text)

    results = run_checks(options, report=report)
    while True:
        with terminal.spinner("Checking") as update:
            updates.append(update)
            result = next(results, None)
        if result is None:
            return
        yield result


def _show(terminal: Terminal, result: CheckResult) -> None:
    mark, style = _MARKS[result.status]
    terminal.echo(f"{mark:<7}  {result.name:<21}  {result.detail}", style=style)
    if result.next_step:
        terminal.echo(f"{'':<9}{'':<21}  {result.next_step}")
