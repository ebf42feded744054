import os

from truss.base import truss_config  # noqa: F401 - for the accelerator line below
from truss_train import definitions

BASE_IMAGE = "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime"
NODES = int(os.environ.get("NODES", "1"))

training_runtime = definitions.Runtime(
    start_commands=[
        # If the image does not have the libraries: "pip install -r requirements.txt",
        "/bin/sh -c 'chmod +x ./run.sh && ./run.sh'",
    ],
    environment_variables={
        # A name on the Hub, or a folder. If empty, train.py makes a tiny model.
        "MODEL": os.environ.get("MODEL", ""),
        "PROCESSES": os.environ.get("PROCESSES", "2"),  # per node; on GPUs: $BT_NUM_GPUS
        "STEPS": os.environ.get("STEPS", "40"),
        # To see a resume: the leader of the first attempt kills itself after this step.
        "KILL_AT_STEP": os.environ.get("KILL_AT_STEP", "0"),
        "ACCELERATE_USE_CPU": "true",  # remove it on GPUs
        "OMP_NUM_THREADS": "1",
        # "NCCL_DEBUG": "INFO",
    },
    checkpointing_config=definitions.CheckpointingConfig(enabled=True),
)

training_compute = definitions.Compute(
    node_count=NODES,
    cpu_count=1,
    memory="2Gi",
    # accelerator=truss_config.AcceleratorSpec(accelerator=truss_config.Accelerator.H100, count=8),
)

training_job = definitions.TrainingJob(
    image=definitions.Image(base_image=BASE_IMAGE),
    compute=training_compute,
    runtime=training_runtime,
)

training_project = definitions.TrainingProject(name="accelerate-launch", job=training_job)
