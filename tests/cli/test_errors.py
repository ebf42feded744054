"""How commands end badly: one message, the right exit code, never a traceback unasked."""

import re

import pytest

from prefect_bt.cli.app import make_app
from prefect_bt.cli.command_table import COMMANDS, color_overview, find_overview

from .conftest import Cli, Shop, Within
from .terminals import run_on_terminal

pytestmark = [pytest.mark.slow]

WITH_JOB = ["view", "logs", "stop", "recreate", "download", "checkpoints list"]
WITH_JOB += ["get_checkpoint_urls", "logs --tail"]


@pytest.mark.parametrize(
    ("verb", "job_id"),
    [
        *((verb, "nope123") for verb in WITH_JOB),
        *zip(WITH_JOB, ["../../etc", "Ä", "a b"], strict=False),
    ],
)
def test_a_job_that_does_not_exist(cli: Cli, shop: Shop, ended, verb: str, job_id: str):
    shop.job("tiny", *ended)
    error = cli(*verb.split(), "--job-id", job_id).refusal()
    assert error.startswith(f"error: No job {job_id!r} in this store.")
    assert error.count("\n") == 1


@pytest.mark.parametrize("verb", ["logs", "recreate", "checkpoints list", "get_checkpoint_urls"])
def test_no_store_yet(cli: Cli, verb: str):
    error = cli(*verb.split()).refusal()
    assert error.startswith(f"error: There is no training job in file://{cli.folder}/store yet.")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["push"], "CONFIG"),
        (["pusch", "c.py"], 'Did you mean "push"?'),
        (["push", "c.py", "--nope"], "--nope"),
        (["push", "c.py", "extra"], "extra"),
        (["push", "c.py", "--node-count", "two"], "two"),
        (["checkpoints", "serve", "--port", "99999"], "65535"),
        (["checkpoints", "prune", "--keep-last", "0"], "--keep-last"),
        (["push", "c.py", "--interactive", "sometimes"], "sometimes"),
        (["push", "c.py", "--entrypoint"], "--entrypoint"),
        (["view", "-o", "yaml"], "yaml"),
        (["logs", "--rank", "a"], "--rank"),
        (["logs", "--since", "yesterday"], "for example 30m"),
        (["logs", "--grep", "["], "not a regular expression"),
        (["checkpoints", "list", "--sort", "colour"], "colour"),
        (["download"], "--job-id"),
        (["--log", "loud", "view"], "loud"),
    ],
)
def test_wrong_usage(cli: Cli, arguments: list[str], told: str):
    error = cli(*arguments).refusal(2)
    assert error.startswith("error: ")
    assert told in error
    assert "--help" in error.splitlines()[-1]


def job_with(fields: str, names: str = "a") -> str:
    job = f"d.TrainingJob(image=d.Image(base_image='x'), {fields})"
    head = "from truss_train import definitions as d\n"
    return f"{head}{names} = d.TrainingProject(name='n', job={job})\n"


RUNTIME = "runtime=d.Runtime(start_commands=['true'])"
CONFIGS = {
    "pass": ["No `TrainingProject` was found"],
    "raise RuntimeError('boom')": ["boom", "config.py:1"],
    "import nothing_like_it": ["nothing_like_it"],
    "x = (": ["config.py:1"],
    "raise SystemExit(0)": [],
    job_with("nope=1"): ["nope"],
    job_with("", "a = b"): ["Multiple `TrainingProject`"],
    job_with("runtime=d.Runtime(start_command=['true'])"): ["start_command", "config.py:2"],
    job_with("compute=d.Compute(node_count='2')"): ["node_count", "'2'"],
    job_with(f"compute=d.Compute(node_count=0), {RUNTIME}"): ["node_count is 0"],
    job_with(f"compute=d.Compute(memory='lots'), {RUNTIME}"): ["memory", "lots"],
    job_with("runtime=d.Runtime()"): ["start_commands is empty"],
}


@pytest.mark.parametrize("body", CONFIGS)
def test_a_bad_config(cli: Cli, config, body: str):
    error = cli("push", str(config(body=body))).refusal()
    assert error.startswith("error: ")
    assert not [words for words in CONFIGS[body] if words not in error], error
    assert "Traceback" not in error
    assert not (cli.folder / "store" / "index" / "jobs").exists()


def test_folders_that_cannot_be_packed(cli: Cli, config):
    path = config()
    with path.with_name("big.bin").open("wb") as big:
        big.truncate(6 * 1024**3)
    error = cli("push", str(path)).refusal()
    assert "big.bin" in error and "5" in error
    path.with_name("big.bin").unlink()
    path.with_name(".truss_ignore").write_text("*\n")
    error = cli("push", str(path)).refusal()
    assert "nothing to pack" in error and "correct .truss_ignore" in error
    assert not (cli.folder / "store" / "index" / "jobs").exists()


@pytest.mark.parametrize("name", ["missing.py", ".", "notes.txt"])
def test_not_a_config(cli: Cli, name: str):
    (cli.folder / "notes.txt").write_text("hello")
    assert cli("push", name).refusal().startswith("error: ")


@pytest.mark.parametrize(
    ("verb", "variable", "value", "told"),
    [
        ("view", "PREFECT_BT_STORE", "gopher://x", "No store has the scheme gopher://"),
        ("push", "PREFECT_BT_STORE", "gopher://x", "No store has the scheme gopher://"),
        ("push", "PREFECT_BT_STORE", "/dev/null", "/dev/null"),
        ("view", "PREFECT_BT_GRACE", "soon", "PREFECT_BT_GRACE is 'soon': "),
        ("push", "PREFECT_BT_SERVER_PORT", "x", "PREFECT_BT_SERVER_PORT is 'x': "),
    ],
)
def test_bad_settings(cli: Cli, config, verb: str, variable: str, value: str, told: str):
    path = [str(config())] if verb == "push" else []
    error = cli(verb, *path, **{variable: value}).refusal()
    assert error.splitlines()[-1].startswith("error: ")
    assert told in error
    assert "Traceback" not in error


def test_debug_shows_where(cli: Cli):
    for arguments in (["--log", "debug", "push", "x.py"], ["push", "x.py", "--log=D"]):
        error = cli(*arguments).refusal()
        assert "Traceback" in error
        assert error.splitlines()[-1].startswith("error: `x.py` is not a file.")


def test_a_reader_that_leaves(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["x" * 100] * 20_000)
    for verb in (["logs"], ["logs", "-o", "json"], ["logs", "--tail"]):
        process = cli.start(*verb)
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=200) == 1
        assert err == ("" if "json" in verb else "Times are in UTC.\n")


def test_colour_on_a_terminal_only(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    assert "\x1b[1;31merror:\x1b[0m" in run_on_terminal(cli, "view", "--job-id", "nope").out
    assert "\x1b[" not in cli("view", "--job-id", "nope").err
    table = run_on_terminal(cli, "view", "--job-id", job.id).out
    assert "\x1b[32mTRAINING_JOB_COMPLETED" in table
    assert "╭" in table
    assert "╭" not in cli("view", "--job-id", job.id).out


def test_no_color(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    for arguments in (["view", "--job-id", "nope"], ["view", "--job-id", job.id]):
        told = run_on_terminal(cli, *arguments, NO_COLOR="1").out
        assert "\x1b[3" not in told
        assert ";3" not in told


def test_documents_alone_on_standard_output(cli: Cli, shop: Shop, ended):
    shop.job("tiny", *ended)
    shop.job("tiny", *ended)
    done = cli("checkpoints", "list", "-o", "json")
    assert done.json["total_checkpoints"] == 0
    assert "using the newest" in done.err


# -- what truss train accepts, we accept ----------------------------------------------------

TRUSS = [
    "push config.py --tail --job-name n --team t --interactive on_failure"
    " --interactive-timeout-minutes 5 --accelerator H100:2 --node-count 2 --entrypoint run"
    " --priority 1 --spot --remote baseten --log INFO --non-interactive",
    "recreate --job-id x --tail --remote baseten",
    "logs --project-id p --project q --job-id x --tail --remote baseten",
    "stop --project-id p --project q --job-id x --all --remote baseten",
    "view --project-id p --project q --job-id x --remote baseten --log humanfriendly",
    "download --job-id x --target-directory d --no-unzip --remote baseten",
    "get_checkpoint_urls --job-id x --remote baseten",
    "init --list-examples --target-directory d --examples a,b",
    "checkpoints list --project-id p --project q --job-id x --checkpoint-name c --sort size"
    " --order desc -o csv --remote baseten",
    "checkpoints list --output-format json",
    "--non-interactive view",
    "--log W view",
]


@pytest.mark.parametrize("line", TRUSS)
def test_spellings_of_truss(line: str):
    app = make_app()
    words = [word for word in line.split() if word != "--non-interactive"]
    if "--log" in words:
        at = words.index("--log")
        del words[at : at + 2]
    command, bound, ignored = app.parse_args(words, exit_on_error=False, print_error=False)
    assert callable(command)
    assert "terminal" in ignored
    # The global options are the launcher's.
    _, bound, _ = app.meta.parse_args(line.split(), exit_on_error=False, print_error=False)
    assert list(bound.args) == words


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(within: Within, monkeypatch, command: str):
    monkeypatch.setenv("COLUMNS", "200")
    shown = within(*command.split(), "--help").out
    options = re.findall(
        r"^\S (?:\*  )?(--?[a-z].*?|[A-Z_]+(?: --.*?)?)  +(\S.*?)? *\S$", shown, re.MULTILINE
    )
    named = {name.split()[0] for name, _ in options}
    assert {"--non-interactive", "--log"} <= named
    for name, explanation in options:
        assert explanation[:1].isupper(), (name, explanation)


@pytest.mark.parametrize("verb", [[], ["push"], ["logs"], ["checkpoints"], ["checkpoints", "list"]])
def test_help(cli: Cli, verb: list[str]):
    done = cli(*verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(" ".join(["Usage: prefect-bt", *verb]))
    assert cli("--version").out.strip()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_overview_lists_every_command_below_its_heading(cli: Cli, arguments: list[str]):
    shown = cli.process(*arguments).out
    for name in COMMANDS:
        assert re.search(rf"^  {name}  +[A-Z].*[.]$", shown, re.MULTILINE), name
    jobs = shown.split("\nJobs\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in jobs.splitlines()][:3] == ["init", "push", "view"]
    for heading in ("Checkpoints", "Weights and caches", "Serving", "Machine", "Global options"):
        assert f"\n{heading}\n" in shown
    assert "Exit codes: 0 success" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_group_lists_its_commands_only(cli: Cli):
    shown = cli.process("checkpoints").out
    assert shown == cli.process("checkpoints", "--help").out
    assert "Usage: prefect-bt checkpoints COMMAND" in shown
    assert "checkpoints list " in shown
    assert "--log LEVEL " in shown
    assert "\n  push" not in shown


@pytest.mark.parametrize(
    "words", [["view"], ["view", "-h"], ["checkpoints", "list"], ["--version"]]
)
def test_commands_and_options_have_no_overview(words: list[str]):
    assert find_overview(words) is None


def test_an_overview_on_a_terminal_has_colors_and_the_same_text():
    plain = find_overview([])
    assert plain
    colored = color_overview(plain)
    assert "\033[1mJobs\033[0m\n  \033[36minit " in colored
    assert re.sub(r"\033\[\d+m", "", colored) == plain


def test_help_of_a_command_has_details(cli: Cli):
    listed, own = cli("checkpoints", "--help").out, cli("checkpoints", "verify", "--help").out
    summary = "Hash every committed file again and report damage."
    assert summary in listed
    assert summary in own
    assert "exit with 1" in own
    assert "prefect-bt checkpoints verify --job-id abc1234" in own
