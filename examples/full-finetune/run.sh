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

export HF_HOME="$BT_PROJECT_CACHE_DIR/huggingface"
python train.py
