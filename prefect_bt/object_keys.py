"""Keys of objects in a store, and the ids and quoted names in them.

A stored job outlives the release that wrote it, so a key is never renamed, only added. Logical
checkpoint paths: docs/compatibility.md, Checkpoints. A store contains:

    index/jobs/<job id>                       -> {"project_id"}; create-only, so ids are unique;
                                              with "deleted" after a deletion: no id is reused
    index/projects/<quoted name>              -> {"project_id"}: the first team's of that name
    index/ended/<job id>/<creation time>-<project id>.json
                                              the document of an ended job
                                              (ledger/ended_documents.py)
    index/removals/<job id>/<nonce>           an ended job whose nodes are not removed yet
                                              (ledger/job_objects.py)
    index/team-projects/<quoted name>/team-<quoted team>
                                              -> {"project_id"}: every further team's
    index/runs/<Prefect flow run id>          -> {"job_id"}
    index/calls/<parent's flow run id>/<request>-<n>.json
                                              -> {"job_id"}: the job of the call
    index/calls/<parent's flow run id>/<request>-<n>.claims/<life>
                                              claim of the call by one run of the parent;
                                              create-only
    queue/waiting/<job id>/<facts>/team-<quoted team>
                                              a job that waits (queue/waiting_jobs.py)
    queue/leases/<n>.json, .released          what a running job holds; create-only
    queue/machines/<state folder's id>.json   what a machine offers to jobs
    queue/clock/now                           empty; its date is the store's time
    queue/probes/<nonce>                      test whether the store creates an object once
    queue/limits/<quoted GPU type>.json       limits of all jobs; in a folder of that name: of teams
    weights/manifests/<key>-<revision>.json   files of a weights source; written after their blobs
    weights/blobs/<xx>/<sha256>               contents that manifests name
    weights/sharing/<key>-<revision>/<batch>  division of a download among hosts
    uploads/<key id>-<nonce>/workspace.tgz    uploaded by a client of the HTTP API for a job
    api_keys/<key id>.json                    a key of the HTTP API (http_api/keys.py)
    deployments/<quoted name>/                a serving deployment
                                              (serving/deployment_records.py)
    training_projects/<project id>/
        project.json
        names/job-<n>                         counter of automatic job names
        cache/<state folder's id>.json        listing of its training cache on a machine
        jobs/<job id>/
            job.json                          the definition and facts that never change
            workspace.tar                     the packed workspace
            events/<seq>.json                 changes of state, create-only, in order
            runs/<Prefect flow run id>.json   Prefect flow runs of the job
            calls/<parent's flow run id>/<request>-<n>   calls of parent runs for this job
            max_run_time.json                 seconds that a retry set instead of the job's limit
            logins/<nanoseconds>-<nonce>.json a shell that a user opened in a node; create-only
            environment.json                  variables that retries set instead of the definition's
            priority.json                     priority that replaces that of the definition
            availability_model.json           the same of the availability model
            weights/<key>.json                the revision of a weights source that the job uses:
                                              that of its first mirror; create-only
            mirroring/<key>                   progress of a mirror as text, replaced at each tenth
            image.json                        the image of its nodes, by digest;
                                              that of its first attempt; create-only
            holds/<holder>.json               manifests that a holder protects from deletion
            withdrawn/<uuid>.json             tombstone: manifests that are about to be deleted
            deleting.json                     tombstone of the job, written before its deletion
            attempts/<n>/attempt.json         written before anything is launched
            attempts/<n>/resources.json       resources of each node; written before the launch
            attempts/<n>/outcome.json         written when the attempt is over
            attempts/<n>/logs/rank-<r>.log    archived logs
            attempts/<n>/metrics/rank-<r>     archived metrics (job_metrics/node_metrics.py)
            attempts/<n>/uploads/rank-<r>.json   status of the rank's uploader, replaced
            nodes/<n>/                        status and live log of its nodes; deleted with the
                                              attempt (ledger/node_objects.py)
            nodes/requests/                   requests to the job and its nodes (ledger/requests.py)
            manifests/rank-<r>/<quoted checkpoint>/<attempt>-<version>.json
                                              a checkpoint is committed when its manifest exists
            objects/<attempt>/rank-<r>/…      bytes that manifests name
                                              (checkpoints/committed/stored_objects.py)
"""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

JOB_ID_LENGTH: Final = 7
INDEX_JOBS: Final = "index/jobs"
INDEX_ENDED: Final = "index/ended"
INDEX_REMOVALS: Final = "index/removals"
QUEUE_WAITING: Final = "queue/waiting"
QUEUE_LEASES: Final = "queue/leases"
QUEUE_MACHINES: Final = "queue/machines"
QUEUE_LIMITS: Final = "queue/limits"
CLOCK: Final = "queue/clock"
PROBES: Final = "queue/probes"
API_KEYS: Final = "api_keys"
UPLOADS: Final = "uploads"

ID_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
CALLS_INDEX: Final = "index/calls"
PROJECTS_INDEX: Final = "index/projects"
TEAM_PROJECTS_INDEX: Final = "index/team-projects"
_MAX_TEAM_BYTES: Final = 200
"""Most bytes of a quoted team name in a key; the key of a longer name has its SHA-256 instead."""


def make_id() -> str:
    """Return a new id of seven lower-case letters and digits. A store may already have it."""
    import secrets  # 5 ms, of which a node has no use

    return "".join(secrets.choice(ID_ALPHABET) for _ in range(JOB_ID_LENGTH))


def quote_name(name: str) -> str:
    """Return a free-text name as one path component: reversible, never empty, never `.` or `..`.

    >>> quote_name("v0-1/checkpoint-10")
    'v0-1%2Fcheckpoint-10'
    """
    quoted = quote(name, safe="", errors="surrogatepass")  # an argument may be no UTF-8
    return quoted.replace(".", "%2E") if quoted in {"", ".", ".."} else quoted


def job_index_key(job_id: str) -> str:
    return f"{INDEX_JOBS}/{job_id}"


def api_key_key(key_id: str) -> str:
    return f"{API_KEYS}/{key_id}.json"


def removals_prefix(job_id: str) -> str:
    return f"{INDEX_REMOVALS}/{job_id}"


def waiting_job_prefix(job_id: str) -> str:
    return f"{QUEUE_WAITING}/{job_id}"


def project_index_key(name: str) -> str:
    return f"{PROJECTS_INDEX}/{quote_name(name)}"


def team_projects_prefix(name: str) -> str:
    """Return the folder of the index with the further teams' projects of that name."""
    return f"{TEAM_PROJECTS_INDEX}/{quote_name(name)}"


def team_project_index_key(name: str, team: str) -> str:
    """Return the key of a team's project in the index. The default team has an empty name."""
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


def attempt_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{job_prefix(project_id, job_id)}/attempts/{attempt:04d}"


def log_key(project_id: str, job_id: str, attempt: int, rank: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/logs/rank-{rank}.log"


def metrics_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/metrics"


def uploads_prefix(project_id: str, job_id: str, attempt: int) -> str:
    return f"{attempt_prefix(project_id, job_id, attempt)}/uploads"


def job_nodes_prefix(project_id: str, job_id: str) -> str:
    """Return the folder of the nodes of all attempts."""
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
    """Return the folder of the objects of all attempts."""
    return f"{job_prefix(project_id, job_id)}/objects"


def logins_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/logins"


def mirroring_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/mirroring"


def weights_tree_name(key: str, revision: str) -> str:
    """Return the name of a mirrored source (plan.WeightsPlan.key) at one revision."""
    return f"{key}-{revision}"


def holds_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/holds"


def tombstones_prefix(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/withdrawn"


def deleting_key(project_id: str, job_id: str) -> str:
    return f"{job_prefix(project_id, job_id)}/deleting.json"


def logical_path(project_id: str, job_id: str, rank: int, relative: str) -> str:
    """Return the path of a checkpoint file as users see it, which is not the key of an object."""
    return f"{job_prefix(project_id, job_id)}/rank-{rank}/{relative}"
