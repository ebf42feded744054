"""The pods of a Job: what they are made of, and what a failure of one means."""

from __future__ import annotations

import copy

from .objects import has_condition
from .resources import Obj, part, parts

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"


def make_pod(job: Obj, index: int) -> Obj:
    """Return the pod of this index, as it is sent to the API."""
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    given = part(template, "metadata")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    spec = template["spec"]
    spec.setdefault("hostname", f"{meta['name']}-{index}")
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
    for container in [*parts(spec, "initContainers"), *spec["containers"]]:
        env = parts(container, "env")
        entry = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}}
        container["env"] = [*env, entry]
    pod_meta: Obj = {"generateName": f"{meta['name']}-{index}-", "finalizers": [TRACKING]}
    pod_meta["labels"] = {**part(given, "labels"), INDEX: str(index)}
    pod_meta["annotations"] = {**part(given, "annotations"), INDEX: str(index)}
    pod_meta["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec}


def index_of(pod: Obj) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def write_indexes(indexes: set[int]) -> str:
    """Write `0,1,3-5`: three and more in a row with a hyphen, and a pair without."""
    rows: list[list[int]] = []
    for index in sorted(indexes):
        if rows and rows[-1][-1] == index - 1:
            rows[-1].append(index)
        else:
            rows.append([index])
    return ",".join(
        f"{row[0]}-{row[-1]}" if len(row) > 2 else ",".join(map(str, row)) for row in rows
    )


def read_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for row in filter(None, text.split(",")):
        first, _, last = row.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def is_deleted(pod: Obj) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_over(pod: Obj) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_active(pod: Obj) -> bool:
    return not is_over(pod) and not is_deleted(pod)


def is_failed(job: Obj, pod: Obj) -> bool:
    """Tell whether the pod counts as failed: with the policy Failed, not before it has ended."""
    early = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed" and is_deleted(pod)
    return pod["status"]["phase"] == "Failed" or (early and not is_over(pod))


def judge(job: Obj, pod: Obj) -> tuple[str, str]:
    """Return the action of the first rule that the failed pod fits, and the sentence about it."""
    rules = part(job["spec"], "podFailurePolicy").get("rules", [])
    for number, rule in enumerate(rules):
        said = _exit_code(rule["onExitCodes"], pod) if rule.get("onExitCodes") else ""
        for pattern in parts(rule, "onPodConditions"):
            if has_condition(pod, pattern["type"]):
                said = f"Pod {_name(pod)} has condition {pattern['type']}"
        if said:
            return rule["action"], f"{said} matching {rule['action']} rule at index {number}"
    return "Count", ""


def _exit_code(codes: Obj, pod: Obj) -> str:
    status = pod["status"]
    found = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in found:
        ended = container["state"].get("terminated")
        name = container["name"]
        if not ended or not ended["exitCode"] or codes.get("containerName", name) != name:
            continue
        code = ended["exitCode"]
        if (code in codes["values"]) == (codes["operator"] == "In"):
            return f"Container {name} for pod {_name(pod)} failed with exit code {code}"
    return ""


def _name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
