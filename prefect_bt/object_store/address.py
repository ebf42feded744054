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
from typing import Final
from urllib.parse import urlsplit

from prefect_bt.errors import StoreError

_BUCKET: Final = r"(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?"
_FORMS: Final = {
    **dict.fromkeys(("s3", "cw", "gs"), (_BUCKET, "bucket/prefix")),
    "r2": (rf"(?P<account>[^./]+)(?P<place>\.eu)?\.{_BUCKET}", "account_id.bucket/prefix"),
    "azure": (rf"(?P<account>[^/]+)/{_BUCKET}", "account/container/prefix"),
}
"""Scheme -> pattern and example of the part after `://`."""
_REGIONS: Final = {"r2": "auto", "cw": "us-east-1"}


@dataclass(frozen=True)
class BucketUrl:
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


def parse_bucket_url(url: str) -> BucketUrl:
    """Parse a bucket's URL. StoreError with an example for a URL without a bucket."""
    scheme = urlsplit(url).scheme
    pattern, example = _FORMS[scheme]
    match = re.fullmatch(f"{scheme}://{pattern}", url)
    if match is None:
        hint = f"It reads: {scheme}://{example}"
        raise StoreError(f"{url!r} names no bucket.", url=url, next_step=hint)
    found = match.groupdict(default="")
    account, prefix = found.get("account", ""), found["prefix"].strip("/")
    endpoint, region = "", _REGIONS.get(scheme, "")
    if region:
        from prefect_bt.settings import Settings

        usual = f"https://{account}{found.get('place', '')}.r2.cloudflarestorage.com"
        endpoint = Settings().cw_endpoint if scheme == "cw" else Settings().r2_endpoint or usual
    return BucketUrl(scheme, found["bucket"], prefix, account, endpoint, region)
