"""`prefect-bt --remote`: the commands print through a server what they print from its store."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from prefect_bt.cli import command_table
from prefect_bt.cli.jobs.submission_result import print_and_follow
from prefect_bt.cli.logs.follow import detach_on_interrupt
from prefect_bt.cli.ui.terminal import open_terminal
from prefect_bt.job_metrics.node_metrics import MetricsWriter, NodeFacts, TrainingPoint
from prefect_bt.job_service import server_connection
from prefect_bt.job_service.http_service import HttpJobs
from prefect_bt.job_service.remotes import Server
from prefect_bt.ledger.records import FailureClass, JobRecord, Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from tests.cli.conftest import ENDED, RUNNING, Shop
from tests.http_api.served import Api
from tests.in_process import Ended, command
from tests.job_metrics.node_files import archive, write_node_file

Run = Callable[..., Ended]


@pytest.fixture
def environment(api_environment: Path) -> dict[str, str]:
    folder = api_environment
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TZ": "UTC",
        "PREFECT_HOME": str(folder.parent / "prefect"),
        "PREFECT_BT_STATE_DIR": str(folder / "state"),
    }


@pytest.fixture
def local(api_environment: Path, environment: dict[str, str]) -> Run:
    store = {"PREFECT_BT_STORE": str(api_environment / "store")}

    def run(*words: str) -> Ended:
        return command(*words, environment=environment | store, folder=api_environment)

    return run


@pytest.fixture
def remote(api: Api, api_environment: Path, environment: dict[str, str]) -> Run:
    """The command of a laptop: its store is a folder that nothing must use."""
    laptop = {
        "PREFECT_BT_API_URL": api.url,
        "PREFECT_BT_API_KEY": api.key,
        "PREFECT_BT_STORE": str(api_environment / "unused"),
    }

    def run(*words: str, key: str = "", **others: str) -> Ended:
        chosen = environment | laptop | ({"PREFECT_BT_API_KEY": key} if key else {}) | others
        done = command(*words, environment=chosen, folder=api_environment)
        assert not (api_environment / "unused").exists()
        assert api.key not in done.out + done.err
        return done

    return run


@pytest.fixture
def jobs(shop: Shop, api_environment: Path) -> dict[str, JobRecord]:
    """A job that completed with a log and checkpoints, one that failed, and one that runs."""
    done, failed = shop.job("tiny", *ENDED[:2]), shop.job("other", *ENDED[:2])
    for record in (done, failed):
        shop.ledger.begin_attempt(record.id)
        shop.log(record, ["loading", "ERROR: loss \x1b[31mnan", "WARNING: slow", "é\x85 end"])
    write_node_file(api_environment / "node", start=shop.at, samples=20)
    archive(shop.ledger, done, api_environment / "node", attempt=0)
    shop.commit(done, "checkpoint-10", {"model.bin": b"weights" * 1000, "a/b.json": b"{}"})
    shop.commit(done, "checkpoint-20", {"model.bin": b"heavier" * 1000})
    shop.ledger.end_attempt(done.id, Outcome(0, JobState.COMPLETED))
    shop.ledger.append_event(done.id, JobState.COMPLETED)
    outcome = Outcome(
        0,
        JobState.FAILED,
        failure=FailureClass.USER,
        failed_rank=0,
        exit_code=3,
        message="Exited.",
    )
    shop.ledger.end_attempt(failed.id, outcome)
    shop.ledger.append_event(failed.id, JobState.FAILED, message="Exited.")
    shop.ledger.projects.ensure("bare")
    return {"done": done, "failed": failed}


SAME = [
    "view",
    "view -o json",
    "view --project tiny",
    "view --project tiny -o json",
    "view --all",
    "view --job-id {done}",
    "view --job-id {done} -o json",
    "view --job-id {failed}",
    "view --job-id {done} --project other",
    "logs",
    "logs --job-id {done}",
    "logs --job-id {done} -o json",
    "logs --job-id {done} --raw --limit 2",
    "logs --job-id {done} --min-level warning",
    "logs --job-id {done} --grep loss|end --limit 1",
    "logs --job-id {done} --rank 1",
    "logs --job-id {done} --no-platform --attempt -1",
    "logs --job-id {done} --tail",
    "logs --job-id {failed} --tail -o json",
    "logs --job-id {failed} --first-failure",
    "logs --job-id {failed} --first-failure -o json",
    "logs --job-id {done} --first-failure",
    "queue",
    "queue -o json",
    "metrics --job-id {done}",
    "metrics --job-id {done} -o json",
    "metrics --job-id {done} -o csv",
    "metrics --job-id {done} --watch",
    "checkpoints list --job-id {done}",
    "checkpoints list --job-id {done} -o json",
    "checkpoints list --job-id {done} --sort size --order desc -o csv",
    "checkpoints list --job-id {done} --checkpoint-name checkpoint-10",
    "checkpoints list --job-id {done} --checkpoint-name missing",
    "stop --job-id {done}",
    "stop --all --yes",
    "retry --job-id {done}",
]


@pytest.mark.parametrize("line", SAME)
def test_a_command_prints_the_same_through_a_server(
    line: str, jobs: dict[str, JobRecord], local: Run, remote: Run
) -> None:
    words = line.format(**{name: record.id for name, record in jobs.items()}).split()
    assert remote(*words) == local(*words)


UNKNOWN = [
    *(f"{verb} --job-id {name}" for verb in ("view", "retry") for name in ("a/b", "../x", "..")),
    *(f"{verb} --job-id nope" for verb in ("view", "logs", "metrics", "stop", "retry", "recreate")),
    "view --project nope",
    "view --project a/b",
    "stop --all --yes --project nope",
    "logs --job-id {done} --project nope",
    "view --project bare",
    "logs --project bare",
]


def test_what_is_unknown_is_named_as_at_the_store(
    jobs: dict[str, JobRecord], local: Run, remote: Run
) -> None:
    for line in UNKNOWN:
        words = line.format(done=jobs["done"].id).split()
        done = local(*words)
        assert (done.code, done.out) == (1, "")
        assert remote(*words) == done


@pytest.mark.parametrize("form", ["cli-table", "csv", "json"])
def test_metrics_that_are_no_numbers_are_not_in_the_answer(
    api: Api, shop: Shop, api_environment: Path, form: str
) -> None:
    record = shop.job("tiny", *RUNNING)
    shop.ledger.begin_attempt(record.id)
    writer = MetricsWriter(api_environment / "node", NodeFacts(8.0, 1 << 36, 5.0))
    writer.write_sample(shop.at, {"memory": 1.0})
    writer.write_point(TrainingPoint(shop.at, 1, {"loss": math.nan, "norm": math.inf, "lr": 1.0}))
    writer.close()
    archive(shop.ledger, record, api_environment / "node")
    text = api("GET", f"/prefect-bt/v1/jobs/{record.id}/metrics", params={"form": form}).text
    assert '"lr"' in text and "NaN" not in text and "Infinity" not in text


@pytest.fixture
def named(api: Api, environment: dict[str, str], local: Run) -> Run:
    """A command with `--remote`, whose name the shell would split."""
    path = Path(environment["HOME"], ".trussrc")

    def run(*words: str, key: str = "") -> Ended:
        path.write_text(f"[our s]\nprefect_bt_url = {api.url}\napi_key = {key or api.key}\n")
        return local(*words, "--remote", "our s")

    return run


HINTS = [
    "checkpoints list --job-id {done}",
    "logs --job-id {failed} --tail",
    "logs --job-id {done} --first-failure",
    "view --job-id nope",
    "view --project bare",
    "logs --project bare",
    "stop --job-id {done}",
    "retry --job-id {done}",
]


def list_hints(text: str) -> list[str]:
    return re.findall("prefect-bt .*", text)


def test_commands_in_messages_have_the_remote(
    jobs: dict[str, JobRecord], api: Api, named: Run
) -> None:
    ids = {name: record.id for name, record in jobs.items()}
    shown = [named(*line.format(**ids).split()) for line in HINTS]
    shown.append(named("view", key=api.team_key("research")))
    for done in shown:
        [hint] = list_hints(done.out + done.err)
        assert " --remote 'our s'" in hint


def test_every_command_of_a_server_is_known_in_its_messages() -> None:
    server = Server("remote 'ours'", "http://box", "", "ours")
    for name, path, _ in chain.from_iterable(command_table.REGISTRY.values()):
        option = " --remote ours" if path.partition(":")[2] in command_table.REMOTE else ""
        assert server.add_option(f"`prefect-bt {name}`") == f"`prefect-bt {name}{option}`"


@pytest.mark.parametrize("name", ["ours", ""])
def test_a_followed_job_is_named_with_its_remote(
    jobs: dict[str, JobRecord], api: Api, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service = HttpJobs(Server("remote 'ours'", api.url, api.key, name))
    terminal = open_terminal(interactive=False, debug=False)
    document = service.describe_job(jobs["failed"].id)
    document |= {"current_status": JobState.PENDING.value, "place": 1}
    document |= {"machine": "", "waiting_for": "room"}
    assert print_and_follow(terminal, service, document, tail=False, wait=True) == 1
    with pytest.raises(KeyboardInterrupt), detach_on_interrupt(terminal, service, "a"):
        raise KeyboardInterrupt
    shown = capsys.readouterr()
    hints = list_hints(shown.out + shown.err)
    assert len(hints) == 6
    assert all(one.endswith(" --remote ours") == bool(name) for one in hints)


def test_checkpoints_are_downloaded_and_verified(
    jobs: dict[str, JobRecord], remote: Run, api_environment: Path, shop: Shop
) -> None:
    target = api_environment / "target"
    words = ["checkpoints", "download", "--job-id", jobs["done"].id]
    done = remote(*words, "--target-directory", str(target))
    assert done.code == 0, done.err
    assert (target / "checkpoint-10/model.bin").read_bytes() == b"weights" * 1000
    assert (target / "checkpoint-10/a/b.json").read_bytes() == b"{}"
    (target / "checkpoint-20/model.bin").write_bytes(b"damaged")
    again = remote(*words, "--target-directory", str(target))
    assert "(2 were there already)" in again.out
    assert (target / "checkpoint-20/model.bin").read_bytes() == b"heavier" * 1000


def test_a_damaged_object_is_not_kept(
    jobs: dict[str, JobRecord], remote: Run, api_environment: Path, shop: Shop
) -> None:
    record = jobs["done"]
    store = shop.ledger.store
    key = next(one.key for one in store.list(f"{job_prefix(record.project_id, record.id)}/objects"))
    store.put(key, b"x" * len(store.get(key)))
    target = api_environment / "target"
    done = remote(
        "checkpoints", "download", "--job-id", record.id, "--target-directory", str(target)
    )
    assert done.code == 1
    assert "does not hold the bytes that were committed" in done.err


OTHERS = [
    "view --job-id {id}",
    "view --project other",
    "logs --job-id {id}",
    "logs --job-id {id} --tail",
    "logs --job-id {id} --first-failure",
    "metrics --job-id {id}",
    "checkpoints list --job-id {id}",
    "checkpoints download --job-id {id}",
    "stop --job-id {id}",
    "retry --job-id {id}",
    "recreate --job-id {id}",
]


@pytest.mark.parametrize("line", OTHERS)
def test_a_job_of_another_team_is_unknown(
    line: str, jobs: dict[str, JobRecord], api: Api, remote: Run
) -> None:
    record, key = jobs["failed"], api.team_key("research")
    unknown = remote(*line.replace("other", "missing").format(id="zzzzzzz").split(), key=key)
    done = remote(*line.format(id=record.id).split(), key=key)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: No ")
    assert done.err.replace("other", "missing").replace(record.id, "zzzzzzz") == unknown.err
    assert "tiny" not in done.err


@pytest.mark.parametrize("line", ["view -o json", "view --all -o json", "queue -o json"])
def test_lists_have_no_jobs_of_another_team(
    line: str, jobs: dict[str, JobRecord], shop: Shop, api: Api, remote: Run
) -> None:
    shop.job("other", *RUNNING)
    done = remote(*line.split(), key=api.team_key("research"))
    assert done.code == 0, done.err
    assert not any(word in done.out for word in ("tiny", "other", *(r.id for r in jobs.values())))


@pytest.mark.parametrize(
    "line", ["gc", "shell", "up", "capacity view", "costs", "update --job-id a --priority 1"]
)
def test_a_command_that_needs_the_store_refuses_a_server(line: str, api: Api, remote: Run) -> None:
    done = remote(*line.split())
    assert (done.code, done.out) == (2, "")
    assert f"does not work through PREFECT_BT_API_URL ({api.url})" in done.err
    assert "unset PREFECT_BT_API_URL" in done.err


def test_a_server_that_is_away_is_named(remote: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "_REPEAT_DELAYS", (0.01, 0.01))
    done = remote("stop", "--all", "--yes", PREFECT_BT_API_URL="http://127.0.0.1:9")
    assert done.code == 1
    assert "The server http://127.0.0.1:9 of PREFECT_BT_API_URL does not answer" in done.err


def test_a_path_that_is_not_of_the_server_is_named(api: Api, remote: Run) -> None:
    done = remote("view", PREFECT_BT_API_URL=f"{api.url}/sub")
    assert (done.code, done.out) == (1, "")
    assert f"{api.url}/sub answers 404 and no message of prefect-bt" in done.err
    assert "Correct the URL of PREFECT_BT_API_URL." in done.err


def test_a_revoked_key_is_refused(api: Api, remote: Run) -> None:
    done = remote("view", key=f"prefect-bt-abcdefg-{'0' * 40}")
    assert done.code == 2
    assert "PREFECT_BT_API_URL refuses the key: The request has no valid API key." in done.err


TRUSSRC = "[ours]\nremote_provider = baseten\nremote_url = {url}\napi_key = {key}\n"
HOSTED = "https://app.baseten.co"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRUSSRC.format(url=HOSTED, key="prefect-bt-x"), f"no server of prefect-bt: {HOSTED}"),
        (TRUSSRC.format(url="http://localhost:8000", key="abc.def"), "no key of prefect-bt"),
        (TRUSSRC.format(url=HOSTED, key="k") + "prefect_bt_url = {url}\n", "no key of prefect-bt"),
        ("[ours\n", "cannot be read"),
    ],
    ids=["hosted", "foreign-key", "foreign-key-for-ours", "damaged"],
)
def test_a_remote_of_another_service_is_refused(
    text: str, said: str, api: Api, local: Run, environment: dict[str, str]
) -> None:
    Path(environment["HOME"], ".trussrc").write_text(text.replace("{url}", api.url))
    for line in ("view --remote ours", "download --job-id a --remote ours"):
        done = local(*line.split())
        assert (done.code, done.out) == (2, "")
        assert said.replace("no server", "not a server") in done.err
        assert "abc.def" not in done.err


def test_a_remote_with_our_url_is_used_and_an_unknown_one_is_named(
    api: Api, jobs: dict[str, JobRecord], local: Run, environment: dict[str, str]
) -> None:
    text = TRUSSRC.format(url=HOSTED, key=api.key)
    Path(environment["HOME"], ".trussrc").write_text(f"{text}prefect_bt_url = {api.url}/\n")
    assert local("view", "--remote", "ours") == local("view")
    unknown = local("view", "--remote", "baseten")
    assert unknown.out == local("view").out
    assert unknown.err.startswith("There is no remote 'baseten' in ")
    environment |= {"PREFECT_BT_API_URL": api.url, "PREFECT_BT_API_KEY": api.key}
    assert f"the server {api.url} is used" in local("view", "--remote", "baseten").err
