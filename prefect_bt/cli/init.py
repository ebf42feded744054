"""`prefect-bt init`: create a training project, or copy examples."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from prefect_bt.cli.jobs.download import check_absent
from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.errors import WorkspaceError

_EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples"


def init(
    *,
    list_examples: bool = False,
    target_directory: Path | None = None,
    examples: str | None = None,
    terminal: InjectedTerminal,
) -> int:
    """Write config.py and run.sh into a new folder, or copy examples that run as they are.

    Args:
        list_examples: List the examples and do nothing.
        target_directory: Folder to create, or to copy examples into; default: truss-train-init,
            for examples the current directory.
        examples: Comma-separated names of examples to copy.

    Examples:

    `prefect-bt init --target-directory my-project`

    `prefect-bt init --examples lora-sft,full-finetune`
    """
    known = find_examples()
    if list_examples:
        _list(terminal, known)
        return OK
    wanted = [name.strip() for name in (examples or "").split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise WorkspaceError(
            f"There is no example {', '.join(map(repr, unknown))}.",
            next_step=f"Choose from: {', '.join(known)}.",
        )
    targets = {known[name]: (target_directory or Path.cwd()) / name for name in wanted}
    if not wanted:
        targets = {_EXAMPLES / "template": target_directory or Path("truss-train-init")}
    for target in targets.values():
        check_absent(target)
    for source, target in targets.items():
        _copy(terminal, source, target)
    return OK


def find_examples() -> dict[str, Path]:
    """Return the folders of the examples by name. The template has no README and is none."""
    return {readme.parent.name: readme.parent for readme in sorted(_EXAMPLES.glob("*/README.md"))}


def _list(terminal: Terminal, examples: dict[str, Path]) -> None:
    terminal.echo("Available training examples:", style="bold")
    for name, folder in examples.items():
        heading = (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0]
        summary = heading.partition(": ")[2]
        terminal.echo(f"- {name}: {summary}; needs {', '.join(_libraries(folder))}")
    terminal.echo("To get them: prefect-bt init --examples <example1,example2>")


def _libraries(folder: Path) -> list[str]:
    """Return the names in requirements.txt, which are also the names to import."""
    requirements = folder / "requirements.txt"
    text = requirements.read_text(encoding="utf-8") if requirements.exists() else ""
    return re.findall(r"^[a-z_]+", text, re.MULTILINE)


def _copy(terminal: Terminal, source: Path, target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "checkpoints")
    try:
        shutil.copytree(source, target, ignore=ignored)
    except OSError as error:
        raise WorkspaceError(
            f"{str(target)!r} cannot be created: {error.strerror}.", path=str(target)
        ) from error
    what = "Empty training project" if source.name == "template" else f"Example {source.name}"
    terminal.echo(f"{what} initialized at {target}", style="green")
    missing = [name for name in _libraries(source) if find_spec(name) is None]
    if missing:
        terminal.echo(f"Missing here: {', '.join(missing)}. Run: pip install 'prefect-bt[demo]'")
    terminal.echo(f"Next: prefect-bt push {target}/config.py --tail")
