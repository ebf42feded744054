"""Format a request to a deployment as a command for the shell. Pure."""

from __future__ import annotations

import json
import shlex
from typing import Final

EXAMPLE_PROMPT: Final = "Tell me a story."
CHAT: Final = "chat"
COMPLETION: Final = "completion"
"""Endpoint of a model without a chat template."""
TRANSCRIPTION: Final = "transcription"


def format_curl(address: str, model: str, *, has_key: bool = False, endpoint: str = CHAT) -> str:
    """Return a curl command. `address` has no path; `has_key` sends the shell's OPENAI_API_KEY."""
    headers = ['-H "Authorization: Bearer $OPENAI_API_KEY"'] if has_key else []
    if endpoint == TRANSCRIPTION:
        given = f"-F file=@speech.wav -F {shlex.quote(f'model={model}')}"
        return " ".join(["curl", f"{address}/v1/audio/transcriptions", *headers, given])
    asked = {"messages": [{"role": "user", "content": EXAMPLE_PROMPT}]}
    body = {"model": model, **(asked if endpoint == CHAT else {"prompt": EXAMPLE_PROMPT})}
    path = "chat/completions" if endpoint == CHAT else "completions"
    given = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return " ".join(["curl", f"{address}/v1/{path}", *headers, given])
