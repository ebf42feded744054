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

_BUCKET: Final = r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?"
_FORMS: Final = {
    "s3": (_BUCKET, "s3://bucket/prefix"),
    "r2": (
        rf"(?P<account>[^./]+)(?P<place>\.eu)?\.{_BUCKET}",
        "r2://account_id.bucket/prefix",
    ),
    "cw": (_BUCKET, "cw://bucket/prefix"),
    "gs": (_BUCKET, "gs://bucket/prefix"),
    "azure": (rf"(?P<account>[^/]+)/{_BUCKET}", "azure://account/container/prefix"),
}
"""Scheme -> pattern after `://`, example."""
_REGIONS: Final = {"r2": "auto", "cw": "us-east-1"}


@dataclass(frozen=True)
class BucketUrl:
    """A folder of a bucket: `prefix` has no slash at its ends."""

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""
    endpoint: str = ""
    """Empty for s3, gs and azure, where the client library knows it."""

    @property
    def url(self) -> str:
        """Return the address of the bucket for messages."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def region(self) -> str:
        """Return the region that the scheme implies; empty for s3."""
        return _REGIONS.get(self.scheme, "")

    @property
    def is_s3_like(self) -> bool:
        return self.scheme in {"s3", "r2", "cw"}

    @property
    def virtual_hosted(self) -> bool:
        """Return whether the bucket is part of the host name, as CoreWeave requires."""
        return self.scheme == "cw" and bool(re.search(r"[a-z]", urlsplit(self.endpoint).netloc))


def parse_bucket_url(url: str) -> BucketUrl:
    """Parse a bucket's URL. StoreError with an example for a URL without a bucket."""
    scheme = urlsplit(url).scheme
    pattern, example = _FORMS[scheme]
    match = re.fullmatch(f"{scheme}://{pattern}", url)
    if match is None:
        raise StoreError(f"{url!r} names no bucket.", url=url, next_step=f"It reads: {example}")
    found = match.groupdict(default="")
    account = found.get("account", "")
    endpoint = ""
    if scheme in _REGIONS:
        from prefect_bt.settings import Settings

        usual = f"https://{account}{found.get('place', '')}.r2.cloudflarestorage.com"
        endpoint = Settings().cw_endpoint if scheme == "cw" else Settings().r2_endpoint or usual
    return BucketUrl(scheme, found["bucket"], found["prefix"].strip("/"), account, endpoint)


def endpoint_options(address: BucketUrl) -> dict[str, Any]:
    """Return endpoint and region of an S3-like bucket as arguments of obstore's S3Store."""
    if not address.endpoint:
        return {}
    if address.virtual_hosted:
        host = address.endpoint.replace("://", f"://{address.bucket}.", 1)
        return {"endpoint": host, "region": address.region, "virtual_hosted_style_request": True}
    return {"endpoint": address.endpoint, "region": address.region}
