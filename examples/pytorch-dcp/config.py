import os

from truss.base import truss_config  # noqa: F401 - for the accelerator line below
from truss_train import definitions

BASE_IMAGE = "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime"

training_runtime = definitions.Runtime(
    start_commands=[
        # If the image does not have the libraries: "pip install -r requirements.txt",
        "/bin/sh -c 'chmod +x ./run.sh && ./run.sh'",
    ],
    environment_variables={
        # A name on the Hub, or a folder. If empty, train.py makes a tiny model.
        "MODEL": os.environ.get("MODEL", ""),
        "PROCESSES": os.environ.get("PROCESSES", "2"),  # on GPUs: their number
        "STEPS": os.environ.get("STEPS", "40"),
        # To see a resume: the first attempt kills itself after this step.
        "KILL_AT_STEP": os.environ.get("KILL_AT_STEP", "0"),
        "OMP_NUM_THREADS": "1",  # for the tiny model; remove it for a real one
        # "HF_TOKEN": definitions.SecretReference(name="hf_access_token"),
    },
    cache_config=definitions.CacheConfig(enabled=True),
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

training_project = definitions.TrainingProject(name="pytorch-dcp", job=training_job)
