#!/bin/sh
set -eu

# Name missing libraries in one line instead of a traceback.
python - torch transformers accelerate <<'END'
import sys
from importlib.util import find_spec

missing = [name for name in sys.argv[1:] if find_spec(name) is None]
if missing:
    sys.exit(
        f"run.sh: {', '.join(missing)} not installed here. On your own machine: "
        "pip install 'prefect-bt[demo]'; in an image: the `pip install` line of config.py."
    )
END

# Make the tiny model before the processes start.
if [ -z "${MODEL:-}" ]; then
    python tiny.py "$BT_SCRATCH_DIR/base" train.jsonl
    export MODEL="$BT_SCRATCH_DIR/base"
fi

# The same command runs on one node or several. ACCELERATE_USE_CPU in config.py selects the CPU.
accelerate launch \
    --multi_gpu \
    --num_machines "$BT_GROUP_SIZE" \
    --machine_rank "$BT_NODE_RANK" \
    --num_processes $((PROCESSES * BT_GROUP_SIZE)) \
    --main_process_ip "$BT_LEADER_ADDR" \
    --main_process_port "${BT_LEADER_PORT:-29500}" \
    --mixed_precision no \
    --dynamo_backend no \
    train.py
