"""The page of the hostile job lists its attacks."""

from __future__ import annotations

import re
from pathlib import Path

from .hostile.table import ATTACKS, SUBJECTS
from .test_hostile_job import SEVERE

PAGE = Path(__file__).parents[2] / "docs/hostile-job.md"


def test_the_page_has_every_attack() -> None:
    """Each has a row with what it tries and the result, in the table of its subject."""
    for title, attacks in SUBJECTS.items():
        table = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `(\S+)` \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE)
        assert rows == [attack.name for attack in attacks]


def test_every_attack_is_one() -> None:
    for attack in ATTACKS.values():
        assert bool(attack.script) != bool(attack.python), attack.name
        assert not (attack.again and attack.endless), attack.name
        if attack.endless:
            assert "up" in attack.script + attack.python, attack.name
    assert set(SEVERE) <= set(ATTACKS)
