"""Create clients of buckets and of HTTP servers, with their credentials and time limits.

    s3://bucket/prefix                    Amazon, or the server at AWS_ENDPOINT_URL (MinIO, …)
    r2://account.bucket/prefix            Cloudflare; r2://account.eu.bucket/… is its EU part
    cw://bucket/prefix                    CoreWeave
    gs://bucket/prefix                    Google Cloud Storage
    azure://account/container/prefix      Azure Blob Storage

PREFECT_BT_R2_ENDPOINT and PREFECT_BT_CW_ENDPOINT replace the endpoints of r2 and cw.

Machine credentials: boto3's chain for s3, r2 and cw (variables, profiles, SSO, roles), Google's for
gs (GOOGLE_APPLICATION_CREDENTIALS), the AZURE_STORAGE_… variables for azure. Proxies are those of
HTTP_PROXY, HTTPS_PROXY and NO_PROXY; SSL_CERT_FILE replaces the system's certificate authorities,
AWS_CA_BUNDLE adds some for S3-like buckets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import HTTPStore, ObjectStore

_BUCKET: Final = r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?"
_FORMS: Final = {
    "memory": ("(?P<bucket>)(?P<prefix>)", ""),
    **dict.fromkeys(("s3", "cw", "gs"), (_BUCKET, "bucket/prefix")),
    "r2": (rf"(?P<account>[^./]+)(?P<place>\.eu)?\.{_BUCKET}", "account_id.bucket/prefix"),
    "azure": (rf"(?P<account>[^/]+)/{_BUCKET}", "account/container/prefix"),
}
"""Scheme -> pattern and example of the part after `://`."""
_REGIONS: Final = {"r2": "auto", "cw": "us-east-1"}
_MAX_RETRY_TIME: Final = timedelta(seconds=60)
_OBSTORE_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class BucketUrl(NamedTuple):
    """A folder of a bucket: `prefix` has no slash at its ends."""

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""
    endpoint: str = ""
    region: str = ""
    """`endpoint` and `region` are empty for s3, gs and azure: the client library knows them."""

    @property
    def url(self) -> str:
        """Return the address of the bucket for messages."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def is_s3_like(self) -> bool:
        return self.scheme in {"s3", "r2", "cw"}

    @property
    def virtual_hosted(self) -> bool:
        """Return whether the bucket is part of the host name, as CoreWeave requires."""
        return self.scheme == "cw" and bool(re.search(r"[a-z]", urlsplit(self.endpoint).netloc))


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and retries, of a store's HTTP client."""

    connect: float = 10.0
    read: float = 30.0
    """Seconds without a byte after which a request fails."""
    total: float = 300.0
    """Seconds that a request may take, its body included."""
    retries: int = 6


class Access(NamedTuple):
    """Credentials for a bucket."""

    name: str
    options: Callable[[], Mapping[str, Any]]
    """Returns arguments of obstore's store class; may ask a token service."""
    has_credentials: bool = True
    """Whether credentials are known to exist; if not, the search for them can fail or time out."""


_DEFAULT_LIMITS: Final = Limits()
ANONYMOUS: Final = Access("no credentials", lambda: {"skip_signature": True})


def parse_bucket_url(url: str) -> BucketUrl:
    """Parse a bucket's URL. StoreError for an unknown scheme, and for a URL without a bucket."""
    scheme = urlsplit(url).scheme
    if scheme not in _FORMS:
        known = ", ".join(f"{name}://" for name in ("file", *_FORMS))
        what = f"No store has the scheme {scheme}:// ({url!r})."
        raise StoreError(what, url=url, next_step=f"Use a folder or one of {known}.")
    pattern, example = _FORMS[scheme]
    match = re.fullmatch(f"{scheme}://{pattern}", url)
    if match is None:
        hint = f"Write it as {scheme}://{example}."
        raise StoreError(f"{url!r} names no bucket.", url=url, next_step=hint)
    found = match.groupdict(default="")
    account, prefix = found.get("account", ""), found["prefix"].strip("/")
    endpoint, region = "", _REGIONS.get(scheme, "")
    if region:
        from prefect_bt.settings import Settings

        usual = f"https://{account}{found.get('place', '')}.r2.cloudflarestorage.com"
        endpoint = Settings().cw_endpoint if scheme == "cw" else Settings().r2_endpoint or usual
    return BucketUrl(scheme, found["bucket"], prefix, account, endpoint, region)


def create_bucket_store(
    address: BucketUrl, access: Access, *, limits: Limits = _DEFAULT_LIMITS, is_store: bool = False
) -> ObjectStore:
    """Create obstore's store for a bucket. No request is sent, except by `access`.

    `is_store`: prefix the keys, and send the SHA-256 of uploaded bytes to S3-like servers.
    ValueError or obstore's BaseError for options that it cannot parse.
    """
    from obstore import store

    given = {"endpoint": address.endpoint, "region": address.region, **access.options()}
    if address.virtual_hosted:
        given["endpoint"] = address.endpoint.replace("://", f"://{address.bucket}.", 1)
        given["virtual_hosted_style_request"] = True
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    options |= _client_arguments(limits, _bucket_client_options(address))
    if is_store and address.prefix:
        options["prefix"] = address.prefix
    if address.scheme == "gs":
        return store.GCSStore(address.bucket, **options)
    if address.scheme == "azure":
        return store.AzureStore(address.bucket, account_name=address.account, **options)
    if address.scheme == "r2":
        options["region"] = address.region
    if is_store:
        options["checksum_algorithm"] = "SHA256"
    return store.S3Store(address.bucket, **options)


def create_http_store(
    url: str, *, token: str = "", limits: Limits = _DEFAULT_LIMITS, allow_http: bool = False
) -> HTTPStore:
    """Create obstore's store below `url`. The token is sent to the host of `url` only.

    Without `allow_http`, requests and redirects to plain HTTP fail. ValueError for a malformed URL.
    """
    from obstore.store import HTTPStore

    headers = {"Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    client = {"allow_http": allow_http, "default_headers": headers}
    return HTTPStore(url, **_client_arguments(limits, client))


def describe_endpoint(url: str) -> str:
    """Return how this machine reaches the bucket: the S3 server, if one is set, and proxies."""
    names = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
    endpoint = parse_bucket_url(url).endpoint
    return " ".join([endpoint, *(os.environ.get(n, "") for n in (*_OBSTORE_ENDPOINTS, *names))])


def find_machine_access(address: BucketUrl) -> Access | None:
    """Return this machine's credentials for the bucket, if any; StoreError for bad AWS settings."""
    name = "the credentials of this machine"
    if not address.is_s3_like:
        return Access(name, dict, has_credentials=False)
    session: Any = import_module("boto3.session")
    errors: Any = import_module("botocore.exceptions")
    try:
        found = session.Session()
        known = found.get_credentials()
    except errors.BotoCoreError as error:
        what = f"The AWS settings of this machine cannot be used ({type(error).__name__})."
        hint = "Check AWS_PROFILE and the files in ~/.aws."
        raise StoreError(what, url=address.url, next_step=hint) from None
    if known is None:
        return None
    providers: Any = import_module("obstore.auth.boto3")
    # boto3 renews temporary credentials at least ten minutes before they expire.
    provider = providers.Boto3CredentialProvider(found, ttl=timedelta(minutes=9))
    options = {"credential_provider": provider, "region": address.region or found.region_name}
    return Access(name, lambda: options)


def create_access(
    name: str, request: Callable[[], Mapping[str, Any]], *, region: str = ""
) -> Access:
    """Create an access from requested credentials, which hide those of the environment.

    `request` is called when a store is created, so that its error reaches the caller, and by
    obstore shortly before `expires_at`, unless that is None.
    """

    def options() -> dict[str, Any]:
        kept = [request()]
        return {"credential_provider": lambda: kept.pop() if kept else request(), "region": region}

    return Access(name, options)


def create_s3_client(address: BucketUrl, limits: Limits = _DEFAULT_LIMITS) -> Any:
    """Create boto3's client. A new session reads the credentials that the machine has now."""
    session: Any = import_module("boto3.session").Session()
    style = {"addressing_style": "virtual"} if address.virtual_hosted else {}
    config: Any = import_module("botocore.config").Config(
        max_pool_connections=16,
        connect_timeout=limits.connect,
        read_timeout=limits.read,
        retries={"mode": "standard", "max_attempts": limits.retries},
        # Each part is sent with its SHA-256, which is signed; boto3 need not hash it again.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False, **style},
        signature_version="s3v4",
    )
    region, endpoint = address.region or None, address.endpoint or None
    return session.client("s3", region_name=region, endpoint_url=endpoint, config=config)


def _client_arguments(limits: Limits, client_options: dict[str, Any]) -> dict[str, Any]:
    times = {
        "connect_timeout": timedelta(seconds=limits.connect),
        "read_timeout": timedelta(seconds=limits.read),
        "timeout": timedelta(seconds=limits.total),
    }
    retries = {"max_retries": limits.retries, "retry_timeout": _MAX_RETRY_TIME}
    return {"client_options": times | client_options, "retry_config": retries}


def _bucket_client_options(address: BucketUrl) -> dict[str, Any]:
    if not address.is_s3_like:
        return {"allow_http": True}  # emulators, metadata services
    endpoints = [address.endpoint or os.environ.get(name, "") for name in _OBSTORE_ENDPOINTS]
    options: dict[str, Any] = {"allow_http": any(url.startswith("http://") for url in endpoints)}
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            what = f"AWS_CA_BUNDLE cannot be read: {error.strerror}."
            hint = "Point it at a file of PEM certificates, or unset it."
            raise StoreError(what, url=address.url, next_step=hint) from None
    return options
