"""`upstream.py PORT REVISION`: a server to route to, run by uvicorn as inference servers are.

It says which revision it is in everything it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys

import uvicorn

REVISION = sys.argv[2]
ACTIVE = {"now": 0, "left": 0}
HELD: list[asyncio.Event] = []
"""Streams that go on when somebody asks for /release."""


async def app(scope, receive, send) -> None:
    path, ask = (
        scope["path"],
        dict(p.split("=") for p in scope["query_string"].decode().split("&") if "=" in p),
    )
    if path == "/v1/models":
        await answer(send, {"revision": REVISION, "data": [{"id": f"checkpoint-{REVISION}"}]})
    elif path == "/facts":
        headers = [[k.decode("latin-1"), v.decode("latin-1")] for k, v in scope["headers"]]
        facts = {"raw": scope["raw_path"].decode(), "query": scope["query_string"].decode()}
        await answer(
            send, {**facts, "method": scope["method"], "headers": headers, "active": ACTIVE}
        )
    elif path == "/v1/chat/completions":
        body = json.loads(b"".join([part async for part in parts(receive)]))
        if body.get("stream"):
            held = asyncio.Event()
            HELD.append(held)
            if not body.get("hold"):
                held.set()
            await stream(receive, send, body.get("tokens", 5), held)
        else:
            await asyncio.sleep(body.get("pause", 0.005))
            await answer(send, {"revision": REVISION, "said": body["say"]})
    elif path == "/release":
        while HELD:
            HELD.pop().set()
        await answer(send, {})
    elif path == "/digest":
        digest, size = hashlib.sha256(), 0
        async for part in parts(receive):
            digest.update(part)
            size += len(part)
        await answer(send, {"digest": digest.hexdigest(), "size": size})
    elif path == "/echo":
        await begin(send, 200, [(b"content-type", b"application/octet-stream")])
        async for part in parts(receive):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif path == "/die":
        if "after" in ask:
            await begin(send, 200, [(b"content-type", b"text/plain")])
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await asyncio.sleep(0.2)
        if ask["me"] == REVISION:
            os._exit(1)
        await answer(send, {"revision": REVISION})
    elif path == "/redirect":
        await begin(
            send,
            307,
            [(b"location", b"/v1/models"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")],
        )
        await send({"type": "http.response.body", "body": b""})
    else:
        await answer(send, {"error": {"message": "no such path"}}, status=404)


async def parts(receive):
    while True:
        message = await receive()
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


async def stream(receive, send, tokens: int, held: asyncio.Event) -> None:
    """Waits after the first token, unless nobody holds it."""
    ACTIVE["now"] += 1
    gone = asyncio.create_task(receive())
    try:
        await begin(send, 200, [(b"content-type", b"text/event-stream")])
        for number in range(tokens):
            told = json.dumps({"revision": REVISION, "token": number})
            event = f"data: {told}\n\n".encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
            going = asyncio.create_task(held.wait())
            await asyncio.wait({gone, going}, return_when=asyncio.FIRST_COMPLETED)
            going.cancel()
            await asyncio.sleep(0.01)
            if gone.done():
                ACTIVE["left"] += 1
                return
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
    finally:
        gone.cancel()
        ACTIVE["now"] -= 1


async def answer(send, document, *, status: int = 200) -> None:
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await begin(send, status, headers)
    await send({"type": "http.response.body", "body": body})


async def begin(send, status: int, headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", lifespan="off")
