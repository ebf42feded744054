"""Files of metrics as an agent writes them: nodes that train, with and without GPUs."""

import math
import random
from pathlib import Path

from prefect_bt.job_metrics.node_metrics import (
    GpuFacts,
    MetricsWriter,
    NodeFacts,
    TrainingPoint,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import metrics_prefix

GIB = 1 << 30


def write_node_file(
    path: Path,
    *,
    start: float,
    samples: int,
    interval: float = 5.0,
    gpus: int = 0,
    first_step: int = 0,
    steps_per_sample: int = 2,
    trains: bool = True,
    disk: float = 0.4,
) -> None:
    """A sample each `interval`; the training reports its loss with each of them.

    `disk`: part of the disk that is in use.
    """
    noise = random.Random(int(start) + gpus)
    cards = tuple(GpuFacts(index, "H100", 80 * GIB) for index in range(gpus))
    writer = MetricsWriter(path, NodeFacts(8.0, 64 * GIB, interval, cards))
    for n in range(samples):
        at = start + n * interval
        sample: dict[str, float | None] = {
            "cpu": 3.5 + noise.uniform(-1, 1),
            "memory": min(20 + n / 50, 60) * GIB,
            "memory_available": 30 * GIB,
            "disk": disk * 500 * GIB,
            "disk_total": 500 * GIB,
            "disk_free": (1 - disk) * 500 * GIB,
            "received": noise.uniform(1, 3) * 1e6,
            "sent": noise.uniform(0, 1) * 1e6,
            "read": noise.uniform(0, 50) * 1e6,
            "written": noise.uniform(0, 20) * 1e6,
            "lines": 2,
            "stopped": 0,
            "blocked": 0,
        }
        for card in cards:
            sample |= {
                f"gpu{card.index}_utilization": 0.9 + noise.uniform(-0.1, 0.1),
                f"gpu{card.index}_memory": (60 + card.index) * GIB,
                f"gpu{card.index}_temperature": 60 + noise.randint(0, 9),
                f"gpu{card.index}_power": 550 + noise.randint(-50, 50),
                f"gpu{card.index}_ecc_errors": 0,
            }
        writer.write_sample(at, sample)
        step = first_step + n * steps_per_sample
        if trains:
            values = {
                "loss": 2 + 8 * math.exp(-step / 200) + noise.gauss(0, 0.05),
                "learning_rate": 3e-4 * min(1, step / 100) * (1 - step / 1e5),
                "grad_norm": 1 + abs(noise.gauss(0, 0.3)),
            }
            writer.write_point(TrainingPoint(at, step, values))
    writer.close()


def archive(ledger: Ledger, record: JobRecord, path: Path, *, attempt: int = 0, rank: int = 0):
    """Put the file into the store, as when its node has ended."""
    prefix = metrics_prefix(record.project_id, record.id, attempt)
    ledger.store.put(f"{prefix}/rank-{rank}", path.read_bytes())
