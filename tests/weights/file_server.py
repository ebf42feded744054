"""One file behind HTTPS on a port of this machine, which can misbehave on demand.

Understands Range and If-Range, tells an ETag. The path beside it is that of the authority to trust
(SSL_CERT_FILE).
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass
class Files:
    """`files` by path. Each fault spoils so many of the next answers with a body."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    token: str = ""
    ranges: bool = True
    headers: dict[str, str | None] = field(default_factory=dict)
    """Replaced in every answer; None leaves one out."""
    retry_after: str = ""
    """Sent with `statuses`."""
    statuses: list[int] = field(default_factory=list)
    always_busy: bool = False
    """Whether `statuses` are also sent to requests for the first byte."""
    truncate: int = 0
    hang: int = 0
    flip: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(path with query, Range, Authorization) in order of arrival."""
    connections: int = 0
    drop: bool = False
    """The next request over a connection that had one before is answered by closing it."""
    dropped: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@contextmanager
def serving_files(folder: Path, *, valid_from: int = -1) -> Generator[tuple[Files, Path]]:
    served = Files()
    authority, certificate = make_certificate(folder, valid_from=valid_from)
    handler = type("Handler", (_Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # clients that give up close their connections
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    served.url = f"https://127.0.0.1:{server.server_port}"
    try:
        yield served, authority
    finally:
        served.release.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: Files
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    used = False

    def setup(self) -> None:
        self.served.connections += 1
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        served, path = self.served, self.path.partition("?")[0]
        if served.drop and self.used:
            served.drop, self.close_connection = False, True
            served.dropped += 1
            return None
        self.used = True
        wanted = self.headers.get("Range", "")
        served.asked.append((self.path, wanted, self.headers.get("Authorization", "")))
        if path in served.redirects:
            return self._send(302, b"", {"Location": served.redirects[path]})
        if served.token and self.headers.get("Authorization") != f"Bearer {served.token}":
            return self._send(401, b"", {})
        data = served.files.get(path)
        if data is None:
            return self._send(404, b"", {})
        first = wanted == "bytes=0-0"
        if served.statuses and (served.always_busy or not first):
            busy = {"Retry-After": served.retry_after or None}
            return self._send(served.statuses.pop(0), b"", busy)
        headers: dict[str, str | None] = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        same = self.headers.get("If-Range", headers["ETag"]) == headers["ETag"]
        ranges = served.ranges and same
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted) if ranges else None
        if found is None:
            return self._send(200, data, {**headers, **served.headers}, spoil=not first)
        start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self._send(
            206, data[start : end + 1], {**headers, **served.headers}, spoil=not first
        )

    def _send(
        self, status: int, body: bytes, headers: dict[str, str | None], *, spoil: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        served = self.served
        if spoil and served.flip > 0:
            served.flip -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        if spoil and served.truncate > 0:
            served.truncate -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        if spoil and served.hang > 0:
            served.hang -= 1
            self.wfile.write(body[: len(body) // 3])
            self.wfile.flush()
            self.close_connection = True
            served.release.wait(60)
            return
        with suppress(OSError):  # who does not want it all hangs up
            self.wfile.write(body)


def make_certificate(folder: Path, *, valid_from: int = -1) -> tuple[Path, Path]:
    """Make an authority and a certificate of it for 127.0.0.1, valid for two days.

    `valid_from` is the number of days from now.

    Return the files of the authority, and of the certificate with its key.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _sign(str(folder)[-60:], authority_key, None, authority_key)
    made = _sign("server", key, authority, authority_key, valid_from)
    trusted, served = folder / "cert.pem", folder / "server.pem"
    trusted.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    served.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return trusted, served


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid_from: int = -1,
) -> x509.Certificate:
    """Sign a certificate; without an issuer, one of an authority."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=valid_from))
        .not_valid_after(now + datetime.timedelta(days=valid_from + 2))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
