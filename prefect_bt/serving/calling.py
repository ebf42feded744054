"""How somebody asks a deployment, as a line that can be pasted into a shell. Pure."""

from __future__ import annotations

import json
import shlex
from typing import Final

QUESTION: Final = "Tell me a story."
CHAT: Final = "chat"
COMPLETION: Final = "completion"
"""Of a model without a chat template."""
TRANSCRIPTION: Final = "transcription"


def curl_line(address: str, model: str, *, key: bool = False, way: str = CHAT) -> str:
    """`address` without a path. With a `key`, the shell's OPENAI_API_KEY is sent."""
    headers = ['-H "Authorization: Bearer $OPENAI_API_KEY"'] if key else []
    if way == TRANSCRIPTION:
        given = f"-F file=@speech.wav -F {shlex.quote(f'model={model}')}"
        return " ".join(["curl", f"{address}/v1/audio/transcriptions", *headers, given])
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    body = {"model": model, **(asked if way == CHAT else {"prompt": QUESTION})}
    path = "chat/completions" if way == CHAT else "completions"
    given = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return " ".join(["curl", f"{address}/v1/{path}", *headers, given])
