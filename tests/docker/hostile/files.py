"""Attacks by special files, sizes, times and numbers of files."""

from .attack import Attack

FILES = (
    Attack(
        "pipe-swap",
        python="""
        one = checkpoint("swapped")
        (one / "x").write_bytes(b"mine" * 1000)
        os.mkfifo(one / "y")
        up()
        exchange_forever(one / "x", one / "y")
        """,
        endless=True,
    ),
    Attack(
        "pipes-by-name",
        """
        checkpoint pipes; cd $C/pipes
        mkfifo config.json model.safetensors model.safetensors.index.json trainer_state.json x.pt
        cd $C; mkfifo config.json latest .metadata; mkdir checkpoint-7; mkfifo checkpoint-7/x
        """,
    ),
    Attack(
        "sockets",
        python="""
        one = checkpoint("sockets")
        for place in (one, C, P):
            os.chdir(place)
            socket.socket(socket.AF_UNIX).bind(f"listening-{JOB}.json")
        """,
    ),
    Attack(
        "device-nodes",
        """
        for d in $C $S $P $W $HF /tmp; do
          mknod $d/disk b 8 0 && echo DONE; mknod $d/vda b 254 0 && echo DONE
          mknod $d/mem c 1 1 && echo DONE; mknod $d/zero c 1 5 && echo DONE
        done
        true
        """,
        impossible=True,
    ),
    Attack(
        "sparse-terabyte",
        python="""
        (C / "sparse").mkdir()
        for name, size in (("x", 2**40), ("y", 2**36), ("z", 2**62)):
            (C / "sparse" / name).touch()
            with suppress(OSError):
                os.truncate(C / "sparse" / name, size)
        checkpoint("sparse")
        """,
        refuses=("sparse",),
    ),
    Attack(
        "grows-for-ever",
        """
        checkpoint grows; up
        while :; do dd if=/dev/zero bs=16k count=1 >> $C/grows/x.bin 2>/dev/null; sleep 0.05; done
        """,
        endless=True,
    ),
    Attack(
        "truncated-for-ever",
        python="""
        one = checkpoint("cut")
        up()
        while True:
            (one / "x").write_bytes(os.urandom(100_000))
            time.sleep(random.random())
            os.truncate(one / "x", 10)
            (one / "y").write_bytes(os.urandom(10_000))
            time.sleep(random.random() / 5)
            (one / "y").unlink()
            (one / "y").mkdir()
            time.sleep(random.random() / 5)
            (one / "y").rmdir()
        """,
        endless=True,
    ),
    Attack(
        "changed-behind-times",
        python="""
        one = checkpoint("mapped")
        (one / "x").write_bytes(b"0" * 65536)
        os.utime(one / "x", ns=(10**18, 10**18))
        up()
        with open(one / "x", "r+b") as file, mmap.mmap(file.fileno(), 65536) as memory:
            for n in itertools.count():
                memory[n % 65536] = n % 256
                if not n % 1000:
                    os.utime(one / "x", ns=(10**18, 10**18))
                    time.sleep(0.01)
        """,
        endless=True,
    ),
    Attack(
        "times",
        python="""
        for n, when in enumerate((-1, -(10**18), 0, 10**18 * 9, 2**63 - 1, -(2**63), 2**33 * 10**9)):
            with suppress(OSError, OverflowError):
                os.utime(checkpoint(f"time-{n}") / "a.json", ns=(when, when))
                os.utime(C / f"time-{n}", ns=(when, when))
        """,
        keeps=("honest", "time-0", "time-3"),
    ),
    Attack(
        "write-lease",
        python="""
        one = checkpoint("leased")
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        held = os.open(one / "a.json", os.O_RDWR)
        with suppress(OSError):
            fcntl.fcntl(held, 1024, fcntl.F_WRLCK)
        fcntl.lockf(held, fcntl.LOCK_EX)
        fcntl.flock(held, fcntl.LOCK_EX)
        up()
        while True:
            time.sleep(0.01)
            with suppress(OSError):
                fcntl.fcntl(held, 1024, fcntl.F_WRLCK)
        """,
        endless=True,
    ),
    Attack(
        "closed-to-all",
        python="""
        one = checkpoint("closed")
        (one / "sub").mkdir()
        (one / "sub/x").write_text("x")
        for flag in (0x10, 0x20):
            with open(one / "a.json") as file:
                attempt("chattr", fcntl.ioctl, file, 0x40086602, struct.pack("l", flag))
        for name in ("a.json", "sub/x", "sub", ""):
            os.chmod(one / name, 0)
        os.mkdir(P / f"closed-{JOB}", 0)
        """,
        keeps=("honest", "closed"),
        impossible=True,
    ),
    Attack(
        "names",
        python="""
        names = [b"a\\nb", b"\\x1b]0;title\\x07", b"\\x1b[2J", b"\\xff\\xfe", b"-rf", b"--help", b"x" * 255,
            b" ", b"*", b"~", b"...", b"$(touch " + MARK.encode() + b")", b"`id`", b"%2e%2e%2f", b"%00",
            b"a\\\\b", b"..\\\\..\\\\x", "\\u202egnp.exe".encode(), "e\\u0301".encode(), "\\u00e9".encode(),
            b"CON", b"a:b", b"\\r", b"\\t", b"[red]x[/red]", b"<script>", b"'; DROP TABLE", b"#", b"?",
            b"a=b&c", b"{0}", b"%s%n", b"con.json", b"__proto__", b"\\xed\\xa0\\x80", b"\\x7f", b"\\x9b2J"]
        for n, name in enumerate(names):
            folder = os.fsencode(checkpoint(f"named-{n}"))
            with suppress(OSError):
                Path(os.fsdecode(folder + b"/" + name)).write_text("x")
            with suppress(OSError):
                os.mkdir(os.fsencode(C) + b"/" + name)
                Path(os.fsdecode(os.fsencode(C) + b"/" + name + b"/a.json")).write_text("{}")
        """,
        keeps=("honest", "named-4", "named-6"),
    ),
    Attack(
        "our-names",
        """
        for n in .prefect-bt-restore.tmp .prefect-bt-0 manifest.json 000000-000001.json rank-0 \\
            rank-1 objects manifests deleting.json withdrawn honest%2Fa.json .git .metadata
        do mkdir -p "$C/$n"; echo '{}' > "$C/$n/a.json"; done
        mkdir -p $C/rank-1/checkpoint-5 $C/a/b/c/d; echo '{}' > $C/rank-1/checkpoint-5/a.json
        echo '{}' > $C/stop.json; echo '{"state": "COMPLETED"}' > $C/status.json
        """,
    ),
    Attack(
        "many-files",
        """
        mkdir $C/many; i=0
        while [ $i -lt $((2000 * SCALE)) ]; do i=$((i+1)); echo $i > $C/many/$i; done
        """,
        keeps=("honest", "many"),
        alone=True,
    ),
    Attack(
        "many-checkpoints",
        "for i in $(seq 1 $((100 * SCALE))); do checkpoint many-$i; done",
        keeps=("honest", "many-1", "many-100"),
        alone=True,
    ),
    Attack(
        "deep-folders",
        python="""
        (C / "deep").mkdir()
        for place in (C / "deep", S, P, W):
            os.chdir(place)
            for _ in range(1500):
                with suppress(FileExistsError):
                    os.mkdir("deeper")
                os.chdir("deeper")
            Path("x.json").write_text("{}")
        checkpoint("deep")
        """,
        refuses=("deep",),
    ),
    Attack(
        "renamed-while-scanned",
        python="""
        up()
        for n in itertools.count():
            one = checkpoint(f"moving-{n % 5}")
            (one / "sub").mkdir(exist_ok=True)
            (one / "sub/x").write_bytes(os.urandom(1000))
            time.sleep(random.random())
            with suppress(OSError):
                os.rename(one, C / f"moved-{n % 3}")
            if random.random() < 0.5:
                shutil.rmtree(C / f"moved-{n % 3}", ignore_errors=True)
        """,
        endless=True,
    ),
    Attack(
        "everything-is-removed",
        """
        rm -rf $W/* $C/* $S/* $P/* $HF/* $CACHE/* $PIPES/* /etc /root /tmp /mnt 2>/dev/null
        up; while :; do sleep 0.1; done
        """,
        keeps=(),
        endless=True,
        alone=True,
    ),
)
