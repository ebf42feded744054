"""A spot job gives up its place to a dedicated one, and goes on later where it was."""

import pytest

from .conftest import until
from .queue_machine import WAITS, Make, make_machine

__all__ = ["make_machine"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# A checkpoint every second, and a last one when it is told to end; goes on with the newest.
TRAIN = """
say() { echo "$NAME $1 $(date +%s.%N) $BT_RETRY_COUNT" >> "$SHARED/times"; }
save() {
    mkdir -p "$BT_CHECKPOINT_DIR/checkpoint-$step"
    echo "{}" > "$BT_CHECKPOINT_DIR/checkpoint-$step/state.json"
}
step=$(ls "$BT_CHECKPOINT_DIR" | sed 's/checkpoint-//' | sort -n | tail -1)
echo "attempt $BT_RETRY_COUNT goes on from ${step:-nothing}"
step=${step:-0}
trap 'say term; step=$((step + 1)); save; echo $step > "$SHARED/last"; exit 143' TERM
say start
until test -e "$SHARED/go-$NAME"; do
    step=$((step + 1))
    save
    for _ in 1 2 3 4 5; do sleep 0.2; done
done
say end
"""


def test_a_spot_job_is_stopped_for_a_dedicated_one_and_continues(make_machine: Make) -> None:
    machine = make_machine(gpus=2)
    spot = machine.start("spot", "--spot", script=TRAIN, gpus=2)
    until(lambda: len(machine.checkpoints(spot)) > 1, seconds=30, what="two checkpoints")
    run = machine.run_in_prefect(spot)
    dedicated = machine.start("dedicated", script=WAITS, gpus=1)
    machine.wait_for_start("dedicated")
    machine.wait(spot, "PENDING")
    waiting = machine.wait_in_prefect(spot, "AwaitingConcurrencySlot")
    assert (waiting["id"], waiting["state"]["type"]) == (run["id"], "SCHEDULED")
    until(lambda: not machine.job_processes(spot), seconds=10, what="no process of the spot job")
    assert machine.queued() == [spot]
    last = (machine.shared / "last").read_text().strip()
    assert f"checkpoint-{last}" in machine.checkpoints(spot)
    (first,) = machine.view(spot)["attempts"]
    assert (first["cause"], first["failure"]) == ("preempted", None)
    machine.release("dedicated", "spot")
    machine.wait(dedicated, "COMPLETED")
    machine.wait(spot, "COMPLETED")
    assert f"attempt 1 goes on from {last}" in machine.logs(spot)
    assert [(one.name, one.word, one.attempt) for one in machine.times()] == [
        ("spot", "start", 0),
        ("spot", "term", 0),
        ("dedicated", "start", 0),
        ("dedicated", "end", 0),
        ("spot", "start", 1),
        ("spot", "end", 1),
    ]
    assert machine.wait_in_prefect(spot, "Completed")["id"] == run["id"]
    machine.check_idle()
