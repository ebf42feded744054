"""The command line of a shell in the container of a node. It asks of the image what commands need.

No secret passes through the Engine or the API server: the script takes the values from the
environment of a process of the commands, for which it needs bash.
"""

from __future__ import annotations

from typing import Final

from prefect_bt.host.terminal import ShellRequest

_COPY_SECRETS: Final = """\
names=$1; shift
for file in /proc/[0-9]*/environ; do
  found=
  while IFS= read -r -d "" variable; do
    case ",$names," in *",${variable%%=*},"*) export "$variable"; found=1 ;; esac
  done 2>/dev/null <"$file"
  [ -z "$found" ] || break
done
exec "$@"
"""
_ENTER: Final = """\
copy=$1 names=$2; shift 2
cd "${BT_WORKING_DIR:-.}" || exit 126
if [ $# = 0 ]; then
  if [ -x /bin/bash ]; then set -- /bin/bash; else set -- /bin/sh; fi
fi
[ "$names" != - ] || exec "$@"
if [ ! -x /bin/bash ]; then
  echo "The image has no /bin/bash, which --with-secrets needs." >&2
  exit 126
fi
exec /bin/bash -c "$copy" bash "$names" "$@"
"""


def build_shell_command(request: ShellRequest) -> list[str]:
    """Return the command line of the request in a container with the variables of the plan."""
    names = ",".join(request.secret_variables) if request.with_secrets else ""
    names = names or "-"  # a server may drop an empty argument
    return ["/bin/sh", "-c", _ENTER, "sh", _COPY_SECRETS, names, *request.command]
