#!/bin/sh
set -eu

# An image that has PyTorch, transformers and PEFT starts at once; a bare Python image gets them here.
if ! python -c "import sys
from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in ('torch', 'transformers', 'accelerate', 'peft')))"; then
    pip install --no-cache-dir "torch>=2.13,<2.14" "transformers~=5.23" "accelerate~=1.15" "peft~=0.21.2"
fi

export HF_HUB_OFFLINE=1 # nothing here comes from the Hub
python train.py
