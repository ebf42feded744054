"""Record of the code and the client that made a job."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GitState:
    """Git state of the job's folder. The remote is omitted: its URL may contain a password."""

    commit: str
    branch: str = ""
    """"" for a detached HEAD."""
    dirty: bool | None = None
    """Whether a tracked file differs from the commit; None: unknown."""
    tag: str = ""
    """The newest tag that the commit contains."""
    commits_since_tag: int | None = None


@dataclass(frozen=True)
class Provenance:
    """Code and client that made a job. The version of a package that is not installed is ""."""

    git: GitState | None = None
    """None: no repository, no `git`, or one that `git` refuses to read."""
    client_version: str = ""
    """Version of prefect_bt."""
    python_version: str = ""
    prefect_version: str = ""
    pydantic_version: str = ""
    truss_version: str = ""
    frameworks: dict[str, str] = field(default_factory=dict[str, str])
    """Versions of frameworks on the pushing machine, such as {"torch": "2.9.0"}."""
    user: str = ""
    host: str = ""
