"""What a push says of the workspace it packs."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.cli.jobs.render_plan import show_workspace
from prefect_bt.cli.ui.terminal import open_terminal
from prefect_bt.workspace.archive import pack_workspace
from prefect_bt.workspace.file_list import PackEntry, collect_entries
from prefect_bt.workspace.pack_summary import describe_contents, workspace_document
from prefect_bt.workspace.roots import plan_layout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    write(folder, "config.py")
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def shown(document: dict, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    show_workspace(open_terminal(interactive=False, debug=False), document)
    told = capsys.readouterr()
    return told.out.splitlines(), told.err.splitlines()


def test_an_ordinary_folder_is_one_line(source: Path, tmp_path: Path, capsys) -> None:
    write(source, ".git/hooks/x.py", ".venv/a.py", "env/pyvenv.cfg", "env/lib/a.py", "a.log")
    write(source, "__pycache__/a.pyc", "build/CMakeCache.txt", "build/a.c", "dist/a.whl", "lib/x")
    packed = pack_workspace(plan_layout(source), tmp_path / "out.tar")
    document = workspace_document(packed.contents)["workspace"]
    assert (document["file_count"], document["size_bytes"]) == (1, 1)
    assert shown(document, capsys) == ([f"  Workspace: {source} (1 file, 1 bytes)"], [])
    assert workspace_document(None) == {}


def test_code_that_the_built_in_list_leaves_out(source: Path, tmp_path: Path, capsys) -> None:
    write(source, "lib/deep/er/model.py", "src/build/make.sh", "conf/env/gpu.yaml", "app.spec")
    write(source, "downloads/data.bin", "ops/fused.so", "local_settings.py", "data/real.bin")
    (source / "linked").symlink_to(source / "data")
    packed = pack_workspace(plan_layout(source), tmp_path / "out.tar")
    document = workspace_document(packed.contents)["workspace"]
    assert document["ignored_code"] == [
        *["app.spec", "conf/env/", "lib/", "local_settings.py", "ops/fused.so", "src/build/"]
    ]
    out, err = shown(document, capsys)
    assert len(out) == 1
    assert err[0].startswith("Links to folders are not packed: linked.")
    assert err[1].startswith("Not packed, though it looks like code: app.spec, conf/env/, lib/")
    assert ".truss_ignore" in err[1]
    write(source, ".truss_ignore")  # replaces the list
    packed = pack_workspace(plan_layout(source), tmp_path / "out.tar")
    assert packed.contents is not None
    assert not packed.contents.ignored_code


def test_external_folders_and_the_warnings_of_a_layout(source: Path, tmp_path: Path, capsys):
    write(tmp_path, "common/lib/util.py", "common/a.py")
    layout = plan_layout(source, external_dirs=["../common"], exclude_dirs=["nothing"])
    packed = pack_workspace(layout, tmp_path / "out.tar")
    document = workspace_document(packed.contents)["workspace"]
    out, err = shown(document, capsys)
    assert out[1] == f"  External:  {tmp_path / 'common'}"
    assert "names nothing" in err[0]
    assert "common/lib/" in err[1]


def test_the_largest_files_above_a_gigabyte(source: Path, capsys) -> None:
    layout = plan_layout(source)
    found = collect_entries(layout)
    sizes = {f"f{number:02}": number * 10**7 for number in range(20)}
    entries = [PackEntry(n, source / n, size, 0, (0, 0, size, 0)) for n, size in sizes.items()]
    contents = describe_contents(layout, entries, found.ignored, found.linked_folders)
    assert [file["path"] for file in contents.largest_files] == [
        f"f{n:02}" for n in range(19, 9, -1)
    ]
    out, _ = shown(workspace_document(contents)["workspace"], capsys)
    assert len(out) == 12
    assert out[2].split() == ["181.20", "MiB", "f19"]
    assert not describe_contents(layout, entries[:10], (), ()).largest_files
