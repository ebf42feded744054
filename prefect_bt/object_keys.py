"""Keys of objects in a store, and the ids and quoted names in them.

A stored job outlives any release of this package, so a key is never renamed, only added. Logical
checkpoint paths: docs/compatibility.md, Checkpoints. What a store holds:

    index/jobs/<job id>                       -> {"project_id"}; create-only, so ids are unique;
                                              with "deleted" once the job is: an id comes only once
    index/projects/<quoted name>              -> {"project_id"}: the first team's of that name
    index/reopened/<job id>/<seq>             the job was over, and event <seq> reopens it; written
                                              before the event, so that one listing tells which jobs
    index/team-projects/<quoted name>/team-<quoted team>
                                              -> {"project_id"}: every further team's
    index/runs/<Prefect flow run id>          -> {"job_id"}
    index/calls/<parent's flow run id>/<request>-<n>.json
                                              -> {"job_id"}: the job that answered it
    index/calls/<parent's flow run id>/<request>-<n>.claims/<life>
                                              who answers it in this life of the parent; create-only
    weights/manifests/<key>-<revision>.json   what a source holds; after all of its blobs
    weights/blobs/<xx>/<sha256>               contents that manifests name
    weights/sharing/<key>-<revision>/<batch>  division of a download among hosts
    deployments/<quoted name>/                what serves under a name
                                              (serving/deployment_records.py)
    training_projects/<project id>/
        project.json
        names/job-<n>                         the counter behind automatic job names
        cache/<state folder's id>.json        what its training cache held on a machine, and when
        jobs/<job id>/
            job.json                          the definition and facts that never change
            workspace.tar                     the user's folder
            events/<seq>.json                 what happened, create-only, in order
            runs/<Prefect flow run id>.json   which runs of Prefect were this job
            calls/<parent's flow run id>/<request>-<n>   which calls of parents it answers
            stop.json                         somebody asked for the job to stop
            max_run_time.json                 what a retry gave instead of the job's limit, seconds
            weights/<key>.json                the revision of a weights source that the job uses:
                                              that of its first mirror; create-only
            mirroring/<key>                   progress of a mirror as text, replaced at each tenth
            image.json                        the image that its nodes run in, by digest;
                                              that of its first attempt; create-only
            holds/<holder>.json               who needs which manifests to stay where they are
            withdrawn/<uuid>.json             manifests on their way out: written before they go
            deleting.json                     the job is being deleted: written before anything goes
            attempts/<n>/attempt.json         written before anything is launched
            attempts/<n>/resources.json       what each of its nodes got; before any launch
            attempts/<n>/outcome.json         written when the attempt is over
            attempts/<n>/logs/rank-<r>.log    sealed logs
            attempts/<n>/uploads/rank-<r>.json   what the rank's uploader says of itself, replaced
            nodes/<n>/                        status, log and requests of its pods; deleted with the
                                              attempt (ledger/node_objects.py)
            manifests/rank-<r>/<quoted checkpoint>/<attempt>-<version>.json   commit = presence
            objects/<attempt>/rank-<r>/…      bytes that manifests name
                                              (checkpoints/committed/stored_objects.py)
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

JOB_ID_LENGTH: Final = 7
INDEX_JOBS: Final = "index/jobs"
INDEX_REOPENED: Final = "index/reopened"

ID_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
CALLS_INDEX: Final = "index/calls"
PROJECTS_INDEX: Final = "index/projects"
TEAM_PROJECTS_INDEX: Final = "index/team-projects"
_MAX_TEAM_BYTES: Final = 200
"""Bytes of a quoted team name that a key takes; a longer one stands there as its SHA-256."""


def make_id() -> str:
    """Return a new id of seven lower-case letters and digits. It may be taken in a store."""
    import secrets  # 5 ms, of which a node has no use

    return "".join(secrets.choice(ID_ALPHABET) for _ in range(JOB_ID_LENGTH))


def quote_name(name: str) -> str:
    """A free-text name as one path component: reversible, never empty, never `.` or `..`.

    >>> quote_name("v0-1/checkpoint-10")
    'v0-1%2Fcheckpoint-10'
    """
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in {"", ".", ".."} else quoted


def job_index_key(job_id: str) -> str:
    return f"{INDEX_JOBS}/{job_id}"


def reopened_key(job_id: str, event: int) -> str:
    """The mark that the event reopens a job that was over, for indexes of ended jobs."""
    return f"{INDEX_REOPENED}/{job_id}/{event:06d}"


def project_index_key(name: str) -> str:
    return f"{PROJECTS_INDEX}/{quote_name(name)}"


def team_projects_prefix(name: str) -> str:
    """The folder of the index that has the projects of that name of further teams."""
    return f"{TEAM_PROJECTS_INDEX}/{quote_name(name)}"


def team_project_index_key(name: str, team: str) -> str:
    """The empty team name is the default team."""
    quoted = quote(team, safe="")
    if len(quoted) > _MAX_TEAM_BYTES:
        quoted = hashlib.sha256(team.encode()).hexdigest()
    return f"{team_projects_prefix(name)}/team-{quoted}"


def run_index_key(flow_run_id: str) -> str:
    return f"index/runs/{flow_run_id}"


def project_prefix(project_id: str) -> str:
    return f"training_projects/{project_id}"


def project_record_key(project_id: str) -> str:
    return f"{project_prefix(project_id)}/project.json"


def job_prefix(project_id: str, job_id: str) -> str:
    return f"{project_prefix(project_id)}/jobs/{job_id}"


def event_key(project_id: str, job_id: str, number: int) -> str:
    return f"{job_prefix(project_id, job_id)}/events/{number:06d}.json"


def attempt_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{job_prefix(project_id, job_id)}/attempts/{attempt:04d}"


def log_key(project_id: str, job_id: str, attempt: int, rank: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/logs/rank-{rank}.log"


def uploads_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/uploads"


def job_nodes_prefix(project_id: str, job_id: str) -> str:
    """The folder over the nodes of every attempt."""
    return f"{job_prefix(project_id, job_id)}/nodes"


def nodes_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{job_nodes_prefix(project_id, job_id)}/{attempt:04d}"


def manifests_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/manifests"


def objects_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{job_prefix(project_id, job_id)}/objects/{attempt:04d}"


def job_calls_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/calls"


def job_objects_prefix(project_id: str, job_id: str) -> str:
    """The folder over the objects of every attempt."""
    return f"{job_prefix(project_id, job_id)}/objects"


def mirroring_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/mirroring"


def weights_tree_name(key: str, revision: str) -> str:
    """The name of a mirrored source (plan.WeightsPlan.key) at one revision, here and in a store."""
    return f"{key}-{revision}"


def holds_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/holds"


def tombstones_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/withdrawn"


def deleting_key(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/deleting.json"


def logical_path(project_id: str, job_id: str, rank: int, relative: str) -> str:
    """Return the logical path of a checkpoint file. It is not the key of an object."""
    return f"{job_prefix(project_id, job_id)}/rank-{rank}/{relative}"
