"""Texts that no container or pod could get exactly are refused, by their field, never shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefect_bt.definitions import TrainingProject
from prefect_bt.errors import DefinitionError
from tests.planning.laptop import problems, project, runtime


def with_name(text: str) -> TrainingProject:
    given = project()
    given.name = text
    return given


def with_team(text: str) -> TrainingProject:
    given = project()
    given.team_name = text
    return given


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3cr3t\udce9", "is not UTF-8: its character 7 is the byte 0xE9."),
        ("s3cr3t\ud800", "is not UTF-8: its character 7 is U+D800, half of a surrogate pair."),
        ("s3cr3t\0", "is not usable: its character 7 is a zero byte."),
    ],
    ids=["byte", "lone surrogate", "zero"],
)
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (with_name, "project.name"),
        (with_team, "project.team_name"),
        (lambda text: project(name=text), "job.name"),
        (lambda text: project(image={"base_image": text}), "image.base_image"),
        (
            lambda text: project(
                image={
                    "base_image": "a",
                    "docker_auth": {
                        "auth_method": "REGISTRY_SECRET",
                        "registry": "example.org",
                        "registry_secret_docker_auth": {"secret_ref": {"name": text}},
                    },
                }
            ),
            "image.docker_auth.registry_secret_docker_auth.secret_ref.name",
        ),
        (lambda text: project(runtime=runtime(start_commands=["a", text])), "start_commands[1]"),
        (
            lambda text: project(runtime=runtime(environment_variables={"A": text})),
            "runtime.environment_variables['A']",
        ),
        (
            lambda text: project(runtime=runtime(environment_variables={"A": {"name": text}})),
            "runtime.environment_variables['A'].name",
        ),
        (
            lambda text: project(runtime=runtime(checkpointing_config={"checkpoint_path": text})),
            "runtime.checkpointing_config.checkpoint_path",
        ),
        (
            lambda text: project(
                runtime=runtime(
                    load_checkpoint_config={
                        "enabled": True,
                        "checkpoints": [
                            {
                                "typ": "baseten_named_checkpoint",
                                "checkpoint_name": text,
                                "job_id": "abc1234",
                            }
                        ],
                    }
                )
            ),
            "load_checkpoint_config.checkpoints[0].checkpoint_name",
        ),
    ],
)
def test_refuses_text_that_is_not_utf8(
    make: Callable[[str], TrainingProject], field: str, text: str, why: str
) -> None:
    (problem,) = problems(make(text))
    assert problem.endswith(f"{field} {why}")
    assert "s3cr3t" not in problem


@pytest.mark.parametrize("name", ["A\udce9", "BT_\udce9", "A\0"])
def test_refuses_the_name_of_a_variable_that_is_not_utf8(name: str) -> None:
    (problem,) = problems(project(runtime=runtime(environment_variables={name: "1"})))
    assert problem.startswith(f"The name in runtime.environment_variables[{name!r}] is not ")
    assert problem.isascii()


@pytest.mark.parametrize("text", ["hf://a/b\udce9", "hf://a/\ud800"])
def test_a_definition_refuses_a_source_that_is_not_utf8(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"weights\[0\]\.source: .* it must be UTF-8\."):
        project(weights=[{"source": text, "mount_location": "/w"}])
