"""Dependencies: one consistent set of versions, none of which has a known vulnerability."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
OLDEST = CONSTRAINTS.with_name("constraints-prefect-3.8.txt")


def test_both_constraints_files_differ_only_in_prefect() -> None:
    newest, oldest = (
        {line for line in file.read_text().splitlines() if "==" in line}
        for file in (CONSTRAINTS, OLDEST)
    )
    assert {line.partition("==")[0] for line in newest ^ oldest} == {"prefect"}


@pytest.mark.slow
def test_the_installed_versions_agree() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.integration
def test_no_pinned_version_has_a_known_fault(tmp_path: Path) -> None:
    """Ask a database of advisories, of a registry or of OSV; skip if neither answers."""
    asked = [audit(service, tmp_path) for service in ("pypi", "osv")]
    answered = [found for found in asked if any("vulns" in one for one in found)]
    if not answered:
        pytest.skip("no database of advisories can be reached from here")
    faults = {
        f"{one['name']} {one['version']}: {fault['id']}, mended in {fault['fix_versions']}"
        for found in answered
        for one in found
        for fault in one.get("vulns", [])
    }
    assert not faults, "\n".join(sorted(faults))


def audit(service: str, folder: Path) -> list[dict[str, Any]]:
    """Return what pip-audit reports for each pinned version; nothing if the service is away."""
    report = folder / f"{service}.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--requirement", str(CONSTRAINTS)),
            *("--no-deps", "--disable-pip", "--progress-spinner", "off"),
            *("--vulnerability-service", service, "--format", "json", "--output", str(report)),
        ],
        capture_output=True,
        timeout=600,
        check=False,
    )
    return json.loads(report.read_text())["dependencies"] if report.exists() else []
