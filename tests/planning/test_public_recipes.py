"""What the 36 recipes of Baseten's public cookbook get on two machines, row by row.

A row: the recipe's folder; nodes, accelerator, cpu_count and memory as it asks for them (- where it
does not); then CPUs, GiB of memory and GiB of shared memory of each node on a machine with 4 and on
one with 8 H100.
"""

# ruff: noqa: E501 (the table)

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_bt.planning.plan import GangPlan
from prefect_bt.planning.planner import plan_gang
from prefect_bt.planning.resource_amounts import format_resources
from prefect_bt.substrates.protocol import Capacity, Enforcement

from .laptop import CONTEXT, GIB, problems, project, runtime

FOUR = Capacity(
    cpus=104,
    memory=960 * GIB,
    gpus=4,
    gpu_types=("H100",),
    disk=10**14,
    enforcement=Enforcement.RESERVED,
)
EIGHT = replace(FOUR, cpus=208, memory=int(1.8 * 1024) * GIB, gpus=8)
"""1.8 TiB are 1843 GiB."""

ROWS = """\
examples/gemma-27b-axolotl                                     2 H100:8   - -     | refused     | refused
examples/glm-4-6-msswift                                       2 H200:8   - -     | refused     | refused
examples/glm-4.7-flash-msswift                                 1 H100:8   - -     | refused     | 208 1750 875
examples/glm-4.7-msswift                                       2 H200:8   - -     | refused     | refused
examples/kimi-k2.6-lora-merge                                  1 H100    16 96Gi  | 26 228 114  | 26 218 109
examples/llama-8b-lora-unsloth                                 1 H100     - -     | 26 228 114  | 26 218 109
examples/minimax2_5-multinode                                  2 H200:8   - -     | refused     | refused
examples/mnist-pytorch                                         1 -        4 16Gi  | 4 16 456    | 4 16 875
examples/nemotron3-30b-torchtitan                              1 H200:8   - -     | refused     | 208 1750 875
examples/orpheus-transformers                                  1 H100     - -     | 26 228 114  | 26 218 109
examples/oss-gpt-120b-axolotl                                  2 H100:8   - -     | refused     | refused
examples/oss-gpt-20b-axolotl                                   1 H100:4   - -     | 104 912 456 | 104 875 437.5
examples/oss-gpt-20b-fft-trl                                   1 H200:8   - -     | refused     | 208 1750 875
examples/oss-gpt-20b-lora-trl                                  1 H100:2   - -     | 52 456 228  | 52 437 218.5
examples/qwen3-0.6b-axolotl                                    1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3-0.6b-classifier-hf-trainer                      1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3-0.6b-classifier-pytorch                         1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3-0.6b-pytorch                                    1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3-235b-mswift                                     2 H200:8   - -     | refused     | refused
examples/qwen3-30b-mswift-multinode                            2 H100:8   - -     | refused     | refused
examples/qwen3-30b-mswift-singlenode                           1 H100:8   - -     | refused     | 208 1750 875
examples/qwen3-32b-fft-verl-multinode                          2 H200:8   - -     | refused     | refused
examples/qwen3-4b-lora-sft-trl                                 1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3-80b-msswift                                     1 H200:8   - -     | refused     | 208 1750 875
examples/qwen3-8b-fft-verl                                     1 H100:8   - -     | refused     | 208 1750 875
examples/qwen3-8b-lora-dpo-trl                                 1 H100:2   - -     | 52 456 228  | 52 437 218.5
examples/qwen3-8b-lora-verl                                    1 H100:8   - -     | refused     | 208 1750 875
examples/qwen3-tts-transformers                                1 H100     - -     | 26 228 114  | 26 218 109
examples/qwen3.6-27b-msswift                                   1 H200:8   - -     | refused     | 208 1750 875
examples/qwen3.6-35b-msswift                                   1 H200:8   - -     | refused     | 208 1750 875
examples/whisper-transformers                                  1 H100:8   - -     | refused     | 208 1750 875
recipes/autoresearch-finetune                                  1 H100:2   - -     | 52 456 228  | 52 437 218.5
recipes/isaac-groot                                            1 H100     - -     | 26 228 114  | 26 218 109
recipes/isaac-lab                                              1 A10G     - -     | 26 228 114  | 26 218 109
recipes/programmatic-training-api                              1 H100:2   - -     | 52 456 228  | 52 437 218.5
recipes/rl/improve_tool_calling/qwen3-8b-instruct-lora-trl     1 H100:8   - -     | refused     | 208 1750 875
"""
VARIABLES = """
CP DATASET DATASET_ID EP EVAL_SPLIT_RATIO EXP_TAG HF_ACCESS_TOKEN HF_HUB_ENABLE_HF_TRANSFER HF_TOKEN
INIT_MODEL_PATH MAX_LENGTH MODEL MODEL_ID NVIDIA_DRIVER_CAPABILITIES OMNI_KIT_ACCEPT_EULA PACKING
PIP_CACHE_DIR PP RAY_DASHBOARD_PORT RAY_SERVICE_PORT RECOMPUTE_NUM_LAYERS TP TRAIN_ITERS
USE_MCORE_GDN WANDB_API_KEY WANDB_PROJECT
"""
"""Every variable that one of them sets."""


def planned(machine: Capacity, compute: dict[str, object]) -> GangPlan:
    context = replace(CONTEXT, capacity=machine, substrate="docker", supports_images=True)
    return plan_gang(project(compute=compute), context)


@pytest.mark.parametrize("row", ROWS.splitlines(), ids=lambda row: row.split()[0])
def test_a_recipe_gets_the_share_of_its_gpus(row: str) -> None:
    words, *expected = (part.split() for part in row.split("|"))
    compute = asked(*words[1:])
    for machine, wanted in zip((FOUR, EIGHT), expected, strict=True):
        context = replace(CONTEXT, capacity=machine, substrate="docker", supports_images=True)
        if wanted == ["refused"]:
            [problem] = problems(project(compute=compute), context)
            assert problem.startswith("compute.accelerator asks for ")
            assert f"this machine has {machine.gpus}." in problem
            continue
        plan = planned(machine, compute)
        assert [amounts(plan, rank) for rank in range(len(plan.nodes))] == [
            tuple(float(word) for word in wanted)
        ] * int(words[1])


def asked(nodes: str, accelerator: str, cpus: str, memory: str) -> dict[str, object]:
    given = {"accelerator": accelerator, "cpu_count": cpus, "memory": memory}
    compute: dict[str, object] = {name: text for name, text in given.items() if text != "-"}
    if cpus != "-":
        compute["cpu_count"] = int(cpus)
    return {"node_count": int(nodes), **compute}


def amounts(plan: GangPlan, rank: int) -> tuple[float, float, float]:
    got = plan.nodes[rank].resources
    return float(got.cpus), got.memory / GIB, got.shared_memory / GIB


def test_all_recipes_are_here_and_none_sets_a_reserved_variable() -> None:
    assert len(ROWS.splitlines()) == 36
    variables = dict.fromkeys(VARIABLES.split(), "1")
    assert plan_gang(project(runtime=runtime(environment_variables=variables)), CONTEXT).nodes


# -- why ------------------------------------------------------------------------------------

RESERVED, LIMITS, NONE = Enforcement.RESERVED, Enforcement.LIMITS, Enforcement.NONE


@pytest.mark.parametrize(
    ("enforcement", "compute", "line"),
    [
        (
            RESERVED,
            {"accelerator": "H100"},
            "26 CPUs, 228 GiB, shared memory 114 GiB: the share of 1 of 4 GPUs; "
            "cpu_count and memory (defaults) are minimums",
        ),
        (
            RESERVED,
            {"accelerator": "H100", "cpu_count": 64},
            "64 CPUs, 228 GiB, shared memory 114 GiB: CPUs as requested, memory the share of 1 of 4 "
            "GPUs; cpu_count 64 and memory (default) are minimums",
        ),
        (
            RESERVED,
            {"accelerator": "H100", "memory": "500Gi"},
            "26 CPUs, 500 GiB, shared memory 250 GiB: memory as requested, CPUs the share of 1 of 4 "
            "GPUs; cpu_count (default) and memory 500Gi are minimums",
        ),
        (
            RESERVED,
            {"accelerator": "H100", "cpu_count": 64, "memory": "960Gi"},
            "64 CPUs, 960 GiB, shared memory 480 GiB: the requested amount, more than the share of 1 of 4 "
            "GPUs; cpu_count 64 and memory 960Gi are minimums",
        ),
        (
            RESERVED,
            {"accelerator": "H100", "node_count": 4},
            "26 CPUs, 228 GiB, shared memory 114 GiB: the share of 1 of 4 GPUs; "
            "cpu_count and memory (defaults) are minimums",
        ),
        (
            RESERVED,
            {},
            "1 CPU, 2 GiB, shared memory 456 GiB: the requested amount, and more while the machine has it free; cpu_count and memory (defaults) are minimums",
        ),
        (
            RESERVED,
            {"node_count": 3, "memory": "1.5Gi"},
            "1 CPU, 1.5 GiB, shared memory 152 GiB: the requested amount, and more while the machine has it free; cpu_count (default) and memory 1.5Gi are minimums",
        ),
        (
            LIMITS,
            {"memory": "128Mi"},
            "1 CPU, 128 MiB, shared memory 64 MiB: the requested amount; cpu_count (default) and memory "
            "128Mi are minimums; they are hard limits (enforce_limits)",
        ),
        (
            LIMITS,
            {"accelerator": "H100:2"},
            "52 CPUs, 456 GiB, shared memory 228 GiB: the share of 2 of 4 GPUs; cpu_count and "
            "memory (defaults) are minimums; they are hard limits (enforce_limits)",
        ),
        (
            NONE,
            {"accelerator": "H100"},
            "26 CPUs, 228 GiB: the share of 1 of 4 GPUs; cpu_count and memory (defaults) are "
            "minimums; they are checked, not enforced: the node shares this machine",
        ),
    ],
)
def test_the_plan_has_the_share_of_a_node_and_the_reason(
    enforcement: Enforcement, compute: dict[str, object], line: str
) -> None:
    plan = planned(replace(FOUR, enforcement=enforcement), compute)
    assert {format_resources(node.resources) for node in plan.nodes} == {line}
    assert plan.nodes[0].resources.limits is (enforcement is LIMITS)


def test_shares_together_are_never_more_than_the_machine_less_a_part_for_the_host() -> None:
    for gpus in range(1, 9):
        for memory in (3 * GIB // 2, 16 * GIB, 1843 * GIB):
            machine = replace(FOUR, cpus=7, memory=memory, gpus=gpus)
            compute: dict[str, object] = {"accelerator": "H100", "memory": "1Mi"}
            got = planned(machine, compute).nodes[0].resources
            assert 0.85 * memory / gpus < got.memory <= 0.95 * memory / gpus
            assert got.cpus == max(1, 7 // gpus)
