"""Access of a request: the server's store, the key of the caller, and what the key may see.

A project or job of another team is unknown to the caller: the answer is the same as for an id that
does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request

from prefect_bt.credentials.key_hashes import parse_authorization
from prefect_bt.errors import AmbiguousError, InvalidKey, NotFoundError, PrefectBtError
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.job_service.job_readers import JobReaders
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.projects import DEFAULT_TEAM, normalize_team
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.settings import Settings


@dataclass(frozen=True)
class ApiSite:
    """What the routes of one server work with. The settings are those of the server's process."""

    ledger: Ledger
    settings: Settings
    keys: ApiKeys
    uploads: Uploads

    @cached_property
    def job_readers(self) -> JobReaders:
        return JobReaders(self.ledger, self.settings.state_dir)


class UnauthorizedError(PrefectBtError):
    """A request without a valid key."""


class ForbiddenError(PrefectBtError):
    """A request that the key does not allow."""


@dataclass(frozen=True)
class Caller:
    """The key of a request. `team`: None for all teams, "" for the default team."""

    key_id: str
    name: str
    team: str | None

    def sees(self, team: str) -> bool:
        """Return whether the key gives access to the projects of the team."""
        return self.team in (None, normalize_team(team))

    def choose_team(self, team: str | None) -> str | None:
        """Return the team of a new project; None leaves it to the store. ForbiddenError."""
        if team is None or self.sees(team):
            return team if self.team is None else self.team or DEFAULT_TEAM
        raise ForbiddenError(
            f"The key {self.name!r} gives no access to team {team!r}.",
            next_step=f"It is a key of team {self.team or DEFAULT_TEAM!r}.",
        )

    def require_all_teams(self, action: str) -> None:
        """Raise ForbiddenError for a key of one team. `action` completes "only a key … can"."""
        if self.team is not None:
            raise ForbiddenError(f"Only a key of all teams can {action}.")


def get_site(request: Request) -> ApiSite:
    return request.app.state.site


SiteDep = Annotated[ApiSite, Depends(get_site)]


def authenticate(request: Request, site: SiteDep) -> Caller:
    """Return the caller of the request; raise UnauthorizedError without a valid key."""
    header = request.headers.get("authorization", "")
    record = site.keys.verify(parse_authorization(header, "api-key", "bearer"))
    if record is None:
        raise UnauthorizedError(
            "The request has no valid API key.",
            next_step="Send `Authorization: Api-Key <key>`; `prefect-bt api-key create` makes one.",
        )
    return Caller(record.id, record.name, record.team)


CallerDep = Annotated[Caller, Depends(authenticate)]


def find_project(project_id: str, site: SiteDep, caller: CallerDep) -> ProjectRecord:
    """Return the project with this id or name; NotFoundError also for one of another team."""
    try:
        project = site.ledger.projects.get(project_id, prefer=caller.team)
    except (NotFoundError, InvalidKey, AmbiguousError) as error:
        if isinstance(error, AmbiguousError) and caller.team is None:
            raise
        raise NotFoundError("project", project_id) from None
    if not caller.sees(project.team_name):
        raise NotFoundError("project", project_id)
    return project


ProjectDep = Annotated[ProjectRecord, Depends(find_project)]


def find_any_job(job_id: str, site: SiteDep, caller: CallerDep) -> JobRecord:
    """Return the job with this id; NotFoundError also for one of another team."""
    try:
        record = site.ledger.get_job(job_id)
    except (NotFoundError, InvalidKey):
        raise NotFoundError("job", job_id) from None
    if not caller.sees(site.ledger.projects.get_team(record.project_id)):
        raise NotFoundError("job", job_id)
    return record


AnyJobDep = Annotated[JobRecord, Depends(find_any_job)]


def find_job(project: ProjectDep, record: AnyJobDep) -> JobRecord:
    """Return the job of the path; NotFoundError also for one of another project."""
    if record.project_id != project.id:
        raise NotFoundError("job", record.id)
    return record


JobDep = Annotated[JobRecord, Depends(find_job)]
