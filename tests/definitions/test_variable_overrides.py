"""Check variables of --env and --env-file: what they replace, and what is refused."""

from pathlib import Path

import pytest

from prefect_bt.cli.jobs.variable_options import VariableOptions
from prefect_bt.definitions import (
    Image,
    Overrides,
    Runtime,
    SecretReference,
    TrainingJob,
    TrainingProject,
    apply_overrides,
)
from prefect_bt.errors import DefinitionError

FILE = """\
# comment
LR=3e-4
export NAME = two words  # comment
LITERAL='a # b $X'
ESCAPED="x\\ny \\"q\\""
\tURL=http://a/b?c=d#e
EMPTY=
LONG="two
lines" # comment
PASSED
"""


def test_a_file_is_read_as_a_dotenv_file(tmp_path: Path) -> None:
    file = tmp_path / "job.env"
    file.write_text(f"\ufeff{FILE}".replace("\n", "\r\n"), newline="")
    variables = VariableOptions(("LR=1e-3", "EXTRA=a=b"), (file,)).read({"PASSED": "mine"})
    assert variables == {
        "LR": "1e-3",  # --env wins
        "NAME": "two words",
        "LITERAL": "a # b $X",
        "ESCAPED": 'x\ny "q"',
        "URL": "http://a/b?c=d#e",
        "EMPTY": "",
        "LONG": "two\nlines",
        "PASSED": "mine",
        "EXTRA": "a=b",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("=S3CRET", "without a valid name"),
        ("BT_NODE_RANK=S3CRET", "sets BT_NODE_RANK; names that begin with BT_"),
        ("PORT=S3CRET", "sets PORT"),
        ("UNSET", "UNSET, which is not set in your environment"),
        ("BIG=S3CRET" + "x" * 200_000, "more than Linux takes in a variable"),
        ("BYTES=S3CRET\udcff", "not UTF-8"),
    ],
)
def test_an_error_names_the_option_and_no_value(entry: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        VariableOptions((entry,)).read({})
    assert str(caught.value).startswith("--env ")
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    ["TWO WORDS=S3CRET", 'OPEN="S3CRET', "AFTER='S3CRET' more", "BT_X=S3CRET", "UNSET"],
)
def test_an_error_in_a_file_names_its_line_and_no_value(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "job.env"
    file.write_text(f"GOOD=1\n\n{entry}\n")
    with pytest.raises(DefinitionError, match=f"--env-file {file}, line 3,") as caught:
        VariableOptions((), (file,)).read({})
    assert "S3CRET" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DefinitionError, match="--env-file nowhere cannot be read: No such file"):
        VariableOptions((), (Path("nowhere"),)).read({})


def test_a_text_replaces_a_text_and_a_secret_with_a_warning_without_values() -> None:
    runtime = Runtime(environment_variables={"A": "old", "T": SecretReference(name="s"), "K": "k"})
    job = TrainingJob(image=Image(base_image="x"), runtime=runtime)
    given = {"A": "new", "T": "S3CRET", "K": "k", "N": "1"}
    changed, warnings = apply_overrides(TrainingProject(name="p", job=job), Overrides(env=given))
    assert changed.job.runtime.environment_variables == given
    assert job.runtime.environment_variables["A"] == "old"
    assert warnings == [
        "The config file's value of A is ignored: --env A was given.",
        "The config file's secret of T is ignored: --env T was given.",
    ]
