"""Run commands of the installed truss, which this program imports once; each runs in a fork.

clients/bin/python truss_commands.py    reads {"arguments", "output", "folder"} a line from
                                        standard input, and writes the exit code of each
"""

import json
import os
import sys
import traceback

from truss.cli.cli import truss_cli  # pyright: ignore


def _run(arguments: list[str], output: str, folder: str) -> None:
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(source, number)
    os.chdir(folder)
    sys.argv = ["truss", *arguments]
    try:
        truss_cli()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


for line in sys.stdin:
    call = json.loads(line)
    if (child := os.fork()) == 0:
        _run(call["arguments"], call["output"], call["folder"])
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
