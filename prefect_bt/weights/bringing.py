"""Bytes of a source into a fill: small files whole, large ones in blocks, several at a time.

What is cut off is continued where it ended, after a pause, a bounded number of times; what is half
here when the process dies is continued by the next. Every file is compared with what was listed
before it counts.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.host.cgroup import count_cpus
from prefect_bt.weights.blocks import Blocks, bring_own_way
from prefect_bt.weights.crew import work
from prefect_bt.weights.fetching import Fetching, check_stop
from prefect_bt.weights.index import identity
from prefect_bt.weights.listing import ListedFile
from prefect_bt.weights.source import NoRanges
from prefect_bt.weights.telling import shown
from prefect_bt.weights.wholes import bring_small, bring_stream

SMALL: Final = 1 << 20
"""Files up to this size are held in memory, each as one block."""
SMALL_AT_ONCE: Final = 16
BLOCKS_AT_ONCE: Final = (8, 32)
"""At least and at most; between them four for each CPU. One connection to a large store brings some
60 MB/s, and more connections than a machine can serve make each other slower."""
OWN_WAY_AT_ONCE: Final = 2
STREAMS_AT_ONCE: Final = 4
LENT_AT_ONCE: Final = 4


def borrow(fetching: Fetching, files: Sequence[ListedFile]) -> list[ListedFile]:
    """Links to what a store of this disk has; returns what is left to be read."""
    lent = [(file, path) for file in files if (path := fetching.origins.lent(file))]
    waiting, here = deque(lent), set[str]()

    def take() -> bool:
        try:
            file, path = waiting.popleft()
        except IndexError:
            return False
        if fetching.fill.lend(file, path):
            fetching.meter.here(file.size or 0, files=1)
            here.add(file.path)
        return True

    work(min(LENT_AT_ONCE, len(lent)), take, fetching.stop)
    check_stop(fetching)
    return [file for file in files if file.path not in here]


def bring(fetching: Fetching, files: Sequence[ListedFile]) -> None:
    """Every file into the fill. WeightsError; then what has arrived is kept for the next time."""
    rest: list[ListedFile] = []
    streams: list[ListedFile] = []
    for file in files:
        (rest if _may_be_continued(fetching, file) else streams).append(file)
    small = deque(file for file in rest if (file.size or 0) <= SMALL)
    large = [file for file in rest if (file.size or 0) > SMALL]
    try:
        if small:
            hands = min(SMALL_AT_ONCE, len(small))
            work(hands, lambda: bring_small(fetching, small), fetching.stop)
        try:
            Blocks(fetching, _own_way(fetching, large), _connections()).run()
        except NoRanges as error:
            fetching.meter.note(error.what)
            fetching = replace(fetching, stop=fetching.stop.anew())
            check_stop(fetching)
            streams += [file for file in large if not fetching.fill.has(file)]
        if streams:
            waiting = deque(streams)
            hands = min(STREAMS_AT_ONCE, len(streams))
            work(hands, lambda: bring_stream(fetching, waiting), fetching.stop)
    except OSError as error:
        raise unwritable(fetching.fill.source, error) from error
    check_stop(fetching)


def _connections() -> int:
    fewest, most = BLOCKS_AT_ONCE
    return max(fewest, min(4 * count_cpus(), most))


def _may_be_continued(fetching: Fetching, file: ListedFile) -> bool:
    """Two requests for it lead to the same bytes, and to those that were asked for."""
    return not file.whole and bool(identity(fetching.fill.source, file)) and file.size is not None


def _own_way(fetching: Fetching, files: Sequence[ListedFile]) -> Sequence[ListedFile]:
    """What is left after the source brought what it can in a way of its own."""
    waiting = deque(file for file in files if fetching.origins.has_way(file))
    if not waiting:
        return files
    rest = [file for file in files if not fetching.origins.has_way(file)]
    work(OWN_WAY_AT_ONCE, lambda: bring_own_way(fetching, waiting, rest), fetching.stop)
    return rest


def unwritable(source: str, error: OSError) -> WeightsError:
    if error.errno == errno.ENOSPC:
        what, step = "the disk is full", "Make room, or set PREFECT_BT_STATE_DIR to another disk"
    elif error.errno == errno.ENAMETOOLONG:
        what, step = "a path would be too long", "Set PREFECT_BT_STATE_DIR to a shorter path"
    else:
        what, step = f"it could not be written ({error})", "Check the disk of PREFECT_BT_STATE_DIR"
    return WeightsError(
        f"{shown(source)}: {what}.",
        source=source,
        next_step=f"{step}; what is here already is kept.",
    )
