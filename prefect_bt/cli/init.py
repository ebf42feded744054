"""`prefect-bt init`: a folder to start from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from prefect_bt.cli.init_template import CONFIG, RUN_SCRIPT
from prefect_bt.cli.options import Here
from prefect_bt.cli.terminal import OK, Terminal
from prefect_bt.errors import WorkspaceError

TEMPLATE_FOLDER: Final = "truss-train-init"


def init(
    *,
    list_examples: Annotated[bool, Parameter(help="List the examples and do nothing.")] = False,
    target_directory: Annotated[
        Path | None,
        Parameter(help=f"Folder to make (template: {TEMPLATE_FOLDER}), or to put examples in."),
    ] = None,
    examples: Annotated[str | None, Parameter(help="Examples to copy: `a,b`.")] = None,
    terminal: Here,
) -> int:
    """Make a training project to start from: config.py and run.sh, or copies of examples.

    `prefect-bt init --target-directory my-project`

    `prefect-bt init --examples tiny-lm`
    """
    known = find_examples()
    if list_examples:
        _list(terminal, known)
        return OK
    wanted = [name.strip() for name in (examples or "").split(",") if name.strip()]
    if not wanted:
        _write_template(terminal, target_directory or Path(TEMPLATE_FOLDER))
    _check_known(wanted, known)
    for name in wanted:
        _copy(terminal, known[name], (target_directory or Path.cwd()) / name)
    return OK


def find_examples() -> dict[str, Path]:
    """Folders with a config.py in `examples/` beside the package: there in a checkout only."""
    import prefect_bt

    folder = Path(prefect_bt.__file__).resolve().parents[1] / "examples"
    return {config.parent.name: config.parent for config in sorted(folder.glob("*/config.py"))}


def _list(terminal: Terminal, known: dict[str, Path]) -> None:
    terminal.say("Available training examples:", style="bold")
    for name in known:
        terminal.say(f"- {name}")
    if known:
        terminal.say("To get them: prefect-bt init --examples <example1,example2>")
    else:
        terminal.say("- none in this installation; `prefect-bt init` alone writes a template")


def _check_known(wanted: list[str], known: dict[str, Path]) -> None:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise WorkspaceError(
            f"There is no example {', '.join(map(repr, unknown))}.",
            next_step=f"Choose from: {', '.join(known) or 'none in this installation'}.",
        )


def _write_template(terminal: Terminal, target: Path) -> None:
    _make(target)
    (target / "config.py").write_text(CONFIG)
    script = target / "run.sh"
    script.write_text(RUN_SCRIPT)
    script.chmod(0o755)
    terminal.say(f"Empty training project initialized at {target}", style="green")
    terminal.say(f"Next: prefect-bt push {target}/config.py --tail")


def _copy(terminal: Terminal, source: Path, target: Path) -> None:
    _make(target)
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    terminal.say(f"Training directory for {source.name} initialized at {target}", style="green")
    terminal.say(f"Next: prefect-bt push {target}/config.py --tail")


def _make(target: Path) -> None:
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise WorkspaceError(
            f"{str(target)!r} exists already.",
            next_step="Remove it, or give another --target-directory.",
            path=str(target),
        ) from None
    except OSError as error:
        raise WorkspaceError(
            f"{str(target)!r} cannot be made: {error.strerror}.", path=str(target)
        ) from error
