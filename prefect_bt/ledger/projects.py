"""Read and write the records of projects: by id, by name, and by name within a team.

A project belongs to one team permanently; the empty name is the default team. A name is unique
within a team, so two teams can each own a project of the same name. The first team that uses a name
has the plain key of the index; every further team has its own key. All keys are create-only, so two
concurrent pushes share one project.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from prefect_bt import codec
from prefect_bt.errors import AmbiguousError, NotFoundError
from prefect_bt.ledger.creation import create_object
from prefect_bt.ledger.job_objects import find_object
from prefect_bt.ledger.records import ProjectRecord
from prefect_bt.object_keys import (
    PROJECTS_INDEX,
    TEAM_PROJECTS_INDEX,
    make_id,
    project_index_key,
    project_record_key,
    team_project_index_key,
    team_projects_prefix,
)
from prefect_bt.object_store.protocols import Store

DEFAULT_TEAM: Final = "default"
"""Name of the default team in options; its records have the empty name."""


class Projects:
    """Reads and writes the project records of one store."""

    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._teams: dict[str, str] = {}

    def find(self, name: str, *, team: str | None) -> ProjectRecord | None:
        """Return the project that a push goes to; None if the push is to create it.

        Without a team, return the only project of that name. Raises AmbiguousError if several
        teams have one.
        """
        named = self._find_by_name(name)
        if team is not None:
            wanted = normalize_team(team)
            return next((one for one in named if one.team_name == wanted), None)
        if len(named) > 1:
            teams = [one.team_name for one in named]
            choices = [f"--team {shlex.quote(team or DEFAULT_TEAM)}" for team in teams]
            raise _ambiguous_error(name, named, f"Choose one: {' or '.join(choices)}.")
        return named[0] if named else None

    def ensure(self, name: str, *, team: str | None = None) -> ProjectRecord:
        """Return the project of that name and team, created if there is none.

        One of several concurrent callers creates it. A new project without a team belongs to the
        default team.
        """
        known = self.find(name, team=team)
        if known is not None:
            return known
        made = ProjectRecord(make_id(), name, self._clock(), normalize_team(team or ""))
        self._store.put(project_record_key(made.id), codec.dumps(made).encode())
        try:
            return self._add_to_index(made)
        except BaseException:
            self._store.delete(project_record_key(made.id))
            raise

    def exists(self, project_id: str) -> bool:
        """Return whether the project has a record, which is what its deletion removes last."""
        return self._read(project_id) is not None

    def get(self, name_or_id: str, *, prefer: str | None = None) -> ProjectRecord:
        """Return a project by id first, then by name; of several teams, that of team `prefer`.

        Raises NotFoundError, which lists all ids and names, or AmbiguousError, which lists the
        projects that match.
        """
        by_id = self._read(name_or_id) if name_or_id.isalnum() else None
        if by_id is not None:
            return by_id
        named = self._find_by_name(name_or_id)
        preferred = [one for one in named if one.team_name == prefer]
        if len(named) > 1 and not preferred:
            raise _ambiguous_error(name_or_id, named, "Give the id instead of the name.")
        if named:
            return (preferred or named)[0]
        raise self.unknown_error(name_or_id)

    def unknown_error(
        self, name_or_id: str, *, sees: Callable[[str], bool] = lambda _: True
    ) -> NotFoundError:
        """Return the error of an unknown project. `sees`: whether it lists those of a team."""
        known = ", ".join(f"{p.id} ({p.name})" for p in self.list() if sees(p.team_name))
        hint = f"Projects here: {known}." if known else "There are none yet: push a job first."
        return NotFoundError("project", name_or_id, next_step=hint)

    def get_team(self, project_id: str) -> str:
        """Return the team that owns the project, which never changes; "" is the default team."""
        if project_id not in self._teams:
            record = self._read(project_id)
            if record is None:
                return ""
            self._teams[project_id] = record.team_name
        return self._teams[project_id]

    def list(self) -> list[ProjectRecord]:
        """Return every project, oldest first."""
        keys = [
            info.key
            for prefix in (PROJECTS_INDEX, TEAM_PROJECTS_INDEX)
            for info in self._store.list(prefix)
        ]
        return sorted(self._read_indexed(keys), key=lambda p: (p.created_at, p.id))

    def remove_from_index(self, project: ProjectRecord) -> None:
        """Remove the project from the index. Idempotent."""
        for key in _index_keys(project):
            if self._project_id(key) == project.id:
                self._store.delete(key)

    def _add_to_index(self, made: ProjectRecord) -> ProjectRecord:
        """Put a new project into the index; return the one that a concurrent caller created."""
        for key in _index_keys(made):
            if create_object(self._store, key, {"project_id": made.id}):
                return made
            for other in self._read_indexed([key]):
                if other.team_name == made.team_name:
                    self._store.delete(project_record_key(made.id))
                    return other
        raise NotFoundError(
            "project", made.name, next_step="It is being deleted: push again afterwards."
        )

    def _find_by_name(self, name: str) -> list[ProjectRecord]:
        further = [info.key for info in self._store.list(team_projects_prefix(name))]
        found = self._read_indexed([project_index_key(name), *further])
        return sorted(found, key=lambda one: one.team_name)

    def _read_indexed(self, keys: Iterable[str]) -> list[ProjectRecord]:
        """Return the projects of these index keys, each once; a deleted one is left out."""
        ids = dict.fromkeys(map(self._project_id, keys))
        return [record for one in ids if one and (record := self._read(one)) is not None]

    def _project_id(self, key: str) -> str:
        found = find_object(self._store, key, dict[str, Any])
        return "" if found is None else str(found["project_id"])

    def _read(self, project_id: str) -> ProjectRecord | None:
        record = find_object(self._store, project_record_key(project_id), ProjectRecord)
        return record and replace(record, team_name=normalize_team(record.team_name))


def _index_keys(project: ProjectRecord) -> tuple[str, str]:
    """Return the places of the index that the project can have, in the order they are tried."""
    own = team_project_index_key(project.name, project.team_name)
    return project_index_key(project.name), own


def _ambiguous_error(name: str, named: Iterable[ProjectRecord], next_step: str) -> AmbiguousError:
    listed = ", ".join(f"{one.id} ({format_team(one.team_name)})" for one in named)
    return AmbiguousError(f"Several teams have a project {name!r}: {listed}.", next_step=next_step)


def normalize_team(team: str) -> str:
    """Return the name that records have: the default team's is empty."""
    return "" if team == DEFAULT_TEAM else team


def format_team(team: str) -> str:
    """Return the team for a sentence: `team research`, `the default team`."""
    return f"team {team}" if team else "the default team"
