"""The credential of an upload, and the part of S3's protocol that uploads use."""

from __future__ import annotations

import asyncio
import re
import secrets
from html import escape, unescape
from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.requests import ClientDisconnect

from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.http_api.access import ApiSite, CallerDep, SiteDep
from prefect_bt.http_api.uploads.received_body import declared_size, receive_body
from prefect_bt.http_api.uploads.staging import (
    BUCKET,
    OBJECT_NAME,
    UploadError,
    Uploads,
    find_upload_id,
    join_parts,
    publish,
    remove_empty,
)

router = APIRouter(tags=["uploads"])

_CREDENTIAL: Final = re.compile(r"AWS4-HMAC-SHA256 .*?Credential=([^/,\s]+)/")
_NUMBER: Final = re.compile(r"<PartNumber>\s*([0-9]{1,5})\s*</PartNumber>")
_ETAG: Final = re.compile(r'<ETag>\s*"?([0-9a-f]{64})"?\s*</ETag>')
_MAX_LIST_BYTES: Final = 1024 * 1024


@router.get("/v1/blobs/credentials/train")
def create_upload_credentials(
    request: Request, site: SiteDep, caller: CallerDep
) -> dict[str, object]:
    """Create a credential that allows the upload of one workspace, for an hour, by any S3 client.

    A job names the object as an artifact. Objects that no job names are removed after a day.
    """
    upload_id, token = site.uploads.issue(caller.key_id)
    bucket = site.uploads.bucket
    # A client that reaches us as a proxy reaches no http endpoint but ours.
    if bucket and (bucket.is_https or not request.scope.get("state", {}).get("proxied")):
        key = f"{upload_id}/{OBJECT_NAME}"
        return {
            "s3_bucket": bucket.name,
            "s3_key": f"{bucket.prefix}{key}",
            "creds": bucket.grant(upload_id),
        }
    return {
        "s3_bucket": BUCKET,
        "s3_key": f"{upload_id}/{OBJECT_NAME}",
        "creds": {
            "aws_access_key_id": upload_id,
            # Signatures of requests are not checked: the token alone allows the upload.
            "aws_secret_access_key": secrets.token_hex(20),
            "aws_session_token": token,
            "endpoint_url": f"{request.base_url}uploads",
            "region_name": "us-east-1",
        },
    }


@router.api_route(
    "/uploads/{bucket}/{key:path}",
    methods=["GET", "HEAD", "PUT", "POST", "DELETE"],
    include_in_schema=False,
)
async def serve_upload(bucket: str, key: str, request: Request, site: SiteDep) -> Response:
    """Answer a request of S3's protocol: PUT, the requests of a multipart upload, and no others."""
    try:
        upload_id = find_upload_id(bucket, key)
        await asyncio.to_thread(_check_access, upload_id, request, site)
        return await _answer(upload_id, request, site.uploads)
    except UploadError as error:
        return _error(error)
    except ClientDisconnect:
        return _error(UploadError(400, "IncompleteBody", "The connection ended in the body."))
    except OSError as error:
        message = f"The server's disk cannot take the upload: {error.strerror or error}."
        return _error(UploadError(500, "InternalError", message))


@router.put("/prefect-bt/v1/workspaces")
async def put_workspace(request: Request, site: SiteDep, caller: CallerDep) -> dict[str, object]:
    """Receive the archive of a workspace in one request; return its name for a submission."""
    upload_id, _ = site.uploads.issue(caller.key_id)
    try:
        folder = await asyncio.to_thread(site.uploads.open, upload_id)
        await _receive(folder, None, request, site.uploads)
    except UploadError as error:
        raise HTTPException(error.status, str(error)) from None
    artifact = {"s3_bucket": BUCKET, "s3_key": f"{upload_id}/{OBJECT_NAME}"}
    return {"result": artifact, "warnings": []}


def _check_access(upload_id: str, request: Request, site: ApiSite) -> None:
    found = _CREDENTIAL.match(request.headers.get("authorization", ""))
    token = request.headers.get("x-amz-security-token", "")
    known = upload_id and found and found[1] == upload_id
    allowed = known and site.uploads.is_token_valid(upload_id, token)
    if not (allowed and site.keys.is_active(upload_id.partition("-")[0])):
        message = "The credential does not allow this upload, or it has expired. Ask for a new one."
        raise UploadError(403, "AccessDenied", message)


async def _answer(upload_id: str, request: Request, uploads: Uploads) -> Response:
    query = request.query_params
    if "uploadId" in query and query["uploadId"] != upload_id:
        raise UploadError(404, "NoSuchUpload", "The upload has another id.")
    match request.method:
        case "PUT":
            part = _parse_part(query.get("partNumber", "")) if "uploadId" in query else None
            folder = await asyncio.to_thread(uploads.find if part else uploads.open, upload_id)
            digest = await _receive(folder, part, request, uploads)
            return Response(headers={"ETag": f'"{digest}"'})
        case "POST" if "uploads" in query:
            await asyncio.to_thread(uploads.open, upload_id)
            return _xml(_result("InitiateMultipartUploadResult", upload_id))
        case "POST" if "uploadId" in query:
            folder, parts = uploads.find(upload_id), await _read_parts(request)
            # A client that gives up waiting asks again, and gets the answer then.
            await asyncio.to_thread(join_parts, folder, parts)
            return _xml(_result("CompleteMultipartUploadResult", upload_id))
        case "DELETE" if "uploadId" in query:
            await asyncio.to_thread(remove_tree, uploads.find(upload_id))
            return Response(status_code=204)
        case _:
            raise UploadError(405, "MethodNotAllowed", "Only uploads are possible here.")


async def _receive(folder: Path, part: int | None, request: Request, uploads: Uploads) -> str:
    """Write the body to the upload; return its digest."""
    try:
        file = await asyncio.to_thread(uploads.create_file, folder, declared_size(request))
        try:
            digest = await receive_body(request, file)
            await asyncio.to_thread(publish, folder, file, part, digest)
        finally:
            file.unlink(missing_ok=True)
    except BaseException:
        if not part:
            await asyncio.to_thread(remove_empty, folder)
        raise
    return digest


def _parse_part(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,3}|10000", text):
        return int(text)
    raise UploadError(400, "InvalidArgument", "A part number is between 1 and 10000.")


async def _read_parts(request: Request) -> list[tuple[int, str]]:
    """Return numbers and digests of the list in the body."""
    body = bytearray()
    async for data in request.stream():
        body += data
        if len(body) > _MAX_LIST_BYTES:
            raise UploadError(413, "EntityTooLarge", "The list of parts is too long.")
    parts: list[tuple[int, str]] = []
    for part in unescape(body.decode("utf-8", "replace")).split("<Part>")[1:]:
        number, etag = _NUMBER.search(part), _ETAG.search(part)
        if not number or not etag:
            raise UploadError(400, "InvalidPart", "A part has no number, or an ETag of another.")
        parts.append((int(number[1]), etag[1]))
    return parts


def _result(kind: str, upload_id: str) -> str:
    fields = f"<Bucket>{BUCKET}</Bucket><Key>{upload_id}/{OBJECT_NAME}</Key>"
    more = f"<UploadId>{upload_id}</UploadId><ETag>{upload_id}</ETag>"
    return f'<{kind} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{fields}{more}</{kind}>'


def _error(error: UploadError) -> Response:
    fields = f"<Code>{error.code}</Code><Message>{escape(str(error))}</Message>"
    return _xml(f"<Error>{fields}</Error>", error.status)


def _xml(document: str, status: int = 200) -> Response:
    return Response(document, status, media_type="application/xml")
