"""The credential of an upload, and the part of S3's protocol that uploads use."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from html import escape, unescape
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from prefect_bt.http_api.access import ApiSite, CallerDep, SiteDep
from prefect_bt.http_api.uploads.received_body import declared_size, received_body
from prefect_bt.http_api.uploads.staging import (
    BUCKET,
    OBJECT_NAME,
    Upload,
    UploadError,
    find_upload_id,
    parse_part_number,
)

router = APIRouter(tags=["uploads"])

_CREDENTIAL: Final = re.compile(r"AWS4-HMAC-SHA256 .*?Credential=([^/,\s]+)/")
_PART: Final = re.compile(r"<Part>(.*?)</Part>", re.DOTALL)
_NUMBER: Final = re.compile(r"<PartNumber>\s*([0-9]{1,5})\s*</PartNumber>")
_ETAG: Final = re.compile(r'<ETag>\s*"?([0-9a-f]{64})"?\s*</ETag>')
_MAX_LIST_BYTES: Final = 4 * 1024 * 1024
_XML: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_PATIENCE_SECONDS: Final = 10.0
"""Seconds between two signs of life while parts are joined: clients wait a minute for one."""


@router.get("/v1/blobs/credentials/train")
def create_upload_credentials(
    request: Request, site: SiteDep, caller: CallerDep
) -> dict[str, object]:
    """Create a credential that allows the upload of one workspace, for an hour, by any S3 client.

    A job names the object as an artifact. Objects that no job names are removed after a day.
    """
    upload_id, token = site.uploads.issue(caller.key_id)
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
        return await _answer(upload_id, request, site)
    except UploadError as error:
        return _xml(_error_document(error), error.status)
    except OSError as error:
        return _xml(_error_document(_disk_error(error)), 500)


def _check_access(upload_id: str, request: Request, site: ApiSite) -> None:
    found = _CREDENTIAL.match(request.headers.get("authorization", ""))
    token = request.headers.get("x-amz-security-token", "")
    known = upload_id and found and found[1] == upload_id
    if not (
        known
        and site.uploads.is_token_valid(upload_id, token)
        and site.keys.is_active(upload_id.partition("-")[0])
    ):
        message = "The credential does not allow this upload, or it has expired. Ask for a new one."
        raise UploadError(403, "AccessDenied", message)


async def _answer(upload_id: str, request: Request, site: ApiSite) -> Response:
    query, uploads = request.query_params, site.uploads
    multipart_id = query.get("uploadId", "")
    match request.method:
        case "PUT":
            number = parse_part_number(query.get("partNumber", "")) if multipart_id else None
            upload = await asyncio.to_thread(uploads.open, upload_id)
            return await receive_object(upload, request, site, multipart_id, number)
        case "POST" if "uploads" in query:
            upload = await asyncio.to_thread(uploads.open, upload_id)
            begun = await asyncio.to_thread(upload.begin_multipart)
            return _xml(_result("InitiateMultipartUploadResult", upload_id, UploadId=begun))
        case "POST" if multipart_id:
            upload, parts = uploads.find(upload_id), await _read_parts(request)
            return await _complete(upload, multipart_id, parts)
        case "DELETE" if multipart_id:
            await asyncio.to_thread(uploads.find(upload_id).abort, multipart_id)
            return Response(status_code=204)
        case _:
            raise UploadError(405, "MethodNotAllowed", "Only uploads are possible here.")


async def receive_object(
    upload: Upload,
    request: Request,
    site: ApiSite,
    multipart_id: str = "",
    number: int | None = None,
) -> Response:
    """Receive the object, or a part of it. UploadError."""
    folder = upload.find_multipart(multipart_id) if number else upload.path
    size = declared_size(request)
    await asyncio.to_thread(site.uploads.reserve, upload, size, part=number)
    try:
        async with received_body(request, folder) as body:
            if number:
                publish = upload.publish_part
                await asyncio.to_thread(publish, multipart_id, number, body.path, body.sha256)
            else:
                await asyncio.to_thread(upload.publish, body.path)
    finally:
        site.uploads.release(upload, size)
    return Response(headers={"ETag": f'"{body.sha256}"'})


async def _read_parts(request: Request) -> list[tuple[int, str]]:
    """Return numbers and digests of the list in the body."""
    body = bytearray()
    try:
        async for data in request.stream():
            body += data
            if len(body) > _MAX_LIST_BYTES:
                raise UploadError(413, "EntityTooLarge", "The list of parts is too long.")
    except ClientDisconnect:
        raise UploadError(400, "IncompleteBody", "The connection ended in the body.") from None
    parts: list[tuple[int, str]] = []
    for part in _PART.findall(body.decode("utf-8", "replace")):
        number, etag = _NUMBER.search(part), _ETAG.search(unescape(part))
        if not number or not etag:
            raise UploadError(400, "InvalidPart", "A part has no number, or an ETag of another.")
        parts.append((int(number[1]), etag[1]))
    if not parts:
        raise UploadError(400, "MalformedXML", "The body is no list of parts.")
    return parts


async def _complete(upload: Upload, multipart_id: str, parts: list[tuple[int, str]]) -> Response:
    """Join the parts; after a while answer with spaces until that is done, as S3 does."""
    # A client that gives up waiting asks again, and finds the object.
    joining = asyncio.create_task(asyncio.to_thread(upload.complete, multipart_id, parts))
    document = _result("CompleteMultipartUploadResult", upload.path.name, ETag=f'"{multipart_id}"')
    done, _ = await asyncio.wait([joining], timeout=_PATIENCE_SECONDS)
    if done:
        joining.result()
        return _xml(document)

    async def respond() -> AsyncIterator[str]:
        yield _XML
        while not (await asyncio.wait([joining], timeout=_PATIENCE_SECONDS))[0]:
            yield " "
        try:
            joining.result()
        except UploadError as error:
            yield _error_document(error)
        except OSError as error:
            yield _error_document(_disk_error(error))
        else:
            yield document

    return StreamingResponse(respond(), media_type="application/xml")


def _result(kind: str, upload_id: str, **fields: str) -> str:
    fields = {"Bucket": BUCKET, "Key": f"{upload_id}/{OBJECT_NAME}", **fields}
    content = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in fields.items())
    return f'<{kind} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{kind}>'


def _disk_error(error: OSError) -> UploadError:
    message = f"The server's disk cannot take the upload: {error.strerror or error}."
    return UploadError(500, "InternalError", message)


def _error_document(error: UploadError) -> str:
    return f"<Error><Code>{error.code}</Code><Message>{escape(str(error))}</Message></Error>"


def _xml(document: str, status: int = 200) -> Response:
    return Response(f"{_XML}{document}", status, media_type="application/xml")
