"""Parse the address of a bucket.

    s3://bucket/prefix                    Amazon, or the server at AWS_ENDPOINT_URL (MinIO, …)
    r2://account.bucket/prefix            Cloudflare; r2://account.eu.bucket/… is its EU part
    cw://bucket/prefix                    CoreWeave
    gs://bucket/prefix                    Google Cloud Storage
    azure://account/container/prefix      Azure Blob Storage

PREFECT_BT_R2_ENDPOINT and PREFECT_BT_CW_ENDPOINT replace the endpoints of r2 and cw.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError

_BUCKET_PATTERN: Final = r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?"
_ACCOUNT_PATTERNS: Final = {
    "r2": r"(?P<account>[^./]+)(?P<place>\.eu)?\.",
    "azure": r"(?P<account>[^/]+)/",
}
_EXAMPLES: Final = {
    "s3": "s3://bucket/prefix",
    "r2": "r2://account_id.bucket/prefix",
    "cw": "cw://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "azure": "azure://account/container/prefix",
}
_REGIONS: Final = {"r2": "auto", "cw": "us-east-1"}
_S3_SCHEMES: Final = frozenset({"s3", "r2", "cw"})


@dataclass(frozen=True)
class BucketUrl:
    """A folder of a bucket: `prefix` has no slash at its ends."""

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""
    endpoint: str = ""
    """Empty for s3, gs and azure, where the client library knows it."""
    region: str = ""
    """The region that the scheme implies; empty for s3."""
    virtual_hosted: bool = False
    """Whether the bucket is part of the host name, as CoreWeave requires."""

    @property
    def is_s3_like(self) -> bool:
        """Return whether the bucket's server speaks S3."""
        return self.scheme in _S3_SCHEMES


def parse_bucket_url(url: str) -> BucketUrl:
    """Parse a bucket's URL. StoreError with an example for a URL without a bucket."""
    scheme = urlsplit(url).scheme
    account = _ACCOUNT_PATTERNS.get(scheme, "")
    match = re.fullmatch(f"{scheme}://{account}{_BUCKET_PATTERN}", url)
    if match is None:
        what = f"{url!r} names no bucket."
        raise StoreError(what, url=url, next_step=f"It reads: {_EXAMPLES[scheme]}")
    found = match.groupdict()
    endpoint = _endpoint(scheme, found)
    return BucketUrl(
        scheme=scheme,
        bucket=found["bucket"],
        prefix=(found["prefix"] or "").strip("/"),
        account=found.get("account") or "",
        endpoint=endpoint,
        region=_REGIONS.get(scheme, ""),
        virtual_hosted=scheme == "cw"
        and re.search(r"[a-z]", urlsplit(endpoint).netloc) is not None,
    )


def endpoint_options(address: BucketUrl) -> dict[str, Any]:
    """Return endpoint and region of an S3-like bucket as arguments of obstore's S3Store."""
    if not address.endpoint:
        return {}
    if address.virtual_hosted:
        host = address.endpoint.replace("://", f"://{address.bucket}.", 1)
        return {"endpoint": host, "region": address.region, "virtual_hosted_style_request": True}
    return {"endpoint": address.endpoint, "region": address.region}


def _endpoint(scheme: str, found: dict[str, str | None]) -> str:
    if scheme not in {"r2", "cw"}:
        return ""
    from prefect_bt.settings import Settings

    settings = Settings()
    if scheme == "cw":
        return settings.cw_endpoint
    usual = f"https://{found['account']}{found['place'] or ''}.r2.cloudflarestorage.com"
    return settings.r2_endpoint or usual
