"""A training project. Submit it from this folder: prefect-bt push config.py --tail

The names below are those of `truss_train`; truss itself need not be installed.
"""

from truss_train import definitions

# For the accelerator below:
# from truss.base import truss_config

runtime = definitions.Runtime(
    # Run one after the other in /b10/workspace, which holds the files of this folder.
    start_commands=["/bin/sh -c 'chmod +x ./run.sh && ./run.sh'"],
    environment_variables={
        # The name of a secret, never its value:
        # "HF_TOKEN": definitions.SecretReference(name="hf_access_token"),
    },
    # What the job writes to $BT_CHECKPOINT_DIR is saved while it runs.
    checkpointing_config=definitions.CheckpointingConfig(enabled=True),
)

compute = definitions.Compute(
    node_count=1,
    cpu_count=1,
    memory="2Gi",
    # accelerator=truss_config.AcceleratorSpec(accelerator=truss_config.Accelerator.H100, count=1),
)

job = definitions.TrainingJob(
    image=definitions.Image(base_image="python:3.11-slim"),
    compute=compute,
    runtime=runtime,
)

project = definitions.TrainingProject(name="my-training-project", job=job)
