"""From `prefect-bt push --substrate docker` to the first line inside the container.

`python benchmarks/start_in_docker.py [-o json] [--runs N] [--image NAME]`. The peer is what anybody
would pay: an empty Prefect flow (benchmarks/start.py; ours has begun one task more by then), and
after it `docker run` of the same image until its first line is printed. Both are fresh
processes against the same warm local server and Engine, taken in turn. The image is here already;
without --image it is made of the machine's static busybox.

The goal is on the difference: at most one second.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import start
from figures import Goal, alone, as_json, as_table, busy, paired

MADE = "prefect-bt-bench/busybox:1"
CONFIG = start.CONFIG.replace('base_image="none"', "base_image={image!r}")


def make_image() -> str:
    """One program under all of its names."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("No busybox: apt-get install busybox-static, or name an --image.")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in names.split():
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                tar.addfile(link)
    words = ["docker", "import", "--change", "ENV PATH=/bin", "-", MADE]
    subprocess.run(words, input=buffer.getvalue(), check=True, capture_output=True)
    return MADE


def docker_run(image: str) -> float:
    """Seconds until the container's own first line."""
    began = time.time()
    words = ["docker", "run", "--rm", "--entrypoint", "/bin/sh", image, "-c", "echo FIRST-LINE"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip() == "FIRST-LINE"
        return time.time() - began


def measure(root: Path, environment: dict[str, str], image: str) -> tuple[float, float, float]:
    """Ours, an empty flow, `docker run`; seconds."""
    return start.ours(root, environment), start.peer(root, environment), docker_run(image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--image")
    given = parser.parse_args()
    note = f"{os.cpu_count()} cores, {busy():.0%} of them busy before the first run"
    image = given.image or make_image()
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        root = Path(folder)
        environment = {**start.prepare(root), "PREFECT_BT_SUBSTRATE": "docker"}
        (root / "work" / "config.py").write_text(CONFIG.format(image=image))
        up, down = start.cli("up", "--no-worker"), start.cli("down")
        subprocess.run(up, env=environment, check=True, capture_output=True)
        try:
            seen = [measure(root, environment, image) for _ in range(given.runs + 1)][1:]
        finally:
            subprocess.run(down, env=environment, check=False, capture_output=True)
    flow, run = (statistics.median(one[which] for one in seen) for which in (1, 2))
    rows = [
        paired(
            "docker_first_line",
            "s",
            [(ours, flow + run) for ours, flow, run in seen],
            peer="an empty flow, then docker run",
            extra={"empty_flow_s": flow, "docker_run_s": run},
        ),
        alone(
            "docker_more_s",
            "s",
            [ours - flow - run for ours, flow, run in seen],
            what="ours less both of them",
            goal=Goal("<= 1.0", lambda more: more <= 1.0),
        ),
    ]
    if given.output == "json":
        print(as_json(rows))
    else:
        print(as_table(rows), f"* {note}", sep="\n")


if __name__ == "__main__":
    main()
