"""The page of the hostile job lists its attacks."""

from __future__ import annotations

from pathlib import Path

from .hostile.table import ATTACKS, document
from .test_hostile_job import SEVERE

PAGE = Path(__file__).parents[2] / "docs/hostile-job.md"


def test_the_page_has_every_attack() -> None:
    """Paste what `document()` returns below the first table of the page."""
    assert PAGE.read_text().endswith(document())


def test_every_attack_is_one() -> None:
    for attack in ATTACKS.values():
        assert bool(attack.script) != bool(attack.python), attack.name
        assert not (attack.again and attack.endless), attack.name
        assert "|" not in attack.tries + attack.instead, attack.name
        if attack.endless:
            assert "up" in attack.script + attack.python, attack.name
    assert set(SEVERE) <= set(ATTACKS)
