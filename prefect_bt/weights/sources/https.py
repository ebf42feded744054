"""One file behind a URL as a weights source: `https://host/path/file`.

The file has the name of the last part of the URL's path. It is pinned by its ETag, else by its
Last-Modified, and by its length. A query can be a signature and is never shown.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.http_source import HttpSource, parse_version


class WebSource(HttpSource):
    """A file whose version, length and support of ranges its first byte shows."""

    def list_files(self) -> Listing:
        name = unquote(urlsplit(self._source).path.rpartition("/")[2])
        if not name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        with self._translate_errors(), self._get(self._source, first_byte=True) as answer:
            tag, size = parse_version(answer)
            no_ranges = answer.status_code == 200 and size != 0
        if not tag and size is None:
            what = "has neither ETag nor Last-Modified nor a length, so no version of it is known"
            raise self._error(what, "Fetch it in your start command instead.")
        file = ListedFile(name, size, version_tag=tag, sequential_only=no_ranges)
        return Listing(self._source, compute_revision([file]), (file,))
