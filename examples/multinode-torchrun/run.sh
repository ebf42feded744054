#!/bin/sh
set -eu

# Name missing libraries in one line instead of a traceback.
python - torch safetensors <<'END'
import sys
from importlib.util import find_spec

missing = [name for name in sys.argv[1:] if find_spec(name) is None]
if missing:
    sys.exit(
        f"run.sh: {', '.join(missing)} not installed here. On your own machine: "
        "pip install 'prefect-bt[demo]'; in an image: the `pip install` line of config.py."
    )
END

# Every node runs this command. BT_LEADER_PORT is a free port; without prefect-bt, use 29500.
torchrun \
    --nnodes "$BT_GROUP_SIZE" \
    --node-rank "$BT_NODE_RANK" \
    --nproc-per-node "$PROCESSES" \
    --master-addr "$BT_LEADER_ADDR" \
    --master-port "${BT_LEADER_PORT:-29500}" \
    train.py
