"""The sources that `weights mirror` and its dry run are given."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Within
from tests.cli.sources import CONFIG, cache_of, folder
from tests.weights.hub_server import Hub


def test_sources_of_a_config_file(cli: Cli, config: Callable[..., Path], tmp_path: Path) -> None:
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
    planned = cli("weights", "mirror", str(path), "--dry-run", "-o", "json")
    assert planned.code == 1
    assert [row.get("here") for row in planned.json["weights"]] == [
        {"files": 1, "bytes": 1},
        {"files": 1, "bytes": 1},
        None,
    ]
    assert "is not a folder" in planned.json["weights"][2]["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give either a config file or --source"),
        (["CONFIG", "--source", "file:///x"], "Give either a config file or --source"),
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
        (["--source", "hf://a/b/../c"], "'hf://a/b/../c' is not a repository"),
    ],
)
def test_asked_in_a_wrong_way(
    within: Within, config: Callable[..., Path], arguments: list[str], words: str
) -> None:
    path = str(config())
    done = within("weights", "mirror", *(path if word == "CONFIG" else word for word in arguments))
    code = 2 if words.startswith(("Give either", "belong to")) else 1
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert "TrainingProject" not in done.err
    assert "s3cr3t" not in done.err


def test_invalid_sources_are_refused(cli: Cli, config: Callable[..., Path], model: str) -> None:
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
    assert not [word for word in words if word not in cli("weights", "mirror", path).refusal()]
    assert not cache_of(cli).root.exists()


@pytest.mark.slow
def test_a_secret_comes_from_the_environment(cli: Cli, hub: Hub) -> None:
    hub.repos["o/base"].token = "hf_planted"
    given = ("--source", "hf://o/base", "--auth-secret-name", "my_token", "--allow", "*.json")
    error = cli("weights", "mirror", *given, PREFECT_BT_SECRET_MY_TOKEN="wrong").refusal()
    assert "does not exist" in error
    env = {"PREFECT_BT_SECRET_MY_TOKEN": "hf_planted"}
    done = cli("weights", "mirror", *given, **env)
    assert (done.code, "1 file" in done.out) == (0, True)
    planned = cli("weights", "mirror", *given, "--dry-run", **env)
    assert (planned.code, "here already: 1 file" in planned.out) == (0, True)
    assert "hf_planted" not in done.out + done.err + planned.out


def test_a_secret_that_is_nowhere_is_an_answer(cli: Cli, model: str) -> None:
    env = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_HOME": str(cli.folder / "p")}
    given = ("--source", "hf://o/r", "--auth-secret-name", "nowhere")
    done = cli("weights", "mirror", *given, "--dry-run", "-o", "json", **env)
    assert done.code == 1
    [answer] = done.json["weights"]
    assert answer["error"]
    assert answer["next_step"]
