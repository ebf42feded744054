from pathlib import Path

from docs._generate.fields import table
from prefect_bt.checkpoints.formats.table import FORMATS

PAGE = Path(__file__).parents[2] / "docs/checkpoints.md"


def test_the_page_has_the_table_of_the_formats():
    head = ("written by", "name of the checkpoint", "what shows the end of a save")
    rows = [(each.title, each.folders, each.end) for each in FORMATS]
    expected = table(head, rows)
    text = PAGE.read_text()
    begin = text.index(f"| {head[0]} |")
    assert text[begin : text.index("\n\n", begin)] == expected, f"put into {PAGE}:\n{expected}"
