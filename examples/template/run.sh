#!/bin/sh
# What every node of the job runs.
set -eu

echo "job $BT_TRAINING_JOB_ID, attempt $BT_RETRY_COUNT, node $BT_NODE_RANK of $BT_GROUP_SIZE"

# pip install -r requirements.txt
# python train.py --output_dir "$BT_CHECKPOINT_DIR"

mkdir -p "$BT_CHECKPOINT_DIR/checkpoint-1"
echo "replace me with weights" > "$BT_CHECKPOINT_DIR/checkpoint-1/model.txt"
echo "done"
