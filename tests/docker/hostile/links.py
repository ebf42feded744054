"""Attacks by links: to read or write files that are not the job's."""

from .attack import Attack

LINKS = (
    Attack(
        "link-in-the-root",
        """
        ln -s $HOST/secret $C/config.json; ln -s $HOST/secret $C/model.safetensors
        ln -s $HOST $C/sub; echo '{}' > $C/trainer_state.json
        """,
        refuses=(".", "sub"),
        alone=True,
    ),
    Attack(
        "link-absolute",
        """
        link file $HOST/secret; link folder $HOST
        ln -s $HOST $C/whole
        ln -s $HOST/secret $C/root-file
        """,
        refuses=("file", "folder", "whole"),
    ),
    Attack(
        "link-relative",
        """
        up=..; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do up=$up/..; done
        link up $up$HOST/secret; link above ../../../../id
        link beside ../../../rank-0/../attempt-0/rank-0/plan.json
        """,
        refuses=("up", "beside", "above"),
    ),
    Attack(
        "link-proc",
        """
        n=0
        for to in /proc/self/root$HOST/secret /proc/1/root$HOST/secret /proc/self/cwd/a \\
            /proc/self/fd/0 /dev/fd/3 /dev/stdin /proc/self/environ /proc/self/mem /proc/self/maps \\
            /proc/kcore /dev/zero /dev/random /dev/tty /etc/shadow /root/.ssh/id_rsa
        do n=$((n+1)); link proc-$n $to; done
        """,
        refuses=tuple(f"proc-{n}" for n in range(1, 16)),
    ),
    Attack(
        "link-control",
        """
        for p in orders reports signals output; do link c-$p $PIPES/$p; done
        """,
        refuses=tuple(f"c-{pipe}" for pipe in ("orders", "reports", "signals", "output")),
    ),
    Attack(
        "link-other-job",
        """
        link theirs $STATE/jobs/$OTHER/rank-0/checkpoints
        link log $STATE/jobs/$OTHER/attempt-0/rank-0/log
        link near ../../../../$OTHER/rank-0/checkpoints/step-0
        """,
        refuses=("theirs", "log", "near"),
    ),
    Attack(
        "link-chain",
        """
        ln -s $HOST/secret $S/l-0
        for i in $(seq 1 60); do ln -s $S/l-$((i-1)) $S/l-$i; done
        mkdir $C/chain; ln -s $S/l-20 $C/chain/y; link chain $S/l-60
        """,
        refuses=("chain",),
    ),
    Attack(
        "link-loop",
        """
        checkpoint loop; cd $C/loop; ln -s . here; ln -s .. above; ln -s ../loop again; ln -s me me
        ln -s b a; ln -s a b; ln -s / root; ln -s /mnt mnt; ln -s $C all; ln -s $C/loop/all/loop l
        mkdir d; ln -s ../d d/d; ln -s ../../loop/d d/e
        """,
    ),
    Attack(
        "link-file-exchange",
        python="""
        one = checkpoint("exchanged")
        (one / "x").write_bytes(b"mine" * 1000)
        (one / "y").symlink_to(f"{HOST}/secret")
        up()
        exchange_forever(one / "x", one / "y")
        """,
        endless=True,
    ),
    Attack(
        "link-folder-exchange",
        python="""
        one = checkpoint("exchanged")
        (one / "sub/deep").mkdir(parents=True)
        for name in ("secret", "deep/secret"):
            (one / "sub" / name).write_bytes(b"mine" * 1000)
        (one / "to").symlink_to(HOST)
        (C / "checkpoint-901").mkdir()
        (C / "checkpoint-901/a.json").write_text("{}")
        (S / "to").symlink_to(HOST)
        up()
        while True:
            for _ in range(200):
                exchange(one / "sub", one / "to")
            shutil.rmtree(C / "checkpoint-901", ignore_errors=True)
            (C / "checkpoint-901").symlink_to(HOST)
            time.sleep(0.3 * random.random())
            (C / "checkpoint-901").unlink()
            (C / "checkpoint-901").mkdir()
            (C / "checkpoint-901/a.json").write_text("{}")
            time.sleep(0.6 * random.random())
        """,
        endless=True,
    ),
    Attack(
        "link-before-restore",
        """
        mkdir -p $C/checkpoint-1/sub; echo '{"mine": 1}' | tee $C/checkpoint-1/secret \\
          > $C/checkpoint-1/sub/secret
        exit 1
        """,
        again="""
        cat $C/checkpoint-1/secret
        rm -r $C/checkpoint-1
        ln -s $HOST $C/checkpoint-1; ln -s $HOST $C/.prefect-bt-restore.tmp
        ln -s $HOST/secret $C/honest.tmp; rm -r $C/honest; ln -s $HOST $C/honest
        exit 1
        """,
        keeps=("honest", "checkpoint-1"),
        alone=True,
    ),
    Attack(
        "hard-links",
        """
        checkpoint hard
        ln $PIPES/orders $C/hard/orders && echo DONE; ln /bin/busybox $C/hard/busybox && echo DONE
        ln $W/run.sh $C/hard/run && echo DONE; ln $HOST/secret $C/hard/secret && echo DONE
        ln $C/honest/a.json $C/hard/other-name; ln $C/honest/a.json $C/second-name
        true
        """,
        keeps=("honest", "hard"),
        impossible=True,
    ),
    Attack(
        "setuid-programs",
        python="""
        one = checkpoint("programs")
        for name in ("su", "sg"):
            (one / name).write_bytes(Path("/bin/busybox").read_bytes()[:4096])
            os.chmod(one / name, 0o6777)
        os.chmod(one, 0o7777)
        for name in ("security.capability", "trusted.x", "security.ima"):
            attempt(name, os.setxattr, one / "su", name, b"\\1\\0\\0\\2" + b"\\xff" * 16)
        with suppress(OSError):
            os.setxattr(one / "su", "user.x", b"x" * 2000)
        """,
        keeps=("honest", "programs"),
        impossible=True,
    ),
)
