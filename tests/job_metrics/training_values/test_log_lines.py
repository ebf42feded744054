"""Values in real lines of trainers, and lines of other programs that must have none."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_bt.job_metrics.training_values.log_lines import (
    MAX_LINE,
    MAX_NAME,
    MAX_VALUES,
    TOTAL_STEPS,
    LineParser,
    is_candidate,
)

BAR = "  4%|▍         | 10/240 [00:05<02:00,  1.92it/s"
MEGATRON = (
    " iteration       10/     500 | consumed samples:          160 | elapsed time per iteration "
    "(ms): 123.4 | learning rate: 1.000000E-05 | lm loss: 1.200000E+00 | loss scale: 1.0 | "
    "grad norm: 1.000 | number of nan iterations:   0 |"
)
MEGATRON_VALUES = {
    "consumed samples": 160,
    "elapsed time per iteration (ms)": 123.4,
    "learning rate": 1e-5,
    "lm loss": 1.2,
    "loss scale": 1,
    "grad norm": 1,
    "number of nan iterations": 0,
}
TORCHTITAN = (
    "[titan] 2026-01-01 10:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2718  "
    "\x1b[38;5;208mgrad_norm:  1.2  \x1b[33mmemory: 10.50GiB(3.01%)  \x1b[34mtps: 1,234  "
    "\x1b[36mtflops: 5.10  \x1b[35mmfu: 1.20%\x1b[39m"
)
LINES = [
    # the HF Trainer: numbers, texts (transformers 5), with the frame of the bar before
    (
        "{'loss': 1.2, 'grad_norm': 3.5, 'learning_rate': 1e-05, 'epoch': 0.1}",
        None,
        {"loss": 1.2, "grad_norm": 3.5, "learning_rate": 1e-5, "epoch": 0.1},
    ),
    (BAR + "]     {'loss': '1.234', 'epoch': '0.1'}", 10, {"loss": 1.234, "epoch": 0.1}),
    (BAR + "]{'loss': 1.2}", 10, {"loss": 1.2}),
    ("{'loss': np.float64(1.2), 'x': tensor(2.), 'y': 'z'}", None, {"loss": 1.2, "x": 2}),
    # ms-swift
    (
        "{'loss': 1.2, 'global_step/max_steps': '30/240', 'percentage': '4%', 'elapsed': '2s'}",
        30,
        {"loss": 1.2},
    ),
    # JSON: plain, fairseq, LLaMA-Factory, a logger's
    ('{"step": 10, "loss": 1.2, "timestamp": 123.4, "ok": true}', 10, {"loss": 1.2}),
    ('INFO {"num_updates": "100", "step": 3, "loss": "1.2"}', 100, {"loss": 1.2}),
    ('{"current_steps": 10, "total_steps": 240, "loss": 1.5, "lr": 0}', 10, {"loss": 1.5, "lr": 0}),
    ('{"level": "info", "lineno": 12, "message": "step 10 loss 1.2"}', 10, {"loss": 1.2}),
    # the examples of this project
    ("step 10/240 loss 1.2", 10, {"loss": 1.2}),
    ("[rank0]:step 10/240 loss 1.234", 10, {"loss": 1.234}),
    ("\x1b[31m[rank0]: step 10/240 loss 1.234\x1b[0m", 10, {"loss": 1.234}),
    ("step=10 loss=1.2 lr=1e-4", 10, {"loss": 1.2, "lr": 1e-4}),
    # nanoGPT, nanochat
    (
        "iter 100: loss 2.3456, time 120.1ms, mfu 3.01%",
        100,
        {"loss": 2.3456, "time": 120.1, "mfu": 3.01},
    ),
    ("step 250: train loss 2.01, val loss 2.14", 250, {"train loss": 2.01, "val loss": 2.14}),
    (
        "step 7/9 loss 1.2 | 12.3k tok/s | 0.5 s/step",
        7,
        {"loss": 1.2, "tok/s": 12_300},
    ),
    # Megatron, with and without the time
    (MEGATRON, 10, MEGATRON_VALUES),
    (f" [2026-01-01 10:00:00]{MEGATRON}", 10, MEGATRON_VALUES),
    # torchtitan, verl, MaxText, DeepSpeed, NeMo, fairseq, mmengine
    (
        TORCHTITAN,
        1,
        {
            "loss": 12.2718,
            "grad_norm": 1.2,
            "memory": 10.5,
            "tps": 1234,
            "tflops": 5.1,
            "mfu": 1.2,
        },
    ),
    (
        "(TaskRunner pid=123) step:1 - actor/pg_loss:0.1 - critic/rewards/mean:-0.2",
        1,
        {"actor/pg_loss": 0.1, "critic/rewards/mean": -0.2},
    ),
    (
        "completed step: 10, seconds: 1.2, Tokens/s/device: 1234.5, loss: 10.2",
        10,
        {"seconds": 1.2, "Tokens/s/device": 1234.5, "loss": 10.2},
    ),
    (
        "[2026-01-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, "
        "lr=[1e-05], mom=[(0.9, 0.95)]",
        10,
        {"skipped": 0, "lr": 1e-5, "mom": 0.9},
    ),
    (
        "Training epoch 0, iteration 8/99 | lr: 1.2e-05 | global_step: 9 | reduced_train_loss: 11",
        9,
        {"lr": 1.2e-5, "reduced_train_loss": 11},
    ),
    (
        "2026-01-01 | INFO | train_inner | epoch 001:    100 / 1000 loss=1.2, ppl=3, gnorm=1.5",
        100,
        {"epoch": 1, "loss": 1.2, "ppl": 3, "gnorm": 1.5},
    ),
    (
        "01/01 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 10/240]  lr: 1.0e-02  "
        "eta: 0:10:00  time: 0.5  loss: 1.2",
        10,
        {"Epoch": 1, "lr": 0.01, "time": 0.5, "loss": 1.2},
    ),
    ("Iter(train) [   10/40000]  lr: 1.0e-02  loss: 1.2", 10, {"lr": 0.01, "loss": 1.2}),
    # torchtune: its log and its bar
    (
        "Step 10 | loss:1.2 lr:1e-5 tokens_per_second_per_gpu:1234",
        10,
        {"loss": 1.2, "lr": 1e-5, "tokens_per_second_per_gpu": 1234},
    ),
    (f"1|11|Loss: 1.2345:{BAR}]", 11, {"Loss": 1.2345}),
    # Lightning, diffusers, plain bars, bars without a total
    (f"Epoch 0: {BAR}, v_num=0, train_loss=1.23]", 10, {"train_loss": 1.23}),
    (f"Steps: {BAR}, lr=1e-5, step_loss=0.12]", 10, {"lr": 1e-5, "step_loss": 0.12}),
    (f"{BAR}, loss=1.23]", 10, {"loss": 1.23}),
    ("100it [00:05, 19.2it/s, loss=1.2]", 100, {"loss": 1.2}),
    (
        "Epoch 0/9 ━━━━╸━━━━ 10/240 0:00:05 • 0:02:00 1.9it/s v_num: 0.000 train_loss: 1.2",
        10,
        {"train_loss": 1.2},
    ),
    # tutorials, loggers with a prefix
    ("Epoch 1/3, Step 10, Loss: 0.5", 10, {"Epoch": 1, "Loss": 0.5}),
    ("Epoch [1/5], Step [100/600], Loss: 2.3", 100, {"Epoch": 1, "Loss": 2.3}),
    (
        "| epoch   1 |   200/ 2928 batches | lr 5.00 | ms/batch 12.3 | loss  6.5 | ppl 700.1",
        200,
        {"epoch": 1, "lr": 5, "loss": 6.5, "ppl": 700.1},
    ),
    ("2026-11-20 10:00:00.1 | INFO | train:step:12 - step 10 loss 1.2", 10, {"loss": 1.2}),
    ("11/20/2026 10:00:00 - INFO - a.py:9 - step: 10, train_loss: 1.5", 10, {"train_loss": 1.5}),
    ("INFO:root:step 10, loss 1.2", 10, {"loss": 1.2}),
    ("[rank0]: INFO:my.module:step 10 loss 1.2", 10, {"loss": 1.2}),
    ("step:1 - actor/grad_norm:np.float64(0.5)", 1, {"actor/grad_norm": 0.5}),
    ("step 1 loss: tensor(0.5, device='cuda:0')", 1, {"loss": 0.5}),
    ("Epoch 1 | iter 10 step 10 | loss train: 1.2, val: n/a", 10, {"Epoch": 1, "loss train": 1.2}),
    # results without a step
    ("Validation loss: 0.5", None, {"Validation loss": 0.5}),
    ("Test set: Average loss: 0.03, Accuracy: 9/10 (99%)", None, {"Average loss": 0.03}),
    ("wandb: train/loss 0.5", None, {"train/loss": 0.5}),
]
NOTHING = [
    "",
    "Loading 8 shards: 100% 8/8",
    f"Loading checkpoint shards: {BAR}, loss=1.0]",
    "eval took 3.2 s",
    "step 3 of the installation",
    "learning_rate: 1e-5",
    "lr: 0.001, batch: 32",
    "  loss: 0.5",
    "loss: 1",
    "{'learning_rate': 1e-05, 'loss': 'mse', 'steps': 240}",
    '{"learning_rate": 1e-05, "batch": 32, "steps": 240}',
    '{"step": 10, "cut": ',
    "Arguments(learning_rate=1e-05, max_steps=240, loss_type='x')",
    "Collecting loss==1.2.3",
    "target_loss: 0.1",
    "loss = 0.5 * penalty",
    "ValueError: loss 1.2 > 1.0",
    "loss 0.5 <= 0.75",
    "Downloading loss-2.1.0-cp311-manylinux_x86_64.whl (670.2 MB)",
    '  File "/app/loss.py", line 12, in training_step',
    "    loss = 0.5 * criterion(x)",
    "  Total optimization steps = 240",
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "2026-11-20 10:00:00,123 INFO Step 3/5: installing accelerate 1.2.0",
    "saved checkpoint-10",
    "step 7: 1.2.3.4 connected in 3.5 s",
    "step 7: loss of the connection at 10:00:00",
]
HOSTILE = [
    *("a ", "1 ", "1/", "step ", "step 1 ", "{'a", "loss: ", "|", "━ ", "- ", "1,", "━", "1%|"),
    *(
        "loss 1,111",
        "\r1%|",
        "train ",
        "nan ",
        "epoch 1 ",
        "[(",
        "_loss",
        "a/b_",
        '{"',
        "{'a': 1, ",
    ),
]


@pytest.mark.parametrize(("line", "step", "values"), LINES)
def test_a_line_of_a_trainer_has_its_step_and_values(line: str, step: int | None, values: object):
    assert is_candidate(line)
    assert LineParser().parse(line) == (step, values)


@pytest.mark.parametrize("line", NOTHING)
def test_other_lines_have_no_values(line: str):
    assert LineParser().parse(line) is None


def parse_all(*lines: str) -> list[tuple[int | None, dict[str, float]]]:
    parser = LineParser()
    return [parsed for line in lines if (parsed := parser.parse(line)) is not None]


def test_a_dict_has_the_step_of_the_bar_of_the_training():
    bars = "  0%|   | 0/240 [00:00<?, ?it/s]", " 50%|###  | 10/20 [00:01<00:01, 9it/s]"
    end = "100%|###| 240/240 [01:00<00:00, 9it/s]"
    other = "Map: 100%|###| 900/900 [00:01<00:00, 9ex/s]"
    lines = (other, bars[0], f"{BAR}]", "{'loss': 1.5}", bars[1], "{'eval_loss': 1.25}", end)
    end = "{'loss': 1.0}", bars[1], "{'train_loss': 1.5}"
    assert [step for step, _ in parse_all(*lines, *end)] == [10, 10, 240, 240]
    second_run = "  1%|  | 1/99 [00:00<00:00, 9it/s]", "{'loss': 1.5}"
    assert parse_all(*lines, *end, *second_run)[-1][0] == 1


def test_a_bar_that_did_not_move_since_the_last_loss_gives_no_step():
    lines = f"{BAR}]", "{'loss': 1.5}", "{'eval_loss': 1.5}", "{'loss': 1.25}"
    assert [step for step, _ in parse_all(*lines)] == [10, 10, None]


@pytest.mark.parametrize(
    "lines",
    [
        [
            f"Epoch {epoch}:  4%|▍  | {step}/240 [00:05<02:00, 9it/s, loss=1.5]"
            for epoch, step in steps
        ]
        for steps in ([(0, 9), (1, 3), (2, 3)], [(1, 9), (2, 3), (3, 3)])
    ]
    + [
        [f"Epoch [{e}/3], Step [{n}/240], Loss: 1.5" for e, n in [(1, 9), (2, 3), (3, 3)]],
        [
            line
            for epoch, step in [(1, 9), (2, 3), (3, 3)]
            for line in (f"Epoch {epoch}/3", f" {step}/240 ━━━━━━━━━━━━ 5s 20ms/step - loss: 1.5")
        ],
    ],
)
def test_steps_that_begin_again_in_each_epoch_are_steps_of_the_run(lines: list[str]):
    assert [step for step, _ in parse_all(*lines)] == [9, 243, 483]


def test_steps_that_go_on_in_the_next_epoch_stay():
    lines = [f"epoch {e} step {n}/600 loss 1.5" for e, n in [(1, 190), (2, 210), (3, 410)]]
    assert [step for step, _ in parse_all(*lines)] == [190, 210, 410]


@pytest.mark.parametrize(
    "make_lines",
    [
        lambda step: [f"step {step}/240 loss 1.5"],
        lambda step: [f"step {step}/240, val_loss: 1.5"],
        lambda step: [f" 99%|### | {step}/240 [01:00<00:00, 9it/s, loss=1.5]"],
        lambda step: [f" 99%|### | {step}/240 [01:00<00:00, 9it/s]", "{'loss': 1.5}"],
    ],
)
def test_the_last_step_of_a_training_is_known_as_such(make_lines: Callable[[int], list[str]]):
    for step, total in [(10, None), (239, None), (240, 240)]:
        [(found, values)] = parse_all(*make_lines(step))
        assert (found, values.get(TOTAL_STEPS)) == (step, total)


def test_the_last_epoch_is_not_the_last_step():
    assert parse_all("Epoch [3/3], Step 3, Loss: 1.5") == [(3, {"Epoch": 3, "Loss": 1.5})]


def test_losses_that_are_no_numbers_are_kept():
    for line in ('{"step": 3, "loss": NaN}', "{'step': 3, 'loss': nan}", "step 3 loss nan"):
        [(step, values)] = parse_all(line)
        assert step == 3
        assert math.isnan(values["loss"])
    assert parse_all("step 3 loss -inf") == [(3, {"loss": -math.inf})]


def test_the_number_of_values_and_their_names_are_bounded():
    names = ["loss", "a" * 100, *(f"n{i}" for i in range(99))]
    for line in (
        "step=1 " + " ".join(f"{name}=1.5" for name in names),
        '{"step": 1, ' + ", ".join(f'"{name}": 1.5' for name in names) + "}",
    ):
        [(_, values)] = parse_all(line)
        assert len(values) == MAX_VALUES
        assert max(map(len, values)) == MAX_NAME


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hostile_line_costs_little(piece: str):
    long = (piece * 65_536)[:65_536]
    begin = time.process_time()
    assert not is_candidate(long)
    for prefix in ("", "step 1 loss 1.5 ", "1%|"):
        LineParser().parse(long)
        LineParser().parse((prefix + long)[:MAX_LINE])
        LineParser().parse((prefix + long)[: MAX_LINE - 1] + "}")
    assert time.process_time() - begin < 1.5


WORDS = st.sampled_from(["step ", "loss", "{'", "': ", '{"', "}", "1", "/", "%|", "| ", "[", "nan"])


@given(st.lists(WORDS | st.text(max_size=9), max_size=40).map("".join))
def test_no_text_is_an_error(text: str):
    for parsed in parse_all(text, f"step 1 loss {text}", f"epoch 2 step {text}"):
        assert parsed[1]
