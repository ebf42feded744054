import os

from truss.base import truss_config  # noqa: F401 - for the accelerator line below
from truss_train import definitions

BASE_IMAGE = "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime"

# The checkpoint to evaluate. `push` refuses a checkpoint that does not exist.
JOB = os.environ.get("JOB")
CHECKPOINT = os.environ.get("CHECKPOINT")
PROJECT = os.environ.get("PROJECT", "full-finetune")

if JOB and CHECKPOINT:
    checkpoint = definitions.BasetenCheckpoint.from_named_checkpoint(
        checkpoint_name=CHECKPOINT, job_id=JOB
    )
elif JOB:
    checkpoint = definitions.BasetenCheckpoint.from_latest_checkpoint(job_id=JOB)
else:
    checkpoint = definitions.BasetenCheckpoint.from_latest_checkpoint(project_name=PROJECT)

training_runtime = definitions.Runtime(
    start_commands=[
        # If the image does not have the libraries: "pip install -r requirements.txt",
        "/bin/sh -c 'chmod +x ./run.sh && ./run.sh'",
    ],
    environment_variables={
        "OMP_NUM_THREADS": "1",  # for the tiny model; remove it for a real one
    },
    load_checkpoint_config=definitions.LoadCheckpointConfig(enabled=True, checkpoints=[checkpoint]),
    # The metrics are committed as a checkpoint.
    checkpointing_config=definitions.CheckpointingConfig(enabled=True),
)

training_compute = definitions.Compute(
    node_count=1,
    cpu_count=1,
    memory="2Gi",
    # accelerator=truss_config.AcceleratorSpec(accelerator=truss_config.Accelerator.H100, count=1),
)

training_job = definitions.TrainingJob(
    image=definitions.Image(base_image=BASE_IMAGE),
    compute=training_compute,
    runtime=training_runtime,
)

training_project = definitions.TrainingProject(name="evaluate-checkpoint", job=training_job)
