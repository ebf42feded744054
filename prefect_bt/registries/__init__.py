"""How an image gets onto a Docker Engine: credentials, the pull, what went wrong.

Begin with `pull`; `credentials` logs in, `pull_errors` is the table of causes and remedies.
"""

from prefect_bt.registries.credentials import list_login_secrets
from prefect_bt.registries.pull import PulledImage, pull_image
from prefect_bt.registries.pull_errors import PullErrorKind

__all__ = [
    "PullErrorKind",
    "PulledImage",
    "list_login_secrets",
    "pull_image",
]
