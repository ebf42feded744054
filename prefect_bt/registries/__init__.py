"""How an image gets onto a Docker Engine: credentials, the pull, what went wrong."""

from prefect_bt.registries.faults import PullErrorKind
from prefect_bt.registries.logins import list_login_secrets
from prefect_bt.registries.progress import ProgressCallback, PullProgress
from prefect_bt.registries.pulling import PulledImage, pull_image

__all__ = [
    "ProgressCallback",
    "PullErrorKind",
    "PullProgress",
    "PulledImage",
    "list_login_secrets",
    "pull_image",
]
