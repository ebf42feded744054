"""The errors that the API server answers with."""

from __future__ import annotations

from .resources import Obj, Resource


class ApiError(Exception):
    """An answer other than success, as the `Status` object that a client gets."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Obj:
        status: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return {**status, "message": self.message, "reason": self.reason, "code": self.code}


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.full_name} "{name}" not found')


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{resource.full_name} "{name}" already exists')


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    named = f'{resource.full_name} "{name}"' if name else resource.full_name
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}")


def invalid(why: str) -> ApiError:
    return ApiError(422, "Invalid", why)
