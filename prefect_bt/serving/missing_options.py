"""Build the questions for missing options of a deployment, as data.

A terminal shows a question and reads the answers; a script passes them as options. This module asks
nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect_bt.definitions import (
    Accelerator,
    AcceleratorSpec,
    Compute,
    ModelWeightsFormat,
)
from prefect_bt.serving.servable_checkpoints import ServableCheckpoints
from prefect_bt.serving.served_model import ModelSelection
from prefect_bt.substrates.protocol import Capacity

NONE_OPTION = "none"
DEFAULT_SECRET = "hf_access_token"


@dataclass(frozen=True)
class Option:
    """`value` is what a script gives, `label` what a person reads."""

    value: str
    label: str


@dataclass(frozen=True)
class Question:
    """`field` names what is missing; `default` is one value, or empty.

    `multiple`: any number of the options, one at least. `allows_free_text`: any text, also where
    there are options.
    """

    field: str
    text: str
    options: tuple[Option, ...] = ()
    default: str = ""
    multiple: bool = False
    allows_free_text: bool = False

    @property
    def only_option(self) -> str:
        """What need not be asked, because there is nothing else; empty where there is a choice."""
        return self.options[0].value if len(self.options) == 1 and not self.allows_free_text else ""


def checkpoints_question(choices: ServableCheckpoints) -> Question:
    """Newest first."""
    options = tuple(
        Option(one.name, f"{one.name}  {one.contents.format or ''}".rstrip())
        for one in reversed(choices.servable)
    )
    return Question(
        "checkpoints",
        f"Which checkpoints of {choices.job.name}?",
        options,
        default=_first(options),
        multiple=True,
    )


def base_model_question() -> Question:
    """For adapters that do not tell theirs."""
    return Question(
        "base_model_id",
        "Which base model were they trained on? (an id of the Hub)",
        allows_free_text=True,
    )


def model_name_question(choice: ModelSelection) -> Question:
    """Adapters are mostly called after their base model."""
    lora = choice.format is ModelWeightsFormat.LORA
    default = choice.base.name.rpartition("/")[2] if lora and choice.base else ""
    return Question("model_name", "Under which name?", default=default, allows_free_text=True)


def accelerator_question(capacity: Capacity) -> Question:
    """The types that a machine offers; a type that it has no name for is not among them."""
    known = {member.value for member in Accelerator}
    types = [kind for kind in dict.fromkeys(capacity.gpu_types) if kind in known]
    options = (*(Option(kind, kind) for kind in types), Option(NONE_OPTION, "None (CPU)"))
    return Question("compute", "Which accelerator?", options, default=_first(options))


def accelerator_count_question(capacity: Capacity) -> Question:
    """How many of it, up to all."""
    options = tuple(Option(str(n), str(n)) for n in range(1, capacity.gpus + 1))
    return Question("compute", "How many?", options, default="1")


def compute_from_answers(kind: str, count: int = 1) -> Compute:
    """Return the compute for the two answers. It requests no CPUs and no memory."""
    if kind == NONE_OPTION:
        return Compute(cpu_count=0, memory="0Mi")
    spec = AcceleratorSpec(accelerator=Accelerator(kind), count=count)
    return Compute(cpu_count=0, memory="0Mi", accelerator=spec)


def hf_secret_question() -> Question:
    """The secret that the Hub is asked with; stored as HF_TOKEN."""
    return Question(
        "hf_secret",
        "Which secret holds the token for Hugging Face?",
        (Option(DEFAULT_SECRET, DEFAULT_SECRET), Option(NONE_OPTION, "None")),
        default=DEFAULT_SECRET,
        allows_free_text=True,
    )


def _first(options: Sequence[Option]) -> str:
    return options[0].value if options else ""
