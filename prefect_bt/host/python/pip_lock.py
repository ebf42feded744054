"""Let one pip at a time change an environment, which all jobs of a project share.

This file is copied into the environment, where its interpreter, of any release, imports it at each
start. It must not import anything that takes time.
"""

import os
import sys


def changes_environment(words: "list[str]") -> bool:
    """Return whether this is the command line of a pip that installs or removes packages."""
    if not {"install", "uninstall"}.intersection(words):
        return False
    for number, word in enumerate(words[1:], start=1):
        if word == "-m":
            return words[number + 1 : number + 2] == ["pip"]
        if not word.startswith("-"):
            return os.path.basename(word).rstrip("0123456789.") == "pip"  # noqa: PTH119
    return False


def acquire_lock() -> None:
    """Wait until no other pip or uv changes the environment; the lock ends with this process."""
    import fcntl

    lock = os.open(os.path.join(sys.prefix, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("pip waits: another process installs packages into this environment\n")
        sys.stderr.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
    # pip starts itself for what a build requires.
    os.environ["_PREFECT_BT_PIP"] = "1"


if "_PREFECT_BT_PIP" not in os.environ and changes_environment(getattr(sys, "orig_argv", [])):
    acquire_lock()
