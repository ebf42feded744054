"""Attacks on the pipes to the agent, and on readers of the logs."""

from .attack import Attack

PIPES = (
    Attack("reports-flood", "cat /dev/zero > $PIPES/reports; sleep 100000", alone=True),
    Attack(
        "reports-forged",
        "for line in 0 0 0 ready 7 -1 99999 '' x; do echo $line > $PIPES/reports; done; sleep 100000",
        alone=True,
    ),
    Attack(
        "pipes-flood",
        """
        trap '' TERM; up; cat $PIPES/orders > /dev/null & cat $PIPES/signals > /dev/null &
        cat /dev/zero > $PIPES/signals & yes STOP > $PIPES/signals & yes 'run x.' > $PIPES/orders &
        cat $PIPES/output > /dev/null & yes > $PIPES/output
        while :; do sleep 1; done
        """,
        endless=True,
        alone=True,
    ),
    Attack(
        "orders-forged",
        """
        printf 'set PATH=.\\n' > $PIPES/orders; printf 'run id > /tmp/x.\\n' > $PIPES/orders
        printf 'copy /etc.\\n' > $PIPES/orders; printf 'end.\\n' > $PIPES/orders
        up; head -c 100000 /dev/zero | tr '\\0' x > $PIPES/orders; while :; do sleep 1; done
        """,
        endless=True,
        alone=True,
    ),
    Attack("pipes-closed", "exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&-; sleep 1; echo nothing; true"),
    Attack(
        "pipes-resized",
        python="""
        for name in ("orders", "signals", "reports", "output"):
            pipe = f"/.prefect-bt/{name}"
            attempt(f"chmod {name}", os.chmod, pipe, 0)
            attempt(f"chown {name}", os.chown, pipe, 1000, 1000)
            attempt(f"rename {name}", os.rename, pipe, pipe + "x")
            attempt(f"unlink {name}", os.unlink, pipe)
            attempt(f"link {name}", os.link, pipe, C / name)
            held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            for size in (4096, 1 << 20, 4096):
                with suppress(OSError):
                    fcntl.fcntl(held, 1031, size)
        attempt("new", os.mkfifo, "/.prefect-bt/new")
        """,
        impossible=True,
    ),
    Attack(
        "reader-that-never-reads",
        """
        (setsid sh -c 'while :; do sleep 1; done' &)
        yes filled | head -c 3000000; (trap '' TERM; sleep 100000) & exit 3
        """,
        alone=True,
    ),
    Attack(
        "line-without-end",
        "head -c $((10000000 * SCALE)) /dev/zero | tr '\\0' x; echo; head -c 1000000 /dev/zero | tr '\\0' y",
        alone=True,
    ),
    Attack(
        "binary-log",
        """
        head -c 200000 /dev/urandom; echo; printf '\\0\\0\\0\\n\\377\\376\\n\\355\\240\\200\\n'
        i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %03o $i)x"; i=$((i+1)); done; echo
        """,
    ),
    Attack(
        "escapes-in-logs",
        """
        printf '\\033]0;title\\007\\n\\033]52;c;cm0gLXJm\\007\\n\\033[2J\\033[H\\n\\033[8mhidden\\n\\033]8;;http://x\\033\\\\link\\n'
        printf 'a\\rb\\n\\033P+q\\033\\\\\\n\\302\\2332J\\n\\342\\200\\256txt\\n\\033[6n\\033[c\\n\\033c\\n\\016\\n\\010\\010x\\n\\033#8\\n'
        """,
    ),
    Attack(
        "forged-log-lines",
        """
        echo '[prefect-bt] node is done: exit code 0'
        echo '[prefect-bt] checkpoints synced; committed by this node: forged'
        echo '[2026-11-20 14:00:00]: (prefect-bt) Job submitted; a Prefect flow run will start it.'
        printf 'x\\r[2026-11-20 14:00:00]: (rank-7) forged\\n'
        printf 'x\\342\\200\\250[2026-11-20 14:00:00]: (rank-7) forged\\302\\205(rank-8) forged\\013y\\n'
        printf '1732100000000000000 {"timestamp": "1", "message": "forged", "replica": "rank-7"}\\n'
        echo "Training job $BT_TRAINING_JOB_ID completed successfully."; echo CRITICAL x; exit 9
        """,
        alone=True,
    ),
)
