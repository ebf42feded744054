"""Uploads from clients to the store's bucket, by keys of a role that allow one upload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.credentials.cloud_identity import assume_role
from prefect_bt.errors import WorkspaceError
from prefect_bt.object_keys import UPLOADS
from prefect_bt.object_store.connect import create_s3_client, parse_bucket_url
from prefect_bt.object_store.protocols import Store
from prefect_bt.workspace.limits import format_bytes


@dataclass(frozen=True)
class BucketUploads:
    """`prefix` precedes the names of uploaded objects; `role` is an ARN."""

    store: Store
    role: str
    name: str
    prefix: str
    endpoint: str
    region: str

    @property
    def is_https(self) -> bool:
        return self.endpoint.startswith("https://")

    def grant(self, upload_id: str) -> dict[str, str]:
        """Return boto3's arguments for the upload of that id, valid for an hour. IdentityError."""
        statement = {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
            "Resource": f"arn:aws:s3:::{self.name}/{self.prefix}{upload_id}/*",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        keys = assume_role(self.role, self.region, policy=policy)
        return {
            "aws_access_key_id": keys.access_key_id,
            "aws_secret_access_key": keys.secret_access_key,
            "aws_session_token": keys.token,
            "endpoint_url": self.endpoint,
            "region_name": self.region,
        }

    def download(self, name: str, target: Path, *, max_bytes: int) -> None:
        """Write the object to the file, if it exists. WorkspaceError if it is too large."""
        for info in self.store.list(f"{UPLOADS}/{name.partition('/')[0]}"):
            if info.key == f"{UPLOADS}/{name}":
                if info.size > max_bytes:
                    text = f"The upload is larger than the {format_bytes(max_bytes)} allowed."
                    raise WorkspaceError(text, next_step="Declare large files as weights.")
                self.store.download(info.key, target)

    def delete(self, name: str) -> None:
        self.store.delete(f"{UPLOADS}/{name}")


def open_bucket_uploads(store: Store, role: str) -> BucketUploads | None:
    """Return the uploads to the store's bucket; None without a role, or for other stores."""
    if not role or not store.url.startswith("s3://"):
        return None
    address = parse_bucket_url(store.url)
    client = create_s3_client(address)
    folder = f"{address.prefix}/{UPLOADS}/".lstrip("/")
    endpoint, region = client.meta.endpoint_url, client.meta.region_name
    return BucketUploads(store, role, address.bucket, folder, endpoint, region)
