"""`weights list | mirror | why | verify | prune`: what is said, what is done, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.ownership import Claim
from prefect_bt.planning import plan_sources
from prefect_bt.weights import NodeCache
from prefect_bt.weights import mirror_source as mirror_here
from tests.weights.hub_server import Hub, Repo, serving_hub

from .conftest import COMMAND, Cli
from .screens import Screen

LARGE = 40 << 20

CONFIG = """
from truss_train import WeightsSource, definitions as d

project = d.TrainingProject(
    name="weights",
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        runtime=d.Runtime(start_commands=["true"]),
        weights=[{sources}],
    ),
)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub() as hub:
        hub.repos["o/base"] = Repo()
        files = {"config.json": b"{}", "model.safetensors": os.urandom(LARGE)}
        hub.repos["o/base"].commit(files)
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> str:
    return folder(tmp_path, "model", {"config.json": b"{}", "weights.bin": os.urandom(5000)})


def folder(tmp_path: Path, name: str, files: dict[str, bytes]) -> str:
    for path, data in files.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / path).write_bytes(data)
    return f"file://{tmp_path / name}"


def cache_of(cli: Cli) -> NodeCache:
    return NodeCache(Path(cli.env["PREFECT_BT_STATE_DIR"]) / "weights")


def mirrored(cli: Cli, *sources: str) -> list[dict[str, Any]]:
    given = [word for source in sources for word in ("--source", source)]
    done = cli("weights", "mirror", *given, "-o", "json")
    assert (done.code, done.err) == (0, ""), done.err
    return done.json["weights"]


def spoil(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"x" + path.read_bytes()[1:])


# -- list -----------------------------------------------------------------------------------


def test_nothing_is_kept(cli: Cli) -> None:
    done = cli("weights", "list")
    assert (done.code, done.err) == (0, "")
    assert "No weights are kept here yet" in done.out
    assert "prefect-bt weights mirror config.py" in done.out
    found = cli("weights", "list", "-o", "json").json
    assert (found["trees"], found["unfinished"], found["total_bytes"]) == ([], [], 0)
    assert not cache_of(cli).root.exists()


def test_what_is_kept(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    assert (listed["name"], listed["source"], listed["folder"]) == (
        one["name"],
        model,
        one["folder"],
    )
    assert (listed["files"], listed["bytes"], listed["where"]) == (2, 5002, "both")
    assert listed["in_use_by"] == []
    claim = Claim(Path(cli.env["PREFECT_BT_STATE_DIR"]))
    claim.take("abc1234")
    try:
        cache_of(cli).use(one["name"], holder="abc1234")
        done = cli("weights", "list", PREFECT_BT_WEIGHTS_BYTES="500GB")
    finally:
        claim.release()
    line = next(line for line in done.out.splitlines() if line.startswith(model))
    assert one["revision"][:12] in line
    assert line.endswith("both   abc1234")
    assert "of 500.0 GB (PREFECT_BT_WEIGHTS_BYTES)" in done.out
    cache_of(cli).evict(one["name"])
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    assert (listed["where"], listed["last_used"], listed["folder"]) == ("store", None, None)


def test_listing_imports_nothing_heavy_and_needs_no_store(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    done = cli("weights", "list", PREFECT_BT_STORE="ftp://nowhere")
    assert done.code == 0
    assert "Only what is on this machine is shown" in done.err
    assert model in done.out


# -- mirror ---------------------------------------------------------------------------------


def test_mirrored_once(cli: Cli, model: str) -> None:
    done = cli("weights", "mirror", "--source", model)
    assert done.code == 0
    assert f"{model}: 2 files, 5.0 KB in " in done.out
    assert "5.0 KB from the source" in done.out
    folder = Path(re.findall(r"in (/\S+/files)$", done.out, re.MULTILINE)[0])
    assert (folder / "weights.bin").stat().st_size == 5000
    assert "here already" in cli("weights", "mirror", "--source", model).out
    [again] = mirrored(cli, model)
    assert (again["hit"], again["fetched"], again["folder"]) == (True, 0, str(folder))


def test_the_sources_of_a_config_file(
    cli: Cli, config: Callable[..., Path], tmp_path: Path
) -> None:
    one = folder(tmp_path, "one", {"a.txt": b"a"})
    two = folder(tmp_path, "two", {"b.txt": b"b", "b.bin": b"1"})
    sources = [
        f'WeightsSource(source="{one}", mount_location="/one")',
        f'WeightsSource(source="{two}", mount_location="/two", allow_patterns=["*.txt"])',
        'WeightsSource(source="file:///no/such", mount_location="/three")',
        f'WeightsSource(source="{one}", mount_location="/again")',
    ]
    path = config(body=CONFIG.format(sources=", ".join(sources)))
    done = cli("weights", "mirror", str(path), "-o", "json")
    assert done.code == 1
    assert [(row["source"], row.get("files")) for row in done.json["weights"]] == [
        (one, 1),
        (two, 1),
        ("file:///no/such", None),
    ]
    assert "is not a folder" in done.json["weights"][2]["error"]
    answers = cli("weights", "why", str(path), "-o", "json")
    assert answers.code == 1
    assert [row["status"] for row in answers.json["weights"]] == [
        *("staged", "staged", "refused", "staged")
    ]
    mounts = [row["mount_location"] for row in answers.json["weights"]]
    assert mounts == ["/one", "/two", "/three", "/again"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name either a config file or sources"),
        (["CONFIG", "--source", "file:///x"], "Name either a config file or sources"),
        (["CONFIG", "--allow", "*"], "belong to --source"),
        (["CONFIG"], "has no weights"),
        (
            ["--source", "gcs://b/p"],
            'gcs://b/p: WeightsSource is not valid: source: "gcs://" is no',
        ),
        (
            ["--source", "https://a/f?sig=s3cr3t", "--source", "https://u:p@h/f"],
            "'https://h/f' has",
        ),
        (["--source", "hf://o/base@"], "error: source 'hf://o/base@' has no revision"),
        (["--source", "hf://a/b/c"], "'hf://a/b/c' is no repository; write hf://owner/repo"),
    ],
)
@pytest.mark.parametrize("verb", ["mirror", "why"])
def test_asked_in_a_wrong_way(
    cli: Cli, config: Callable[..., Path], verb: str, arguments: list[str], words: str
) -> None:
    path = str(config())
    done = cli("weights", verb, *(path if word == "CONFIG" else word for word in arguments))
    assert (done.code, done.out) == (1, "")
    assert words in done.err
    assert "TrainingProject" not in done.err
    assert "s3cr3t" not in done.err


def test_what_push_would_refuse_is_refused_before_a_byte(
    cli: Cli, config: Callable[..., Path], model: str
) -> None:
    sources = [
        f'WeightsSource(source="{model}", mount_location="/one")',
        f'WeightsSource(source="{model}", mount_location="/proc/w")',
        f'WeightsSource(source="{model}", mount_location="/one")',
        'WeightsSource(source="hf://o/base@", mount_location="/four")',
    ]
    path = str(config(body=CONFIG.format(sources=", ".join(sources))))
    words = [
        "weights[1].mount_location is '/proc/w'; nothing can be mounted",
        "weights[2].mount_location is '/one', which weights[0].mount_location uses already",
        "weights[3].source 'hf://o/base@' has no revision",
    ]
    done = cli("weights", "mirror", path)
    assert (done.code, done.out) == (1, "")
    assert not [word for word in words if word not in done.err]
    assert not cache_of(cli).root.exists()
    answers = cli("weights", "why", path, "-o", "json")
    rows = answers.json["weights"]
    assert (answers.code, answers.err) == (1, "")
    assert [row["status"] for row in rows] == ["upstream", "refused", "refused", "refused"]
    for row, word in zip(rows[1:], words, strict=True):
        assert row["error"].startswith(word)


def test_a_secret_comes_from_the_environment(cli: Cli, hub: Hub) -> None:
    hub.repos["o/base"].token = "hf_planted"
    given = ("--source", "hf://o/base", "--auth-secret-name", "my_token", "--allow", "*.json")
    env = {"HF_ENDPOINT": hub.url}
    refused = cli("weights", "mirror", *given, **env, PREFECT_BT_SECRET_MY_TOKEN="wrong")
    assert refused.code == 1
    assert "does not exist" in refused.err
    env["PREFECT_BT_SECRET_MY_TOKEN"] = "hf_planted"
    done = cli("weights", "mirror", *given, **env)
    assert (done.code, "1 file" in done.out) == (0, True)
    why = cli("weights", "why", *given, "-o", "json", **env)
    [answer] = why.json["weights"]
    assert (answer["status"], answer["auth"]) == ("staged", "the secret 'my_token'")
    assert answer["pinned_by"] == f"main -> {answer['revision']}"
    assert "hf_planted" not in done.out + done.err + why.out


def test_ctrl_c_keeps_what_has_come(cli: Cli, hub: Hub) -> None:
    hub.bad.seconds_a_chunk = 0.05
    cli.env |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    process = cli.start("weights", "mirror", "--source", "hf://o/base")
    deadline = time.monotonic() + 60
    while hub.sent < 4 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Stopped. " in err.splitlines()[-1]
    assert "the same command goes on from there" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert cache_of(cli).trees() == []

    hub.bad.seconds_a_chunk = 0.0
    listed = cli("weights", "list", "-o", "json").json
    assert listed["unfinished_bytes"] > 1 << 20
    [answer] = cli("weights", "why", "--source", "hf://o/base", "-o", "json").json["weights"]
    assert answer["status"] == "partial"
    assert answer["partial_bytes"] > 1 << 20
    assert answer["disk"]["needed"] == answer["upstream"]["bytes"] - answer["partial_bytes"]
    before = hub.sent_of["model.safetensors"]
    [done] = mirrored(cli, "hf://o/base")
    assert done["bytes"] == LARGE + 2
    assert done["fetched"] < LARGE
    assert hub.sent_of["model.safetensors"] - before < LARGE


def test_bars_on_a_terminal(cli: Cli, hub: Hub) -> None:
    hub.bad.seconds_a_chunk = 0.02
    cli.env |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    command = [*COMMAND, "weights", "mirror", "--source", "hf://o/base"]
    screen = Screen(command, env=cli.env, folder=cli.folder)
    try:
        # It is read until nothing more comes: the bar moves to the end.
        said = screen.wait_for_line("2 files, 41.9 MB in ", "from the source")
        assert re.search(r"━ 1 of 2 files, \d[\d.]* MB of 41.9 MB \(\d+ %\), [\d.]+ MB/s", said)
        assert screen.end() == 0
    finally:
        screen.close()


def test_plain_lines_elsewhere(cli: Cli, hub: Hub) -> None:
    cli.env |= {"HF_ENDPOINT": hub.url}
    done = cli("weights", "mirror", "--source", "hf://o/base")
    assert done.code == 0
    assert "hf://o/base: 0 of 2 files, 0 B of 41.9 MB (0 %)" in done.err
    assert "\x1b" not in done.err
    quiet = cli("weights", "mirror", "--source", "hf://o/base@main", "-o", "json")
    assert quiet.err == ""


def test_trouble_is_told_where_it_happened(cli: Cli, hub: Hub) -> None:
    hub.bad.status = 503
    done = cli("weights", "mirror", "--source", "hf://o/base", HF_ENDPOINT=hub.url)
    assert (done.code, done.out) == (1, "")
    asking, again, *_, last = done.err.splitlines()
    assert asking == "hf://o/base: asking what there is"
    assert again.startswith("hf://o/base: tried again: hf://o/base could not be read")
    assert last.startswith("error: hf://o/base could not be read")
    assert "answered 503" in last


# -- why ------------------------------------------------------------------------------------


def test_why_fetches_nothing(cli: Cli, hub: Hub) -> None:
    cli.env |= {"HF_ENDPOINT": hub.url}
    done = cli("weights", "why", "--source", "hf://o/base", "--allow", "*.safetensors")
    assert done.code == 0
    assert "nothing of it is here; all of it comes from the source" in done.out
    commit = hub.repos["o/base"].branches["main"]
    assert re.search(rf"Pinned By +main -> {commit}", done.out)
    assert re.search(r"From The Source +1 file, 41.9 MB", done.out)
    assert hub.bodies() == 0
    assert not Path(cli.env["PREFECT_BT_STATE_DIR"]).exists()
    [answer] = cli("weights", "why", "--source", "hf://o/base", "-o", "json").json["weights"]
    assert set(answer) == {
        *("source", "mount_location", "key", "name", "revision", "pinned_by", "status", "files"),
        *("bytes", "here", "store", "upstream", "partial_bytes", "largest", "disk", "evicts"),
        *("again", "auth", "error", "next_step"),
    }
    assert answer["largest"][0] == {"path": "model.safetensors", "bytes": LARGE}
    assert answer["auth"] == "nobody"


def test_why_it_is_fetched_again(cli: Cli, hub: Hub) -> None:
    cli.env |= {"HF_ENDPOINT": hub.url}
    [old] = mirrored(cli, "hf://o/base")
    files = {**hub.repos["o/base"].commits[old["revision"]], "config.json": b"[]", "new": b"n"}
    new = hub.repos["o/base"].commit(files)
    done = cli("weights", "why", "--source", "hf://o/base")
    moved = f"The revision moved from {old['revision'][:12]} to {new[:12]}"
    assert re.search(rf"Fetched Again +{moved}: 1 file changed, 1 new\.", done.out)
    assert re.search(r"Here +1 file, 41.9 MB", done.out)


def test_a_secret_that_is_nowhere_is_an_answer(cli: Cli, model: str) -> None:
    env = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_HOME": str(cli.folder / "p")}
    given = ("--source", "hf://o/r", "--auth-secret-name", "nowhere")
    done = cli("weights", "why", *given, "-o", "json", **env)
    assert done.code == 1
    [answer] = done.json["weights"]
    assert answer["status"] == "refused"
    assert answer["error"]
    assert answer["next_step"]


# -- verify ---------------------------------------------------------------------------------


def test_one_changed_byte(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    done = cli("weights", "verify", "--store")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "1 tree, 2 files, 5.0 KB: all as mirrored.",
        "The store: 1 copy, 5.0 KB: all as mirrored.",
    ]
    damaged = Path(one["folder"]) / "weights.bin"
    spoil(damaged)
    dry = cli("weights", "verify", "--dry-run")
    assert dry.code == 1
    assert dry.err == (
        f"error: {damaged} has other bytes than were mirrored: weights.bin of {model}\n"
    )
    assert "Nothing was changed." in dry.out
    assert damaged.exists()

    done = cli("weights", "verify", model, "-o", "json")
    assert done.code == 1
    [fault] = done.json["faults"]
    assert (fault["tree"], fault["path"]) == (one["name"], "weights.bin")
    assert (done.json["withdrawn"], done.json["in_use"]) == ([one["name"]], {})
    assert cli("weights", "verify", "--store").code == 0
    [again] = mirrored(cli, model)
    assert (again["fetched"], again["hit"]) == (5000, False)
    assert cli("weights", "verify", again["name"][:10], "--store").code == 0


def test_damage_that_a_running_job_has_mounted(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    spoil(Path(one["folder"]) / "weights.bin")
    claim = Claim(Path(cli.env["PREFECT_BT_STATE_DIR"]))
    claim.take("abc1234")
    try:
        cache_of(cli).use(one["name"], holder="abc1234")
        done = cli("weights", "verify")
        assert done.code == 1
        assert f"{one['name']} is damaged and stays in use by job abc1234" in done.err
        assert cache_of(cli).find(one["name"])
    finally:
        claim.release()


def test_a_damaged_copy_in_the_store(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    blobs = Path(cli.env["PREFECT_BT_STORE"]) / "weights" / "blobs"
    large = next(path for path in blobs.rglob("*") if path.is_file() and path.stat().st_size > 10)
    data = large.read_bytes()
    large.unlink()
    large.write_bytes(b"x" + data[1:])
    assert cli("weights", "verify").code == 0
    done = cli("weights", "verify", "--store", "-o", "json")
    assert done.code == 1
    assert (done.json["faults"], done.json["withdrawn"]) == ([], [])
    assert done.json["store"]["withdrawn"] == [one["name"]]
    assert done.json["store"]["faults"][0]["path"] == "weights.bin"
    mirrored(cli, model)  # gives the store its copy again
    assert cli("weights", "verify", "--store").code == 0
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    assert listed["where"] == "both"


def test_a_name_that_is_not_known(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    for arguments, place in (
        (["verify"], "this machine"),
        (["prune"], "this machine"),
        (["prune", "--store"], "the store"),
    ):
        done = cli("weights", *arguments, "hf://o/none", "-o", "json")
        assert (done.code, done.out) == (1, "")
        assert f"No weights 'hf://o/none' on {place}. There are: {model} " in done.err


def test_nothing_to_verify(cli: Cli) -> None:
    done = cli("weights", "verify")
    assert (done.code, done.out) == (0, "No weights are kept here.\n")


# -- prune ----------------------------------------------------------------------------------


@pytest.fixture
def three(cli: Cli, tmp_path: Path) -> list[dict[str, Any]]:
    """Used an hour apart, the first the longest ago."""
    sources = [folder(tmp_path, name, {"a": os.urandom(1 << 20)}) for name in ("p", "q", "r")]
    rows = [mirrored(cli, source)[0] for source in sources]
    for hours, row in zip((72, 48, 1), rows, strict=True):
        at = time.time() - hours * 3600
        os.utime(Path(row["folder"]).parent / "used", (at, at))
    return rows


def left(cli: Cli) -> list[str]:
    return [tree.summary.source.rpartition("/")[2] for tree in cache_of(cli).trees()]


def test_until_so_much_is_left(cli: Cli, three: list[dict[str, Any]]) -> None:
    dry = cli("weights", "prune", "--keep-bytes", "2.5MB", "--dry-run")
    assert dry.code == 0
    assert "Would free 1.0 MB. Nothing was removed." in dry.out
    assert "stays: there is room for it" in dry.out
    assert left(cli) == ["p", "q", "r"]
    done = cli("weights", "prune", "--keep-bytes", "2.5MB", "-o", "json")
    assert [row["name"] for row in done.json["removed"]] == [three[0]["name"]]
    assert done.json["freed_bytes"] == 1 << 20
    assert left(cli) == ["q", "r"]
    assert "Nothing is to be removed." in cli("weights", "prune", "--keep-bytes", "1GB").out


def test_what_was_not_used_for_long(cli: Cli, three: list[dict[str, Any]]) -> None:
    done = cli("weights", "prune", "--older-than", "2d", "--yes")
    assert done.code == 0
    assert "Freed 2.1 MB." in done.out
    assert left(cli) == ["r"]
    assert not Path(three[0]["folder"]).exists()


def test_by_name_and_never_what_a_job_uses(cli: Cli, three: list[dict[str, Any]]) -> None:
    claim = Claim(Path(cli.env["PREFECT_BT_STATE_DIR"]))
    claim.take("abc1234")
    try:
        cache_of(cli).use(three[1]["name"], holder="abc1234")
        done = cli("weights", "prune", three[0]["source"], three[1]["name"])
        assert done.code == 0
        assert "stays: job abc1234 uses it" in done.out
        assert left(cli) == ["r", "q"]
        kept = cli("weights", "prune", "--all", "-o", "json").json["kept"]
        assert [row["why"] for row in kept] == ["job abc1234 uses it"]
        assert left(cli) == ["q"]
    finally:
        claim.release()
    assert cli("weights", "prune", "--all", PREFECT_BT_STORE="ftp://nowhere").code == 0
    assert (left(cli), cache_of(cli).usage()) == ([], 0)


def test_what_was_begun_and_left(cli: Cli, three: list[dict[str, Any]]) -> None:
    part = cache_of(cli).part("0" * 32)
    part.mkdir(parents=True)
    (part / "data").write_bytes(bytes(100_000))
    done = cli("weights", "prune", "--older-than", "1000d", "-o", "json")
    assert (done.json["leftover_bytes"], part.exists()) == (0, True)
    old = time.time() - 8 * 86400
    for path in (part / "data", part):
        os.utime(path, (old, old))
    listed = cli("weights", "list")
    assert "Unfinished: " in listed.out
    done = cli("weights", "prune", "--older-than", "1000d")
    assert "of what was begun and left" in done.out
    assert not part.exists()
    assert left(cli) == ["p", "q", "r"]


def test_the_stores_copies(cli: Cli, three: list[dict[str, Any]]) -> None:
    done = cli("weights", "prune", "--store", three[0]["source"], "-o", "json")
    assert [row["name"] for row in done.json["removed"]] == [three[0]["name"]]
    where = {
        row["name"]: row["where"] for row in cli("weights", "list", "-o", "json").json["trees"]
    }
    assert [where[row["name"]] for row in three] == ["here", "both", "both"]
    assert left(cli) == ["p", "q", "r"]
    mirrored(cli, three[0]["source"])
    cli("weights", "prune", "--store", "--keep-bytes", "1.1MB")
    where = [row["where"] for row in cli("weights", "list", "-o", "json").json["trees"]]
    assert sorted(where) == ["both", "here", "here"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give names, --keep-bytes, --older-than or --all"),
        (["--all", "--older-than", "1d"], "Only one choice is possible"),
        (["--keep-bytes", "lots"], "'lots' is no size"),
        (["--older-than", "soon"], "'soon' is no age"),
    ],
)
def test_pruned_in_a_wrong_way(cli: Cli, arguments: list[str], words: str) -> None:
    done = cli("weights", "prune", *arguments)
    assert done.code == 1
    assert words in done.err


def test_a_person_is_asked(cli: Cli, model: str) -> None:
    plan = plan_sources([model])[0]
    mirror_here(plan, cache=cache_of(cli))
    command = [*COMMAND, "weights", "prune", "--all"]
    for answer, kept in (("n", 1), ("y", 0)):
        screen = Screen(command, env=cli.env, folder=cli.folder)
        try:
            screen.wait_for_line("Remove 1 tree from this machine? [y/N]")
            screen.press(answer, "enter")
            assert screen.end() == kept
        finally:
            screen.close()
        assert len(cache_of(cli).trees()) == kept


def test_json_is_all_there_is(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    for verb in (["list"], ["verify"], ["prune", "--all", "--dry-run"], ["why", "--source", model]):
        done = cli("weights", *verb, "-o", "json")
        assert done.err == ""
        assert isinstance(json.loads(done.out), dict)
