"""Decide about one checkpoint: commit it, wait, or commit it with a note. Pure.

What the files themselves prove to be missing is waited for without limit. What only looks
unfinished, or only differs from an earlier checkpoint, delays: a training may go on with fewer
processes, or without its optimizer's state, and its checkpoints are none the worse for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENDED_QUIET: Final = 0.5
"""Seconds without a change that suffice where the files prove the end of the save."""
SIGN_QUIET: Final = 20.0
"""Seconds without a change after which an unfinished sign is ignored."""
GAP_QUIET: Final = 60.0
"""Seconds after which a checkpoint with fewer files than the previous one is committed."""
STILL_WRITING: Final = "it is still being written"


@dataclass(frozen=True)
class Evidence:
    """Evidence in the files of a checkpoint. Phrases are empty for nothing.

    `fault`: a part that is missing for certain; `sign`: what looks unfinished, and may be wrong;
    `gap`: what an earlier checkpoint of this attempt has in addition.
    """

    fault: str = ""
    sign: str = ""
    gap: str = ""
    has_ended: bool = False
    """Whether a file proves the end of the save."""
    is_repeated: bool = False
    """Whether the end is proved and nothing contradicts it: all files of earlier ones are there."""


@dataclass(frozen=True)
class Decision:
    """Decision: wait for `reason`, or with "" commit with `note`, which says what is missing."""

    reason: str = ""
    note: str = ""

    @property
    def is_commit(self) -> bool:
        return not self.reason


def decide(evidence: Evidence, *, quiet: float, rhythm: float) -> Decision:
    """Return the decision after `quiet` seconds without a change.

    `rhythm`: the quiet seconds that this writer needs at least, by its pauses so far. After
    commands that ended with 0, `quiet` is infinite: the writer is done.
    """
    if evidence.fault:
        return Decision(evidence.fault)
    if evidence.is_repeated:
        reason, required = STILL_WRITING, min(rhythm, ENDED_QUIET)
    elif evidence.gap and not evidence.has_ended:
        reason, required = evidence.gap, max(rhythm, GAP_QUIET)
    elif evidence.sign and not evidence.has_ended:
        reason, required = evidence.sign, max(rhythm, SIGN_QUIET)
    else:
        reason, required = STILL_WRITING, rhythm
    return Decision(note=evidence.gap) if quiet >= required else Decision(reason)
