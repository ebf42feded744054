"""How a node runs its commands inside a container: through pipes in a folder that both have.

    <node>/control/     mounted read-only at /.prefect-bt
        orders          agent -> first process: `set`, `copy`, `link`, `run`, `end`
        signals         agent -> its listener: names of signals for everything in the container, or
                        COUNT, SHARE
        counts          listener -> agent after a COUNT: processes and what they use
                        (node_agent.commands.pod_runner.Counts)
        reports         first process -> agent: `ready`, then each command's exit code
        output          what the commands print, both streams

The container's first process is a shell of the image that reads orders; nothing else of the image
is needed to run a command. What the orders carry (secrets are among it) is in no file, in no
container's configuration and in nobody's arguments. Guard and agent both hold the pipes: when both
are gone the container ends by itself. No line of output passes through the Engine, so that its end
or its restart loses none and doubles none.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from prefect_bt.host.nodes.pod_layout import AGENT_USER
from prefect_bt.host.processes import PIPE_FILTERS, ProcessIdentity
from prefect_bt.host.state_folder import NodeFolder

MOUNTED_AT: Final = "/.prefect-bt"
PIPE_NAMES: Final = ("orders", "signals", "counts", "reports", "output")
"""In the order in which they are created: the first process waits for the last one."""
READY: Final = "ready"
COUNT: Final = "COUNT"
SHARE: Final = "SHARE"
_UNREADABLE: Final = (
    f"! -perm -004 ! '(' -group {AGENT_USER} -perm -040 ')' -o "
    f"-type d ! -perm -005 ! '(' -group {AGENT_USER} -perm -050 ')'"
)
"""Arguments of `find` for files and folders that the agent of a pod cannot read. Only these are
changed: a change counts as a write, and what was written is uploaded again."""
FOREIGN_PROCESSES: Final = 2
"""Processes in a container that belong to no command: the first process and its listener."""
_ESCAPED_BYTE: Final = re.compile(rb"[^A-Za-z0-9_/=:,@+-]")

INIT_SCRIPT: Final = f"""
_bt_home=$PWD _bt_shared=$2
_bt_control={MOUNTED_AT}
while [ ! -p "$_bt_control/output" ]; do sleep 0.1 2>/dev/null || sleep 1; done
cd "${{1:-.}}" || exit 1
_bt_count() {{
  _bt_alive=0 _bt_ticks=0 _bt_killed=0 _bt_blocked=0 _bt_stopped=0
  _bt_used=0 _bt_dropped=0 _bt_limit=0 _bt_read=0 _bt_written=0 _bt_gpus=
  for _bt_file in /proc/[0-9]*/stat; do
    read -r _bt_line <"$_bt_file" || continue
    set -- ${{_bt_line##*) }}
    [ "$1" = Z ] || _bt_alive=$((_bt_alive + 1))
    [ "$1" = D ] && _bt_blocked=$((_bt_blocked + 1))
    [ "$1" = T ] && _bt_stopped=$((_bt_stopped + 1))
    _bt_ticks=$((_bt_ticks + ${{12}} + ${{13}} + ${{14}} + ${{15}}))
  done
  for _bt_file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r "$_bt_file" ] || continue
    while read -r _bt_name _bt_value; do
      [ "$_bt_name" = oom_kill ] && _bt_killed=$_bt_value
    done <"$_bt_file"
  done
  for _bt_folder in /sys/fs/cgroup /sys/fs/cgroup/memory; do
    [ -r "$_bt_folder/memory.stat" ] || continue
    read -r _bt_used <"$_bt_folder/memory.current" ||
      read -r _bt_used <"$_bt_folder/memory.usage_in_bytes"
    read -r _bt_limit <"$_bt_folder/memory.max" ||
      read -r _bt_limit <"$_bt_folder/memory.limit_in_bytes"
    while read -r _bt_name _bt_value; do
      case $_bt_name in inactive_file|total_inactive_file) _bt_dropped=$_bt_value ;; esac
    done <"$_bt_folder/memory.stat"
  done
  [ "$_bt_limit" = max ] && _bt_limit=0
  while read -r _bt_line; do
    for _bt_value in $_bt_line; do
      case $_bt_value in
        rbytes=*) _bt_read=$((_bt_read + ${{_bt_value#rbytes=}})) ;;
        wbytes=*) _bt_written=$((_bt_written + ${{_bt_value#wbytes=}})) ;;
      esac
    done
  done </sys/fs/cgroup/io.stat
  for _bt_file in /dev/nvidia[0-9]*; do
    [ -c "$_bt_file" ] && _bt_gpus=$_bt_gpus${{_bt_file#/dev/nvidia}},
  done
  echo "$_bt_alive $_bt_ticks $_bt_killed $_bt_blocked $_bt_stopped $((_bt_used - _bt_dropped))" \
    "$_bt_limit $_bt_read $_bt_written ${{_bt_gpus:--}}" >&6
}}
_bt_share() {{
  [ -d "$_bt_shared" ] && find "$_bt_shared" '(' {_UNREADABLE} ')' \\
    -exec chgrp {AGENT_USER} {{}} + -exec chmod g+rX {{}} +
}}
_bt_terminate() {{
  for _bt_folder in /proc/[0-9]*; do
    read -r _bt_name <"$_bt_folder/comm" || continue
    case $_bt_name in {"|".join(sorted(PIPE_FILTERS))})
      [ -p "$_bt_folder/fd/0" ] && continue ;;
    esac
    kill -TERM "${{_bt_folder#/proc/}}"
  done
}}
( trap '' HUP INT QUIT TERM PIPE
  while IFS=' ' read -r _bt_name; do
    case $_bt_name in
      {COUNT}) _bt_count ;;
      {SHARE}) _bt_share ;;
      TERM) _bt_terminate ;;
      *) kill "-$_bt_name" -1 ;;
    esac
  done
  kill -TERM -1; sleep 5; kill -KILL -1
) <"$_bt_control/signals" 6>"$_bt_control/counts" >/dev/null 2>&1 &
exec 3<"$_bt_control/orders" 4>"$_bt_control/reports" 5>"$_bt_control/output"
exec </dev/null >/dev/null 2>&1
_bt_decode() {{ _bt_text=$(printf '%b.' "$1"); _bt_text=${{_bt_text%.}}; }}
_bt_decode '\\0141' && test "$_bt_text" = a || exit 1
echo {READY} >&4
while IFS=' ' read -r _bt_verb _bt_text <&3; do
  case $_bt_text in *.) ;; *) continue ;; esac
  _bt_decode "${{_bt_text%.}}"
  case $_bt_verb in
    set) ( eval "$_bt_text" ) && eval "$_bt_text" ;;
    run) /bin/sh -c "$_bt_text" >&5 2>&5 3<&- 4>&- 5>&-
         echo "$?" >&4 ;;
    copy) cp -R "$_bt_text/." . 2>&5
          echo "$?" >&4 ;;
    link) _bt_text=${{_bt_text:-$_bt_home}}
          [ "$_bt_text" = / ] || for _bt_name in "$_bt_text"/* "$_bt_text"/.[!.]*; do
            if [ -e "$_bt_name" ] && [ ! -e "${{_bt_name##*/}}" ] && [ ! -L "${{_bt_name##*/}}" ]
            then ln -s "$_bt_name" . 2>&5 || break
            fi
          done
          echo "$?" >&4 ;;
    share) _bt_share
           echo "$?" >&4 ;;
    end) break ;;
  esac
done
exit 0
"""
"""Its arguments: the folder to start in, empty for the image's own; in a pod, the folder of the
checkpoints, whose files SHARE and `share` let an agent that is another user read. It asks of the
image a POSIX /bin/sh with `printf` and `test`; `copy` needs cp, `link` needs ln, and in a pod,
where the pipes may come later than the container, sleep, find and chmod are used where they are.
`link` without a folder links the image's own WORKDIR.

An order without its last dot was never written to its end, and is not followed. A variable that the
shell does not let anybody set (UID in bash) is tried aside first: it would end the shell.

The listener ignores polite signals, so that a script's `kill 0` does not end it; the kernel spares
the first process. TERM spares filters at the end of a pipe (host.processes.terminate_groups). Not
`kill -s TERM -1`, whose last word dash takes for an option."""


@dataclass(frozen=True)
class ContainerRecord:
    """`pid`, `began`: of the container's first process, as this machine counts."""

    id: str
    pid: int
    workdir: str = ""
    """WORKDIR of the image."""
    began: int = 0
    address: str = ""
    """On its network, as this machine reaches it; "" without a network."""
    gpus: tuple[str, ...] = ()
    """Devices that it has, as the machine numbers them."""

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.began)


class Pipes(NamedTuple):
    """Descriptors of a node's control folder, each for reading and writing, none blocking."""

    orders: int
    signals: int
    counts: int
    reports: int
    output: int


def create_pipes(folder: NodeFolder) -> None:
    """Create the folder and its pipes for a container whose first process is root. OSError."""
    folder.control.mkdir()
    folder.control.chmod(0o700)
    for name in PIPE_NAMES:
        os.mkfifo(folder.control / name, 0o600)


def open_pipes(folder: NodeFolder, *, only_container_reports: bool = False) -> Pipes:
    """Open all pipes for reading and writing. OSError.

    No reader sees end-of-file while a process holds them. `only_container_reports`: open `reports`
    only for reading, so that it ends with the container's first process.
    """
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    modes = dict.fromkeys(PIPE_NAMES, os.O_RDWR)
    if only_container_reports:
        modes["reports"] = os.O_RDONLY
    return Pipes(*(os.open(folder.control / name, modes[name] | flags) for name in PIPE_NAMES))


def format_order(verb: str, text: str = "") -> bytes:
    """Return one line for `orders`.

    >>> format_order("run", "echo 'a b'")
    b'run echo\\\\0040\\\\0047a\\\\0040b\\\\0047.\\n'
    """
    return verb.encode() + b" " + _ESCAPED_BYTE.sub(_octal, os.fsencode(text)) + b".\n"


def format_set_variable(name: str, value: str) -> bytes:
    """Return the order to export a variable. ValueError for a name that a shell does not allow."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not a valid name of a shell variable")
    quoted = value.replace("'", "'\\''")
    return format_order("set", f"export {name}='{quoted}'")


def signal_all(pipes: Pipes, number: signal.Signals) -> None:
    """Send a signal to every process in the container but its first one and the listener."""
    signal_listener(pipes, number.name.removeprefix("SIG"))


def signal_listener(pipes: Pipes, word: str) -> None:
    """Send the listener the name of a signal, COUNT or SHARE."""
    try:
        os.write(pipes.signals, f"{word}\n".encode())
    except BlockingIOError:
        return  # no reader: the container has ended or is ending


def kill_container(pipes: Pipes) -> None:
    """Kill the processes in the container, and ask its first process to exit."""
    signal_all(pipes, signal.SIGKILL)
    with suppress(BlockingIOError):
        # The writer of the previous line may have been killed before its end.
        os.write(pipes.orders, b"\n" + format_order("end"))


def _octal(found: re.Match[bytes]) -> bytes:
    return b"\\0%03o" % found[0][0]
