"""git-LFS pointers in a workspace: weights are refused, other files are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.archive import PackedWorkspace, pack_workspace
from prefect_bt.workspace.roots import plan_layout

from .conftest import MakeTree

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 4900000000\n"


def pack(folder: Path, target: Path, root: str | None = None) -> PackedWorkspace:
    return pack_workspace(plan_layout(folder, workspace_root=root), target)


@pytest.mark.parametrize("name", ["m.safetensors", "sub/a.BIN", "last.ckpt", "a.b.gguf", "x.pt"])
@pytest.mark.parametrize("content", [POINTER, POINTER.replace("\n", "\r\n")], ids=["lf", "crlf"])
@pytest.mark.parametrize("root", [None, "."])
def test_weights_are_refused(
    tmp_path: Path, make_tree: MakeTree, name: str, content: str, root: str | None
) -> None:
    source, target = make_tree(tmp_path / "s", {"run.py": "1"}), tmp_path / "out.tar"
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_bytes(content.encode())
    with pytest.raises(WorkspaceError) as caught:
        pack(source, target, root)
    assert f"'{name}' (a git-LFS pointer to 4.9 GB)" in str(caught.value)
    assert "git lfs pull" in caught.value.next_step
    assert caught.value.path == name
    assert not target.exists()
    (source / ".truss_ignore").write_text(f"{name}\n")
    assert pack(source, target, root).file_count == 2


def test_other_files_are_named(tmp_path: Path, make_tree: MakeTree) -> None:
    files = {f"data/{n}.parquet": POINTER for n in range(7)}
    packed = pack(make_tree(tmp_path / "s", {"run.py": "1", **files}), tmp_path / "out.tar")
    assert packed.file_count == 8
    assert packed.contents
    [warning] = packed.contents.warnings
    assert "'data/0.parquet' (a git-LFS pointer to 4.9 GB)" in warning
    assert "and 2 more" in warning
    assert "git lfs pull" in warning


@pytest.mark.parametrize(
    "content", ["", "weights", POINTER + "x" * 1024, f"# {POINTER}"], ids=["", "w", "long", "doc"]
)
def test_files_that_are_no_pointers(tmp_path: Path, make_tree: MakeTree, content: str) -> None:
    packed = pack(make_tree(tmp_path / "s", {"model.bin": content}), tmp_path / "out.tar")
    assert packed.contents
    assert not packed.contents.warnings
