"""Which bucket an address means, and how each kind of store is reached.

    s3://bucket/prefix                    Amazon, or who answers at AWS_ENDPOINT_URL (MinIO, …)
    r2://account.bucket/prefix            Cloudflare; r2://account.eu.bucket/… is its EU part
    cw://bucket/prefix                    CoreWeave
    gs://bucket/prefix                    Google Cloud Storage
    azure://account/container/prefix      Azure Blob Storage
    memory://                             this process, for tests

Credentials: boto3's chain for the first three (variables, profiles, SSO, roles), Google's for gs
(GOOGLE_APPLICATION_CREDENTIALS names a service account's JSON), AZURE_STORAGE_… for azure. The
endpoint of s3 is AWS_ENDPOINT_URL; PREFECT_BT_R2_ENDPOINT and PREFECT_BT_CW_ENDPOINT replace the
two that are fixed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_TIMEOUT: Final = 10
READ_TIMEOUT: Final = 30
"""Without a byte for so long, a request is given up and made again."""
_MAX_RETRIES: Final = 6

_URL_PATTERNS: Final = {
    "s3": r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?",
    "r2": r"(?P<account>[^./]+)(?P<place>\.eu)?\.(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?",
    "cw": r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?",
    "gs": r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?",
    "azure": r"(?P<account>[^/]+)/(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?",
}
_EXAMPLES: Final = {
    "s3": "s3://bucket/prefix",
    "r2": "r2://account_id.bucket/prefix",
    "cw": "cw://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "azure": "azure://account/container/prefix",
}
_REGIONS: Final = {"r2": "auto", "cw": "us-east-1"}
S3_LIKE: Final = frozenset({"s3", "r2", "cw"})


@dataclass(frozen=True)
class BucketUrl:
    """A place in a bucket. `prefix` has no slash at its ends; `endpoint` is empty for the usual."""

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""
    endpoint: str = ""
    virtual_hosted: bool = False
    """Whether the bucket is part of the host's name: CoreWeave wants it there."""


def parse_bucket_url(url: str) -> BucketUrl:
    """Raises StoreError for a URL that names no bucket, with an example of one that does."""
    scheme = urlsplit(url).scheme
    match = re.fullmatch(f"{scheme}://{_URL_PATTERNS[scheme]}", url)
    if match is None:
        what = f"{url!r} names no bucket."
        raise StoreError(what, url=url, next_step=f"It reads: {_EXAMPLES[scheme]}")
    found = match.groupdict()
    return BucketUrl(
        scheme=scheme,
        bucket=found["bucket"],
        prefix=(found["prefix"] or "").strip("/"),
        account=found.get("account") or "",
        endpoint=(endpoint := _endpoint(scheme, found)),
        virtual_hosted=scheme == "cw"
        and re.search(r"[a-z]", urlsplit(endpoint).netloc) is not None,
    )


def create_object_store(address: BucketUrl) -> ObjectStore:
    """obstore's store at the address. Nothing is reached yet."""
    from obstore import store

    common: dict[str, Any] = {
        "prefix": address.prefix or None,
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT),
            "read_timeout": timedelta(seconds=READ_TIMEOUT),
            "timeout": timedelta(minutes=5),
        },
        "retry_config": {"max_retries": _MAX_RETRIES, "retry_timeout": timedelta(seconds=60)},
    }
    if address.scheme == "gs":
        return store.GCSStore(address.bucket, **common)
    if address.scheme == "azure":
        return store.AzureStore(address.bucket, account_name=address.account, **common)
    from obstore.auth.boto3 import (
        Boto3CredentialProvider,
    )

    if address.endpoint:
        common |= {"endpoint": address.endpoint, "region": _REGIONS[address.scheme]}
    if address.virtual_hosted:
        host = address.endpoint.replace("://", f"://{address.bucket}.", 1)
        common |= {"endpoint": host, "virtual_hosted_style_request": True}
    try:
        credentials = Boto3CredentialProvider()
    except ValueError as error:
        raise StoreError(
            f"No credentials for {address.scheme}://{address.bucket} were found.",
            url=f"{address.scheme}://{address.bucket}",
            next_step="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
        ) from error
    return store.S3Store(
        address.bucket, checksum_algorithm="SHA256", credential_provider=credentials, **common
    )


def create_s3_client(address: BucketUrl) -> Any:
    """boto3's client, from a session of its own: it finds the credentials of this moment."""
    # Neither has types.
    session: Any = import_module("boto3.session").Session()
    config: Any = import_module("botocore.config").Config(
        max_pool_connections=16,
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        retries={"mode": "standard", "max_attempts": _MAX_RETRIES},
        # Every part carries its SHA-256, which is signed: no need to hash it a second time.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "payload_signing_enabled": False,
            **({"addressing_style": "virtual"} if address.virtual_hosted else {}),
        },
        signature_version="s3v4",
    )
    place: dict[str, Any] = {}
    if address.endpoint:
        place = {"endpoint_url": address.endpoint, "region_name": _REGIONS[address.scheme]}
    return session.client("s3", config=config, **place)


def _endpoint(scheme: str, found: dict[str, str | None]) -> str:
    if scheme not in {"r2", "cw"}:
        return ""
    from prefect_bt.settings import Settings

    settings = Settings()
    if scheme == "cw":
        return settings.cw_endpoint
    usual = f"https://{found['account']}{found['place'] or ''}.r2.cloudflarestorage.com"
    return settings.r2_endpoint or usual
