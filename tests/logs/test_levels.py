"""Levels of real lines of common programs."""

from __future__ import annotations

import pytest

from prefect_bt.logs.levels import LevelDetector, LogLevel, detect_level, parse_level

LINES: dict[str, list[str]] = {
    "DEBUG": [
        "DEBUG:urllib3.connectionpool:https://huggingface.co:443",
        "2026-11-20 10:00:00.123 | DEBUG    | train:step:12 - batch",
        'time="2026-11-20T10:00:00Z" level=debug msg="starting"',
        '{"ts": 1.5, "level": "trace", "msg": "in"}',
    ],
    "INFO": [
        "INFO:root:begin",
        "2026-11-20 10:00:00,123 - __main__ - INFO - 3 errors were retried",
        "2026-11-20 10:00:00,123 INFO worker.py:1715 -- Connected to Ray",
        "11/20/2026 10:00:00 - INFO - __main__ - Distributed environment: NO",
        "[INFO|trainer.py:2345] 2026-11-20 10:00:00,123 >> ***** Running training *****",
        "[2026-11-20 10:00:00,123] [INFO] [real_accelerator.py:161:get_accelerator] Setting ds",
        "[2026-11-20 10:00:00,123][__main__][INFO] - hydra",
        "INFO 11-20 10:00:00 [loader.py:12] Loading weights took 1.2 s",
        "(EngineCore_0 pid=123) INFO 11-20 10:00:00 [core.py:1] no error so far",
        "node0:123:456 [0] NCCL INFO Bootstrap: Using eth0",
        "INFO:     Uvicorn running on http://0.0.0.0:8000",
        "I1120 10:00:00.123456 140 xla_bridge.py:863] Unable to initialize backend 'tpu'",
        "2026-11-20 10:00:00 [info     ] structlog line   step=1",
        "[2026-11-20T10:00:00Z INFO  hf_transfer] done",
        "\x1b[32mINFO\x1b[0m:     Started server process [1]",
        '{"message": "error", "levelname": "INFO"}',
        '{"severity": "NOTICE", "message": "x"}',
    ],
    "WARNING": [
        "WARNING:root:slow",
        "/opt/x/train.py:12: UserWarning: lr_scheduler.step() was called too early",
        "FutureWarning: `resume_download` is deprecated",
        "/a b/torch/utils.py:9: DeprecationWarning: old",
        "node0:123:456 [0] NCCL WARN Call to connect returned Connection refused",
        "W1120 10:00:00.123000 140 torch/distributed/run.py:792] *****************",
        "[rank0]:[W1120 10:00:00.123456789 ProcessGroupNCCL.cpp:1496] Warning: not destroyed",
        "2026-11-20 10:00:00.123456: W tensorflow/core/common_runtime/gpu.cc:1] no GPU",
        "main.c:1:2: warning: unused variable",
        "warning: redirecting to https://example.com",
        "wandb: WARNING Disk space is low",
        "ld: warning: directory not found",
        " > WARNING: could not find the metadata file",
        "W: Some index files failed to download",
        "level=warn msg=x",
    ],
    "ERROR": [
        "ERROR:root:boom",
        "CRITICAL:root:boom",
        "2026-11-20 10:00:00,123 - __main__ - CRITICAL - out of disk",
        "E1120 10:00:00.123000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed "
        "(exitcode: 1) local_rank: 0 (pid: 12) of binary: /usr/bin/python",
        "[2026-11-20 10:00:00,123] torch.distributed.elastic.multiprocessing.api: [ERROR] failed",
        "Traceback (most recent call last):",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "AssertionError",
        "KeyboardInterrupt",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "train.py: error: the following arguments are required: --lr",
        "Error: no such file",
        "fatal: not a git repository",
        "slurmstepd: error: *** JOB 1 CANCELLED ***",
        "wandb: ERROR Error while calling W&B API",
        "CUDA ERROR: device-side assert triggered",
        "Segmentation fault (core dumped)",
        "Killed",
        "thread 'main' panicked at src/main.rs:1:1",
        "E: Unable to locate package x",
        '{"level": "fatal", "msg": "x"}',
    ],
    "": [
        "",
        "hello",
        "0 errors, 0 warnings",
        "finished with 0 ERRORS",
        "error: 0.0312, loss: 1.2",
        "Error: 0.5",
        "ERROR: 0.25",
        "val_error=0.12 train_error=0.10",
        "Validation error: 0.03",
        "{'loss': 0.5, 'error': 0.1, 'epoch': 1.0}",
        "  3%|▎         | 3/100 [00:01<00:30,  3.00it/s, error=0.1, ERROR: x]",
        "Loading checkpoint shards: 100%|██████████| 3/3 [00:01<00:00,  2.1it/s]",
        "no warnings were found in the information above",
        "the INFO command of redis",
        "errors.py was compiled",
        '{"config": {"level": "error"}, "loss": 1}',
        '{"level": "error", "cut": ',
        '{"level": 30}',
        "Information about the level: 3",
        "train.py FAILED",
    ],
}


@pytest.mark.parametrize(
    ("level", "line"), [(level, line) for level, lines in LINES.items() for line in lines]
)
def test_lines_of_common_programs(level: str, line: str):
    found = LevelDetector().detect(line)
    assert (found.name if found else "") == level


def test_a_traceback_has_one_level_to_its_end():
    reader = LevelDetector()
    log = {
        "step 1": None,
        "ERROR:train:failed": LogLevel.ERROR,
        "Traceback (most recent call last):": LogLevel.ERROR,
        '  File "train.py", line 1, in <module>': LogLevel.ERROR,
        "    warn('INFO: x')": LogLevel.ERROR,
        "my.own.Oops: words": LogLevel.ERROR,
        "step 2": None,
        "  indented, after a line without a level": None,
        "WARNING:config:unknown keys": LogLevel.WARNING,
        "    - a": LogLevel.WARNING,
        "step 3": None,
        "[rank1]: Traceback (most recent call last):": LogLevel.ERROR,
        '[rank1]:   File "train.py", line 2, in <module>': LogLevel.ERROR,
        "[rank1]: Oops": LogLevel.ERROR,
        "step 4": None,
    }
    assert {line: reader.detect(line) for line in log} == log


def test_names_of_levels():
    assert [parse_level(text) for text in ("debug", "Info", "WARN", "warning", "critical")] == [
        LogLevel.DEBUG,
        LogLevel.INFO,
        LogLevel.WARNING,
        LogLevel.WARNING,
        LogLevel.ERROR,
    ]
    for text in ("", "e", "loud"):
        with pytest.raises(ValueError, match="write debug, info, warning or error"):
            parse_level(text)


def test_a_long_line_is_judged_by_its_head():
    assert detect_level("ERROR: " + "x" * 60_000) is LogLevel.ERROR
    assert detect_level("x" * 60_000 + " ERROR: y") is None
