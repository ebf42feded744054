"""A gang loses a rank's part of the newest step, after it deleted an old one: what it gets back."""

from pathlib import Path

import pytest

from .conftest import Machine, until

pytestmark = [pytest.mark.integration, pytest.mark.extended]

# DeepSpeed's layout: rank 0 has the model and `latest`, each rank its optimizer.
SCRIPT = """
cd $BT_CHECKPOINT_DIR
if test $BT_RETRY_COUNT = 1; then
  echo rank $BT_NODE_RANK has $(ls)
  test $BT_NODE_RANK = 1 || { echo resume $(cat latest); ls -d $(cat latest); }
  exit 0
fi
save() {
  mkdir global_step$1
  echo "[$1]" > global_step$1/rank_$BT_NODE_RANK.json
}
save 5
until test -e $WORD/go; do sleep 0.1; done
rm -r global_step5
save 10
if test $BT_NODE_RANK = 0; then
  save 20
  printf global_step20 > latest
  touch $WORD/saved
  sleep 600
fi
until test -e $WORD/saved; do sleep 0.1; done
exit 1
"""


def test_a_gang_resumes_from_the_step_that_all_ranks_committed(
    machine: Machine, tmp_path: Path
) -> None:
    config = machine.folder(SCRIPT, nodes=2, env={"WORD": str(tmp_path)})
    job_id = machine.push(config, "--retries", "1")["id"]

    def is_committed() -> bool:
        found = machine.view(job_id)["checkpoints"]
        return [one["size_bytes"] for one in found] == [len("[5]\n") * 2]

    until(is_committed, seconds=60, what="global_step5 of both ranks")
    (tmp_path / "go").touch()
    machine.wait(job_id, "COMPLETED")
    logs = machine.logs(job_id)
    assert len(machine.view(job_id)["attempts"]) == 2
    assert "rank 0 has global_step10 latest" in logs
    assert "rank 1 has global_step10" in logs
    assert "resume global_step10" in logs
    assert "latest names global_step10 now instead of global_step20" in logs
    assert "because rank 1 did not commit a part of it: global_step20" in logs
    assert "because the training had deleted them: global_step5" in logs
    document = machine.view(job_id)["checkpoints"]
    states = {one["checkpoint_id"]: one["sync_status"] for one in document}
    complete = dict.fromkeys((".", "global_step5", "global_step10"), "COMPLETE")
    assert states == {**complete, "global_step20": None}
    machine.nothing_left(job_id)
