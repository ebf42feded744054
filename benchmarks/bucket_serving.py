"""An S3 bucket for benchmarks, to be read only: ListObjectsV2, HEAD and GET of files of this disk.

Answers a Range with 206, as S3 does and `rclone serve s3` does not, and knows every ETag before
anybody asks. Signatures are not looked at. Run as a process of its own by `serving`.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import file_serving
from datasets import Digested
from file_serving import Answer, Request

_PAGE = 1000
_WRITTEN, _WRITTEN_HTTP = "2026-01-01T00:00:00.000Z", "Thu, 01 Jan 2026 00:00:00 GMT"
_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@contextmanager
def serving(
    root: Path, bucket: str, objects: dict[str, list[Digested]], *, delay: float = 0.0
) -> Iterator[str]:
    """Serve `objects` (prefix -> files below it), every answer `delay` seconds late; the URL."""
    root.mkdir(parents=True, exist_ok=True)
    catalogue = root / f"{bucket}.json"
    rows = [
        [f"{prefix}/{file.path}", file.size, file.etag, str(file.place)]
        for prefix, files in objects.items()
        for file in files
    ]
    catalogue.write_text(json.dumps(sorted(rows)))
    with file_serving.running("bucket_serving", bucket, str(catalogue), str(delay)) as url:
        yield url


class _Face:
    """file_serving.App. Rows of the catalogue: key, size, etag, where it lies; sorted."""

    def __init__(self, bucket: str, catalogue: Path) -> None:
        self._bucket = bucket
        rows: list[list[Any]] = json.loads(catalogue.read_bytes())
        self._rows = {row[0]: row for row in rows}
        self._keys = list(self._rows)

    def __call__(self, request: Request) -> Answer:
        bucket, _, key = request.path[1:].partition("/")
        if bucket != self._bucket:
            return _no(404, "NoSuchBucket")
        if not key:
            return self._list(request)
        row = self._rows.get(key)
        if row is None:
            return _no(404, "NoSuchKey")
        tag = f'"{row[2]}"'
        if request.headers.get("if-match", tag).strip('"') != row[2]:
            return _no(412, "PreconditionFailed")
        headers = {"ETag": tag, "Last-Modified": _WRITTEN_HTTP}
        headers["Content-Type"] = "application/octet-stream"
        return Answer(200, headers, file=Path(row[3]), size=row[1])

    def _list(self, request: Request) -> Answer:
        query = request.query
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        first = bisect_right(self._keys, after) if after else bisect_left(self._keys, prefix)
        most = int(query.get("max-keys") or _PAGE)
        delimiter = query.get("delimiter", "")
        keys: list[str] = []
        folders: dict[str, None] = {}
        last = ""
        for key in self._keys[max(first, bisect_left(self._keys, prefix)) :]:
            if not key.startswith(prefix):
                break
            if len(keys) + len(folders) >= most:
                return self._page(query, keys, list(folders), last)
            below = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if below[1]:
                folders[prefix + below[0] + delimiter] = None
            else:
                keys.append(key)
            last = key
        return self._page(query, keys, list(folders), "")

    def _page(
        self, query: dict[str, str], keys: list[str], folders: list[str], token: str
    ) -> Answer:
        parts = [
            f"<Name>{self._bucket}</Name><Prefix>{escape(query.get('prefix', ''))}</Prefix>",
            f"<KeyCount>{len(keys) + len(folders)}</KeyCount><MaxKeys>{_PAGE}</MaxKeys>",
            f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>",
        ]
        if token:
            parts.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        parts += [_content(self._rows[key]) for key in keys]
        parts += [
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        ]
        return _xml(200, f'<ListBucketResult xmlns="{_XMLNS}">{"".join(parts)}</ListBucketResult>')


def _content(row: list[Any]) -> str:
    return (
        f"<Contents><Key>{escape(row[0])}</Key><LastModified>{_WRITTEN}</LastModified>"
        f"<ETag>&quot;{row[2]}&quot;</ETag><Size>{row[1]}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _no(status: int, code: str) -> Answer:
    return _xml(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")


def _xml(status: int, inside: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{inside}'
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())


if __name__ == "__main__":
    file_serving.serve(_Face(sys.argv[1], Path(sys.argv[2])), delay=float(sys.argv[3]))
