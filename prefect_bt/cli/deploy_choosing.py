"""From options, a config and answers to what is deployed: the order of §11.1.

What is wrong with an option is said before anything is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.deploy_options import (
    ServingChoices,
    read_accelerator,
    read_gate_file,
    served_names,
)
from prefect_bt.cli.deploy_wizard import Wizard
from prefect_bt.cli.options import JobFilter
from prefect_bt.cli.selection import find_jobs
from prefect_bt.cli.terminal import Terminal
from prefect_bt.errors import DefinitionError

if TYPE_CHECKING:
    from prefect_bt.definitions import AcceleratorSpec, Compute, DeployCheckpointsConfig
    from prefect_bt.definitions.variables import EnvironmentVariables
    from prefect_bt.deploying import DeployOptions
    from prefect_bt.ledger import Ledger
    from prefect_bt.serving.choosing import Wish
    from prefect_bt.serving.served import Choice
    from prefect_bt.serving.shelves import Shelf
    from prefect_bt.substrates.protocol import Capacity

_BASE: Final = "checkpoint_details.base_model_id"
_HF_TOKEN: Final = "HF_TOKEN"


@dataclass(frozen=True)
class Desk:
    """What somebody gave, and whom to ask for the rest."""

    ledger: Ledger
    config: DeployCheckpointsConfig
    which: JobFilter
    given: ServingChoices
    wizard: Wizard

    @property
    def terminal(self) -> Terminal:
        return self.wizard.terminal


def decide(desk: Desk) -> tuple[Choice, DeployOptions]:
    """What is served, and how. Errors as choose's; CycloptsError for what a script left out."""
    options = _options(desk)
    choice = _choice(desk)
    name = options.model_name or _model_name(desk, choice)
    server = replace(
        options.server,
        compute=_compute(desk, options.substrate),
        environment=_environment(desk, choice),
    )
    return choice, replace(options, model_name=name, server=server)


def _options(desk: Desk) -> DeployOptions:
    """All that needs no answer."""
    from prefect_bt.definitions import Image
    from prefect_bt.deploying import DeployOptions
    from prefect_bt.jobs import who_asks
    from prefect_bt.serving.choosing import check_model_name
    from prefect_bt.serving.engines import find_engine
    from prefect_bt.serving.project import ServerOptions
    from prefect_bt.settings import Settings

    given, name = desk.given, desk.given.model_name
    told = name if name is not None else desk.config.model_name or ""
    if told or name is not None:
        check_model_name(told)
    if given.engine is not None:
        find_engine(given.engine)
    if given.accelerator is not None:
        read_accelerator(given.accelerator)
    return DeployOptions(
        model_name=told,
        server=ServerOptions(
            engine=given.engine or "",
            image=Image(base_image=given.image) if given.image else None,
        ),
        substrate=given.substrate or Settings().substrate,
        host=given.host or "",
        port=given.port,
        key_secret=given.api_key_secret or "",
        patience=given.patience,
        gate=read_gate_file(given.gate) if given.gate else None,
        hold=given.hold,
        by=who_asks(),
    )


# -- which checkpoints ------------------------------------------------------------------------


def _choice(desk: Desk) -> Choice:
    from prefect_bt.definitions import CheckpointList
    from prefect_bt.serving.choosing import choose
    from prefect_bt.serving.questions import ask_base_model

    details = desk.config.checkpoint_details or CheckpointList()
    wanted, told = _wanted(desk), desk.given.base_model or details.base_model_id or ""

    def chosen(base: str) -> Choice:
        with desk.terminal.working("Looking at the checkpoints"):
            return choose(
                desk.ledger,
                wanted,
                base_model=base,
                served_names=served_names(desk.given.served_name),
                download_folder=details.download_folder,
            )

    try:
        choice = chosen(told)
    except DefinitionError as error:
        if error.field != _BASE:
            raise
        if not desk.wizard.can_ask:
            raise _naming_the_option(error) from error
        desk.terminal.warn(error.what)
        return chosen(desk.wizard.one(ask_base_model(), "--base-model", check=_check_base))
    if choice.base and not told:
        what = "tokenizer is that of" if choice.base.tokenizer_only else "base model is"
        desk.terminal.note(f"The {what} {choice.base.model}, as the checkpoint tells.")
    return choice


def _wanted(desk: Desk) -> Sequence[Wish]:
    """Options win over the config."""
    from prefect_bt.serving.choosing import Wish, wishes_of
    from prefect_bt.serving.questions import ask_checkpoints
    from prefect_bt.serving.shelves import LATEST

    which, names = desk.which, desk.given.checkpoint
    told = wishes_of(desk.config.checkpoint_details)
    if told and not (names or which.job_id or which.wanted_project):
        return told
    shelf = _shelf(desk)
    if not names and not shelf.servable:  # the newest one says why
        names = (shelf.items[-1].name if shelf.items else LATEST,)
    if not names:
        names = desk.wizard.many(ask_checkpoints(shelf), f"--checkpoint {LATEST}, or by name")
    return tuple(Wish(shelf.job.id, name) for name in names)


def _shelf(desk: Desk) -> Shelf:
    """Of the job that was named, else of the newest with something to serve."""
    from prefect_bt.serving.shelves import look, newest_shelf

    which = desk.which
    with desk.terminal.working("Fetching the job's checkpoints"):
        if which.job_id is not None:
            shelf = look(desk.ledger, which.job_id)
            find_jobs(desk.ledger, which, desk.terminal)  # it is of the project that was named
            return shelf
        jobs = find_jobs(desk.ledger, which, desk.terminal)
        shelf = newest_shelf(desk.ledger, which.wanted_project or "")
    if len(jobs) > 1:
        desk.terminal.warn(
            f"{len(jobs)} jobs match; this is the newest with something to serve: {shelf.job.id}."
        )
    return shelf


def _naming_the_option(error: DefinitionError) -> DefinitionError:
    step = f"{error.next_step} Here that is --base-model."
    return DefinitionError(error.what, next_step=step, field=error.field)


def _check_base(answer: str) -> None:
    from prefect_bt.serving.bases import told_base

    told_base(answer)


# -- how they are served ----------------------------------------------------------------------


def _model_name(desk: Desk, choice: Choice) -> str:
    from prefect_bt.serving.choosing import check_model_name
    from prefect_bt.serving.questions import ask_model_name

    return desk.wizard.one(ask_model_name(choice), "--model-name", check=check_model_name)


def _compute(desk: Desk, substrate: str) -> Compute:
    """The config's, with the accelerator that was told or answered."""
    from prefect_bt.definitions import Compute

    given, old = desk.given.accelerator, desk.config.compute
    if given is None and old is not None and (old.accelerator or not desk.wizard.can_ask):
        return old
    spec = read_accelerator(given) if given is not None else _asked_accelerator(desk, substrate)
    compute = old or Compute(cpu_count=0, memory="0Mi")  # all there is (§11.1)
    return compute.model_copy(update={"accelerator": spec})


def _asked_accelerator(desk: Desk, substrate: str) -> AcceleratorSpec | None:
    from prefect_bt.serving.questions import (
        NONE,
        answered_compute,
        ask_accelerator,
        ask_count,
    )

    capacity = _capacity(substrate)
    kind = desk.wizard.one(ask_accelerator(capacity), "--accelerator")
    if kind == NONE:
        return None
    count = desk.wizard.one(ask_count(capacity), "--accelerator TYPE:N")
    return answered_compute(kind, int(count)).accelerator


def _capacity(substrate: str) -> Capacity:
    from prefect_bt.settings import Settings
    from prefect_bt.substrates import open_substrate

    return open_substrate(substrate, **Settings().substrate_options(substrate)).capacity()


def _environment(desk: Desk, choice: Choice) -> EnvironmentVariables:
    """The config's, and the token that the Hub is asked for the base model with.

    A script that names none has none: most models need no token.
    """
    from prefect_bt.definitions import SecretReference
    from prefect_bt.serving.questions import NONE, ask_hf_secret

    runtime = desk.config.runtime
    environment = dict(runtime.environment_variables) if runtime else {}
    secret = desk.given.hf_secret
    from_hub = choice.base is not None and choice.base.source.startswith("hf://")
    if secret is None and from_hub and not environment and desk.wizard.can_ask:
        secret = desk.wizard.one(ask_hf_secret(), "--hf-secret")
    if secret and secret != NONE:
        environment[_HF_TOKEN] = SecretReference(name=secret)
    return environment
