"""How an image gets onto a Docker Engine: credentials, the pull, what went wrong."""

from prefect_bt.registries.faults import Fault
from prefect_bt.registries.logins import needed_secrets
from prefect_bt.registries.progress import PullProgress, Tell
from prefect_bt.registries.pulling import PulledImage, pull

__all__ = ["Fault", "PullProgress", "PulledImage", "Tell", "needed_secrets", "pull"]
