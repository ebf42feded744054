"""Run the start commands of public recipes on this machine."""

import json
import textwrap
from pathlib import Path

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]

HEAD = """
    from truss_train import definitions
    from truss.base import truss_config
"""

STYLES = """
    runtime = definitions.Runtime(
        start_commands=[
            "chmod +x ./run.sh && ./run.sh",
            "/bin/sh -c 'chmod +x ./quoted.sh && ./quoted.sh'",
            "chmod +x two.sh",
            "./two.sh",
            "echo pip install 'a>=1,<2' \\"b[x]==1\\" 'c; echo not run'",
            "/bin/bash -c 'echo nested '\\"'\\"'d>=2,<3'\\"'\\"''",
            "echo scale=${SCALE} gpus=$BT_NUM_GPUS `echo backticks` $((2 + 3))",
            "cd sub && pwd",
            "pwd",
            "mkdir -p /app /workspace/out && cd /app/ && touch made && cd /workspace && touch made",
            "ls /app/made /workspace/made",
            '''python - <<'END'
    import os
    print("here document", os.environ["SCALE"], os.getcwd())
    END''',
            "exec ./last.sh one 'two words'",
        ],
        environment_variables={
            "SCALE": "8",
            "NVIDIA_DRIVER_CAPABILITIES": "all",
            "NCCL_DEBUG": "INFO",
            "QUOTED": "it's \\"so\\" $HOME `date`",
        },
        cache_config=definitions.CacheConfig(enabled=True),
        checkpointing_config=definitions.CheckpointingConfig(
            enabled=True, checkpoint_path="/workspace/checkpoints"
        ),
    )
    _ = definitions.TrainingProject(
        name="owner/styles of start",
        job=definitions.TrainingJob(
            image=definitions.Image(base_image="pytorch/pytorch:latest"),
            runtime=runtime,
        ),
    )
"""

RUN = """
    set -eux
    echo "no shebang: group $BT_GROUP_SIZE rank $BT_NODE_RANK leader $BT_LEADER_ADDR"
    echo "product $((BT_GROUP_SIZE * 8)), retry $BT_RETRY_COUNT, quoted: $QUOTED"
"""

QUOTED = """
    #!/bin/bash
    set -euo pipefail
    export HF_HOME=$BT_RW_CACHE_DIR/huggingface
    mkdir -p "$HF_HOME/hub" && echo kept > "$HF_HOME/hub/file"
    shared="$BT_PROJECT_CACHE_DIR/$BT_TRAINING_JOB_NAME"
    mkdir -p "$shared/v0" && echo "{}" > "$shared/v0/config.json"
    cp -r "$shared/v0" "$BT_CHECKPOINT_DIR/merged"
    ls "$HF_HOME/hub"
"""

TWO = """
    mkdir -p /workspace && cd /workspace
    ln -s "$BT_CHECKPOINT_DIR" output
    mkdir -p output/v0-2026/checkpoint-10 && echo '{}' > output/v0-2026/checkpoint-10/config.json
    mkdir -p /workspace/checkpoints/hard-coded && echo 1 > /workspace/checkpoints/hard-coded/step
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    return folder


def lines_of(machine: Machine, job: str) -> list[str]:
    lines = [line.partition("(rank-0) ") for line in machine.logs(job).splitlines()]
    return [said for _, rank, said in lines if rank]


def test_the_styles_of_start_commands(machine: Machine, tmp_path: Path) -> None:
    files = {"config.py": HEAD + STYLES, "run.sh": RUN, "quoted.sh": QUOTED, "two.sh": TWO}
    write(tmp_path, {**files, "last.sh": "printf '<%s> ' \"$@\"; echo\n", "sub/data.txt": "1"})
    (tmp_path / "last.sh").chmod(0o755)
    code, job = machine.finish(tmp_path / "config.py")
    lines = lines_of(machine, job["id"])
    assert code == 0, (job["error_message"], lines)
    expected = [
        "no shebang: group 1 rank 0 leader 127.0.0.1",
        'product 8, retry 0, quoted: it\'s "so" $HOME `date`',
        "file",
        "pip install a>=1,<2 b[x]==1 c; echo not run",
        "nested d>=2,<3",
        "scale=8 gpus=0 backticks 5",
        "/b10/workspace/sub",
        "/b10/workspace",
        "/app/made",
        "/workspace/made",
        "here document 8 /b10/workspace",
        "<one> <two words> ",
    ]
    assert [line for line in lines if line in expected] == expected, lines
    assert set(machine.checkpoints(job["id"])) == {"merged", "v0-2026/checkpoint-10", "hard-coded"}
    assert not Path("/app").exists()
    assert not Path("/workspace").exists()


def test_a_config_below_its_workspace_root(machine: Machine, tmp_path: Path) -> None:
    config = """
        import json
        from pathlib import Path

        settings = json.loads((Path(__file__).parent / "settings.json").read_text())
        training_project = definitions.TrainingProject(
            name=settings["name"],
            job=definitions.TrainingJob(
                image=definitions.Image(base_image="i"),
                workspace=definitions.Workspace(
                    workspace_root="..", external_dirs=["../../data"], exclude_dirs=["../secret"]
                ),
                runtime=definitions.Runtime(
                    start_commands=["cd train && bash ./go.sh", "find . -type f | sort"],
                    environment_variables=settings["env"],
                ),
            ),
        )
    """
    write(
        tmp_path,
        {
            "repo/train/config_1node_128k.py": textwrap.dedent(HEAD) + textwrap.dedent(config),
            "repo/train/settings.json": json.dumps({"name": "settings beside", "env": {"LR": "1"}}),
            "repo/train/go.sh": "echo learning rate $LR; cat ../shared/model.txt ../data/rows.txt",
            "repo/shared/model.txt": "the model\n",
            "repo/secret/key": "never packed",
            "data/rows.txt": "the rows\n",
        },
    )
    code, job = machine.finish(tmp_path / "repo/train/config_1node_128k.py")
    lines = [line for line in lines_of(machine, job["id"]) if not line.startswith("[prefect-bt]")]
    assert code == 0, (job["error_message"], lines)
    assert lines == [
        "learning rate 1",
        "the model",
        "the rows",
        "./data/rows.txt",
        "./shared/model.txt",
        "./train/config_1node_128k.py",
        "./train/go.sh",
        "./train/settings.json",
    ]


def test_checkpoints_rotated_while_they_are_uploaded(machine: Machine) -> None:
    script = """
    save() {  # as transformers does with save_total_limit=2: write aside, rename, delete the old
      mkdir -p $BT_CHECKPOINT_DIR/tmp-$1
      head -c 3000000 /dev/urandom > $BT_CHECKPOINT_DIR/tmp-$1/weights
      echo "{\\"step\\": $1}" > $BT_CHECKPOINT_DIR/tmp-$1/trainer_state.json
      mv $BT_CHECKPOINT_DIR/tmp-$1 $BT_CHECKPOINT_DIR/checkpoint-$1
      rm -rf $BT_CHECKPOINT_DIR/checkpoint-$(($1 - 20))
      ( cd $BT_CHECKPOINT_DIR/checkpoint-$1 && sha256sum weights > sums )
    }
    for step in 10 20 30 40 50 60 70 80; do save $step; sleep 0.4; done
    ls $BT_CHECKPOINT_DIR
    """
    code, job = machine.finish(machine.folder(script))
    assert code == 0, job["error_message"]
    kept = set(machine.checkpoints(job["id"]))
    assert kept >= {"checkpoint-70", "checkpoint-80"}
    assert not [name for name in kept if name.startswith("tmp-")]
    assert "could not" not in machine.logs(job["id"])


@pytest.mark.extended
@pytest.mark.slow
def test_ranks_that_sleep_for_ever(machine: Machine) -> None:
    script = """
    if [ "$BT_NODE_RANK" -lt $((BT_GROUP_SIZE - 1)) ]; then sleep infinity; fi
    mkdir -p $BT_CHECKPOINT_DIR/last; echo 1 > $BT_CHECKPOINT_DIR/last/a
    """
    patience = {"PREFECT_BT_STRAGGLER_PATIENCE": "8"}
    code, job = machine.finish(machine.folder(script, nodes=2), extra=patience)
    assert (code, job["current_status"]) == (0, "TRAINING_JOB_COMPLETED"), job["error_message"]
    assert [warning[:18] for warning in job["warnings"]] == ["Rank 0 was stopped"]
    assert machine.checkpoints(job["id"]) == ["last"]
    machine.nothing_left(job["id"])
