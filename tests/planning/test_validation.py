"""What planning refuses: every problem at once, each in words that say what to write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_bt.planning.planner import plan_gang
from tests.planning.laptop import CONTEXT, problems, project, runtime


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"compute": {"node_count": 0}}, ["node_count is 0", "at least 1"]),
        ({"compute": {"cpu_count": 64}}, ["64 CPUs", "has 4"]),
        ({"compute": {"cpu_count": 0}}, ["cpu_count is 0"]),
        ({"compute": {"memory": "lots"}}, ["compute.memory", "lots"]),
        ({"compute": {"memory": "64Gi"}}, ["64Gi", "8.0Gi"]),
        ({"compute": {"accelerator": "H100:8"}}, ["8 H100", "no GPU", "--accelerator none"]),
        ({"runtime": runtime(start_commands=[])}, ["start_commands is empty"]),
        ({"runtime": runtime(start_commands=["  "])}, ["start_commands[0]"]),
        ({"runtime": runtime(environment_variables={"BT_X": "1"})}, ["BT_X", "platform's"]),
        ({"runtime": runtime(environment_variables={"A=B": "1"})}, ["A=B"]),
        ({"runtime": runtime(environment_variables={"PORT": "1"})}, ["sets PORT", "platform's"]),
        (
            {"runtime": runtime(environment_variables={"HOSTNAME": {"name": "s"}})},
            ["sets HOSTNAME", "Choose another name."],
        ),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "checkpoint_path": "rel"})},
            ["checkpoint_path", "absolute"],
        ),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "volume_size_gib": 9000})},
            ["volume_size_gib", "9000"],
        ),
        ({"interactive_session": {"trigger": "on_startup"}}, ["interactive_session", "on_startup"]),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/proc/x"}]},
            ["weights[0].mount_location", "/proc"],
        ),
        (
            {
                "weights": [
                    {"source": "hf://a/b", "mount_location": "/w"},
                    {"source": "hf://a/c", "mount_location": "/w/"},
                ]
            },
            ["weights[1].mount_location", "weights[0].mount_location uses already"],
        ),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/b10/workspace"}]},
            ["weights[0].mount_location", "the workspace uses already"],
        ),
        ({"compute": {"node_count": 10**9}}, ["1000000000 nodes", "at most 256"]),
        ({"compute": {"memory": "99999999999999999999Ei"}}, ["compute.memory", "8.0Gi"]),
        ({"runtime": runtime(start_commands=["x" * 200_000])}, ["200000 characters", "script"]),
        ({"runtime": runtime(environment_variables={"A": "x\0"})}, ["'A'", "zero byte"]),
        ({"runtime": runtime(environment_variables={"A": "x" * 200_000})}, ["200000", "file"]),
        (
            {"runtime": runtime(environment_variables={"A": {"name": ""}})},
            ["'A'", "without a name"],
        ),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "volume_size_gib": 0})},
            ["volume_size_gib is 0", "at least 1"],
        ),
        (
            {"weights": [{"source": "hf://a/b@", "mount_location": "/w"}]},
            ["weights[0].source", "after the @"],
        ),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/w", "allow_patterns": []}]},
            ["weights[0].allow_patterns", "matches no file"],
        ),
        (
            {
                "weights": [
                    {
                        "source": "hf://a/b",
                        "mount_location": "/w",
                        "auth": {
                            "auth_method": "AWS_OIDC",
                            "aws_oidc_role_arn": "arn",
                            "aws_oidc_region": "eu",
                        },
                    }
                ]
            },
            ["weights[0].auth.auth_method is AWS_OIDC", "CUSTOM_SECRET"],
        ),
        (
            {"weights": [{"source": "file:///a", "mount_location": "/w", "auth_secret_name": "s"}]},
            ["weights[0].source 'file:///a'", "no auth"],
        ),
    ],
)
def test_refuses(job: dict[str, object], words: list[str]) -> None:
    found = " ".join(problems(project(**job)))
    for word in words:
        assert word in found


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0"])
def test_refuses_a_name_that_no_variable_can_hold(name: str) -> None:
    given = project()
    given.name = name
    assert "project.name is" in problems(given)[0]
    given.name = "Team / Modell 👩‍💻"
    assert plan_gang(given, CONTEXT).project_name == given.name


def test_names_every_problem_at_once() -> None:
    given = project(
        compute={"node_count": 0, "memory": "lots"},
        runtime=runtime(start_commands=[], environment_variables={"BT_X": "1"}),
    )
    found = problems(given, replace(CONTEXT, missing_references=("Secret 'x' not found.",)))
    assert len(found) == 5
    assert found[-1] == "Secret 'x' not found."
