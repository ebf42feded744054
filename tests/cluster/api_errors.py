"""The errors that the API server answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .resources import Obj, Resource


class ApiError(Exception):
    """An answer other than success, as the `Status` object that a client gets."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Obj:
        status: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": self.message, "reason": self.reason, "code": self.code}
        return status if self.details is None else {**status, "details": self.details}


def details_of(resource: Resource, name: str = "", **more: Any) -> Obj:
    """Name an object as the `details` of a Status do."""
    details: Obj = {"name": name, "group": resource.group, "kind": resource.name, **more}
    return {key: value for key, value in details.items() if value}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> ApiError:
    message = f'{resource.full_name} "{name}" not found'
    return ApiError(404, "NotFound", message, details_of(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    message = f'{resource.full_name} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details_of(resource, name))


def conflict(resource: Resource, name: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been'
    message += " modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", message, details_of(resource, name))


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    named = f'{resource.full_name} "{name}"' if name else resource.full_name
    message = f"{named} is forbidden: {why}"
    return ApiError(403, "Forbidden", message, details_of(resource, name))


_REASONS = {
    "Required value": "Required",
    "Invalid value": "Invalid",
    "Not found": "NotFound",
}


@dataclass(frozen=True)
class Cause:
    """One fault of an object: the field, and the sentence about it."""

    field: str
    message: str

    def part(self) -> Obj:
        reason = next(
            reason for begin, reason in _REASONS.items() if self.message.startswith(begin)
        )
        return {"field": self.field, "message": self.message, "reason": f"FieldValue{reason}"}


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> ApiError:
    said = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    said = said if len(causes) == 1 else f"[{said}]"
    details = details_of(resource, name, causes=[cause.part() for cause in causes])
    details["kind"] = resource.kind
    message = f'{resource.full_kind} "{name}" is invalid: {said}'
    return ApiError(422, "Invalid", message, details)


def expired(version: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")
