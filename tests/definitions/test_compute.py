"""Check accelerator texts, dumps of compute, and memory sizes."""

import json

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    Accelerator,
    AcceleratorSpec,
    Compute,
    DeployCheckpointsConfig,
    TrainingJob,
    parse_memory,
)
from prefect_bt.errors import DefinitionError


@pytest.mark.parametrize(
    ("value", "accelerator", "count"),
    [
        ("H100:2", Accelerator.H100, 2),
        ("H100", Accelerator.H100, 1),
        ("H100:008", Accelerator.H100, 8),
        (" H100:2 ", Accelerator.H100, 2),
        ("H100:2:3", Accelerator.H100, 1),
        ("A100_40GB:8", Accelerator.A100_40GB, 8),
        (None, None, 1),
        ({"accelerator": "H100", "count": 2}, Accelerator.H100, 2),
        ({"accelerator": "H100", "count": 0}, Accelerator.H100, 0),
        (AcceleratorSpec(accelerator="H200", count=4), Accelerator.H200, 4),
    ],
)
def test_accelerator_accepted(value, accelerator, count):
    spec = AcceleratorSpec.model_validate(value)
    assert (spec.accelerator, spec.count) == (accelerator, count)
    if value is not None:
        assert Compute(accelerator=value).accelerator == spec


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("h100:2", 'did you mean "H100"'),
        ("H101", "known: B10, T4"),
        ("H100:0", "positive integer"),
        ("H100:x", "positive integer"),
        ("H100:-1", "positive integer"),
        ("H100:", "positive integer"),
        ("H100:²", "positive integer"),
        (f"H100:{'1' * 5000}", r'"1{20}…" .* at most 6 digits'),
        ("", "empty"),
        (":2", "empty"),
        ({"accelerator": "H100", "count": -1}, "greater than or equal to 0"),
        ({"accelerator": "h100"}, "accelerator"),
        (3, "AcceleratorSpec"),
    ],
)
def test_accelerator_refused(value, says):
    with pytest.raises(ValidationError, match=says):
        AcceleratorSpec.model_validate(value)
    with pytest.raises(ValidationError):
        Compute(accelerator=value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (AcceleratorSpec(accelerator="H100"), "H100"),
        (AcceleratorSpec(accelerator="H100", count=8), "H100:8"),
        (AcceleratorSpec(accelerator="H100", count=0), None),
        (AcceleratorSpec(), None),
    ],
)
def test_accelerator_dumps_as_text(spec, text):
    assert spec.model_dump() == text
    assert (
        json.loads(DeployCheckpointsConfig(compute={"accelerator": spec}).model_dump_json())[
            "compute"
        ]["accelerator"]
        == text
    )


def test_compute_dumps_an_object():
    compute = Compute(accelerator="H100:8")
    expected = {
        "node_count": 1,
        "cpu_count": 1,
        "memory": "2Gi",
        "accelerator": {"accelerator": "H100", "count": 8},
        "availability_model": "dedicated",
    }
    assert compute.model_dump() == expected
    assert TrainingJob(image={"base_image": "x"}, compute=compute).model_dump()["compute"] == (
        expected
    )
    assert Compute().model_dump()["accelerator"] is None
    assert "accelerator" not in compute.model_dump(exclude={"accelerator"})


def test_no_lower_bound_on_nodes():
    assert Compute(node_count=0).node_count == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2Gi", 2 * 1024**3),
        ("512Mi", 512 * 1024**2),
        ("64GB", 64 * 1000**3),
        ("64GiB", 64 * 1024**3),
        ("64G", 64 * 1000**3),
        ("1.5Gi", 1536 * 1024**2),
        ("0.5 TiB", 512 * 1024**3),
        ("1024", 1024),
        ("1024B", 1024),
        ("1k", 1000),
        ("1K", 1000),
        ("1Ki", 1024),
        ("16gb", 16 * 1000**3),
        ("16gi", 16 * 1024**3),
        (" 2 Gi ", 2 * 1024**3),
        ("1Pi", 1024**5),
        ("1E", 1000**6),
    ],
)
def test_memory(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "2 GG",
        "-1Gi",
        "2,5Gi",
        "1e3",
        "64g",
        "512m",
        "0",
        "0Gi",
        "0.1",
        "two",
        "2Gi2",
        "²",
    ],
)
def test_memory_refused(text):
    with pytest.raises(DefinitionError, match="64Gi") as caught:
        parse_memory(text)
    assert caught.value.field == "compute.memory"
    assert caught.value.value == text


def test_any_memory_is_a_definition():
    assert Compute(memory="plenty").memory == "plenty"
