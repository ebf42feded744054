"""Check what each option of push changes, and when it warns."""

import pytest

from prefect_bt.definitions import (
    AvailabilityModel,
    Compute,
    Image,
    InteractiveSession,
    InteractiveSessionTrigger,
    Overrides,
    Runtime,
    TrainingJob,
    TrainingProject,
    apply_overrides,
)
from prefect_bt.errors import DefinitionError


def project(**job):
    return TrainingProject(name="p", job=TrainingJob(image=Image(base_image="x"), **job))


SET = {
    "name": "old",
    "priority": 1,
    "compute": Compute(accelerator="H100:8", node_count=4, cpu_count=64, memory="900Gi"),
    "runtime": Runtime(start_commands=["old"]),
    "interactive_session": InteractiveSession(
        trigger=InteractiveSessionTrigger.ON_FAILURE, timeout_minutes=60
    ),
}

TABLE = [
    ({"job_name": "new"}, lambda p: p.job.name, "new", "--job-name"),
    ({"team": "t"}, lambda p: p.team_name, "t", None),
    (
        {"interactive": "on_startup"},
        lambda p: p.job.interactive_session.trigger,
        InteractiveSessionTrigger.ON_STARTUP,
        "--interactive ",
    ),
    (
        {"interactive_timeout_minutes": 5},
        lambda p: p.job.interactive_session.timeout_minutes,
        5,
        "--interactive-timeout-minutes",
    ),
    (
        {"accelerator": "L4:2"},
        lambda p: p.job.compute.accelerator.model_dump(),
        "L4:2",
        "--accelerator",
    ),
    ({"accelerator": "none"}, lambda p: p.job.compute.accelerator, None, "--accelerator"),
    ({"node_count": 2}, lambda p: p.job.compute.node_count, 2, "--node-count"),
    ({"cpu_count": 2}, lambda p: p.job.compute.cpu_count, 2, "--cpu-count"),
    ({"memory": "4Gi"}, lambda p: p.job.compute.memory, "4Gi", "--memory"),
    ({"entrypoint": "new"}, lambda p: p.job.runtime.start_commands, ["new"], "--entrypoint"),
    ({"priority": 0}, lambda p: p.job.priority, 0, "--priority"),
    ({"spot": True}, lambda p: p.job.compute.availability_model, AvailabilityModel.SPOT, None),
]


@pytest.mark.parametrize(("given", "read", "expected", "flag"), TABLE)
def test_override(given, read, expected, flag):
    bare, filled = project(), project(**SET)
    for before, warns in ((bare, False), (filled, flag is not None)):
        untouched = before.model_copy(deep=True)
        after, warnings = apply_overrides(before, Overrides(**given))
        assert read(after) == expected
        assert len(warnings) == warns
        assert all(flag in warning for warning in warnings)
        assert before == untouched


def test_a_warning_names_both_values():
    _, [warning] = apply_overrides(project(**SET), Overrides(accelerator="none"))
    assert "'H100:8'" in warning
    assert "'none'" in warning


def test_nothing_given_changes_nothing():
    before = project(**SET)
    after, warnings = apply_overrides(before, Overrides())
    assert after == before
    assert after is not before
    assert not warnings


def test_values_equal_to_defaults_are_given():
    after, _ = apply_overrides(
        project(**SET),
        Overrides(node_count=1, interactive="on_demand", interactive_timeout_minutes=480),
    )
    assert after.job.compute.node_count == 1
    assert after.job.interactive_session == InteractiveSession()


def test_one_option_of_a_session_keeps_the_other():
    after, warnings = apply_overrides(
        project(**SET), Overrides(interactive=InteractiveSessionTrigger.ON_STARTUP)
    )
    assert after.job.interactive_session.timeout_minutes == 60
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"accelerator": "h100"}, "accelerator", "H100"),
        ({"accelerator": "H100:0"}, "accelerator", "positive integer"),
        ({"interactive": "now"}, "interactive", "on_startup, on_failure, on_demand"),
        ({"cpu_count": 0}, "cpu_count", "--cpu-count 0 is not valid: a node needs at least 1 CPU"),
        ({"memory": "2"}, "memory", "--memory '2' is not valid: it is 2 bytes"),
        ({"memory": "4g"}, "memory", "--memory '4g' is not valid: .*unknown or ambiguous"),
        ({"memory": "much"}, "memory", "--memory 'much' is not valid: .*not an amount of memory"),
        ({"memory": ""}, "memory", "--memory '' is not valid"),
        ({"node_count": "2"}, "node_count", "integer"),
        ({"job_name": 3}, "name", "string"),
    ],
)
def test_bad_values(given, field, says):
    with pytest.raises(DefinitionError, match=says) as caught:
        apply_overrides(project(), Overrides(**given))
    assert caught.value.field == field
