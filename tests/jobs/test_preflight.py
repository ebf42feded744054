"""What a push finds missing on this machine, before it writes a job."""

from __future__ import annotations

from pathlib import Path

from prefect_bt.definitions import Image, TrainingJob, TrainingProject
from prefect_bt.jobs.preflight import find_missing
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store

POINTER = "version https://git-lfs.github.com/spec/v1\nsize 4900000000\n"


def test_a_folder_of_git_lfs_pointers(tmp_path: Path) -> None:
    folder, ledger = tmp_path / "clone", Ledger(open_store("memory://"))
    folder.mkdir()
    weights = [
        {"source": source, "mount_location": f"/w/{n}"}
        for n, source in enumerate(["hf://o/r", f"file://{folder}", "file:///of/another/machine"])
    ]
    job = TrainingJob.model_validate({"image": Image(base_image="i"), "weights": weights})
    project = TrainingProject(name="p", job=job)
    assert not find_missing(ledger, project, [], images=False)
    (folder / "model.safetensors").write_text(POINTER)
    [sentence] = find_missing(ledger, project, [], images=False)
    assert sentence.startswith(f"file://{folder} has 'model.safetensors', which is a git-LFS")
    assert "git lfs pull" in sentence
