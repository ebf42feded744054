"""Attacks by processes, memory, descriptors and signals."""

from .attack import Attack

PROCESSES = (
    Attack(
        "fork-bomb",
        """
        bomb() { while :; do (sleep 300) & done; }
        up; bomb 2>/dev/null & bomb 2>/dev/null & while :; do sleep 1; done
        """,
        endless=True,
        alone=True,
    ),
    Attack("memory-hog", "tail /dev/zero; tail /dev/zero; true", alone=True),
    Attack(
        "shared-memory-hog",
        python="""
        with suppress(OSError), open("/dev/shm/x", "wb") as file:
            for _ in range(4000):
                file.write(b"x" * 65536)
        held = libc.memfd_create(b"x", 0)
        for _ in range(4000):
            os.write(held, b"x" * 65536)
        """,
        alone=True,
    ),
    Attack(
        "descriptors",
        python="""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
        held = []
        with suppress(OSError):
            while True:
                ends = os.pipe()
                with suppress(OSError):
                    fcntl.fcntl(ends[0], 1031, 1 << 20)
                held += ends
        print(len(held), "descriptors")
        up()
        time.sleep(10**6)
        """,
        endless=True,
        alone=True,
    ),
    Attack(
        "inotify-of-the-user",
        python="""
        held = []
        while (one := libc.inotify_init1(0)) >= 0:
            held.append(one)
        print(len(held), "instances")
        checkpoint("blind")
        up()
        time.sleep(10**6)
        """,
        keeps=("honest", "blind"),
        endless=True,
        alone=True,
    ),
    Attack(
        "kernel-quotas",
        python="""
        import resource
        contexts = []
        for _ in range(2000):
            context = ctypes.c_ulong(0)
            if libc.syscall(206, 64, ctypes.byref(context)) != 0:
                break
            contexts.append(context.value)
        terminals = []
        with suppress(OSError):
            while len(terminals) < 3000:
                terminals.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
        shared = [libc.shmget(0, 4096, 0o1600) for _ in range(3000)]
        queues = [libc.msgget(0, 0o1600) for _ in range(3000)]
        print(len(contexts), len(terminals), len(shared), len(queues))
        up()
        time.sleep(10**6)
        """,
        endless=True,
        alone=True,
    ),
    Attack("kill-all", "kill -9 -1; kill -9 1; sleep 1; kill -9 -1", alone=True),
    Attack(
        "stop-all",
        """
        trap '' TERM INT HUP QUIT; up
        for n in 1 2 3 6 10 12 13 14 15 17 18 20 21 22 28; do kill -$n 1; done
        kill -SEGV 1; kill -STOP 1; kill -STOP -1; while :; do sleep 0.1; done
        """,
        endless=True,
        alone=True,
    ),
    Attack(
        "ignores-the-stop",
        """
        trap '' TERM INT HUP; n=0
        while [ $n -lt 20 ]; do n=$((n+1)); setsid sh -c 'trap "" TERM HUP; while :; do sleep 1; done' & done
        up; while :; do sleep 0.1; done
        """,
        endless=True,
    ),
    Attack(
        "daemons",
        "for i in 1 2 3 4 5; do setsid sh -c 'trap \"\" TERM HUP; sleep 100000' & done; true",
    ),
    Attack(
        "forged-processes",
        python="""
        names = ("python3 -m prefect_bt.node_agent guard", "prefect-bt agent", f"{STATE}/jobs/{E['OTHER']}")
        for name in names:
            if os.fork() == 0:
                given = {**E, "BT_TRAINING_JOB_ID": E["OTHER"], "PREFECT_BT_STATE_DIR": STATE}
                os.setsid()
                os.execve("/bin/sleep", ["sleep", "1"] if name else [], {**given, "PREFECT_BT_MARK": name})
        time.sleep(2)
        """,
    ),
    Attack("ends-by-a-signal", "kill -SEGV $$; kill -KILL $$; exit 137", alone=True),
    Attack(
        "raised-limits",
        python="""
        import resource
        attempt("nofile", libc.prlimit, 0, 7, struct.pack("QQ", 2**40, 2**40), None)
        attempt("nproc", libc.prlimit, 1, 6, struct.pack("QQ", 2**63, 2**63), None)
        attempt("nice", libc.setpriority, 0, 0, -20)
        attempt("nice of all", libc.setpriority, 2, 0, -20)
        attempt("fifo", libc.sched_setscheduler, 0, 1, struct.pack("i", 50))
        attempt("realtime i/o", libc.syscall, 251, 1, 0, (1 << 13) | 0)
        for pid in ("self", "1"):
            attempt("oom", Path(f"/proc/{pid}/oom_score_adj").write_text, "-1000")
        """,
        impossible=True,
    ),
)
