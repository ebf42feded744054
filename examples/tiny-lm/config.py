import os

from truss.base import truss_config  # noqa: F401 - for the accelerator line below
from truss_train import definitions

BASE_IMAGE = "python:3.11-slim"

training_runtime = definitions.Runtime(
    start_commands=[
        # If the image does not have the libraries: "pip install -r requirements.txt",
        "/bin/sh -c 'chmod +x ./run.sh && ./run.sh'",
    ],
    environment_variables={"TINY_LM_STEPS": os.environ.get("TINY_LM_STEPS", "240")},
    checkpointing_config=definitions.CheckpointingConfig(enabled=True),
)

training_compute = definitions.Compute(
    node_count=1,
    cpu_count=2,
    memory="4Gi",
    # accelerator=truss_config.AcceleratorSpec(accelerator=truss_config.Accelerator.H100, count=1),
)

training_job = definitions.TrainingJob(
    image=definitions.Image(base_image=BASE_IMAGE),
    compute=training_compute,
    runtime=training_runtime,
)

training_project = definitions.TrainingProject(name="tiny-lm", job=training_job)
