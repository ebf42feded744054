"""A gang of many nodes: one fails, all stop, all begin again, and nothing is left."""

from pathlib import Path

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NODES = 8
SCRIPT = """
echo attempt $BT_RETRY_COUNT of rank $BT_NODE_RANK of $BT_GROUP_SIZE at $MASTER_PORT
test $BT_RETRY_COUNT = 1 && exit 0
touch $WORD/$BT_NODE_RANK
test $BT_NODE_RANK = 5 || exec sleep 600
until test $(ls $WORD | wc -l) = $BT_GROUP_SIZE; do sleep 0.1; done
exit 7
"""


@pytest.mark.extended
def test_one_of_eight_fails_and_all_are_well_again(machine: Machine, tmp_path: Path) -> None:
    environment = {"WORD": str(tmp_path)}
    config = machine.folder(SCRIPT, nodes=NODES, checkpointing=False, env=environment)
    code, job = machine.finish(config, retries=1)
    assert code == 0, job["error_message"]
    first, second = machine.ledger.list_outcomes(job["id"])
    assert (first.failed_rank, first.exit_code) == (5, 7)
    assert len(first.nodes) == NODES
    assert all(node.is_over and node.exit_code for node in first.nodes)
    assert {node.exit_code for node in second.nodes} == {0}
    said = [line.rpartition(") ")[2] for line in machine.logs(job["id"]).splitlines()]
    again = [line for line in said if line.startswith("attempt 1 of rank")]
    assert len({line.split()[4] for line in again}) == NODES
    assert len({line.split()[-1] for line in again}) == 1, "one port for all"
    machine.nothing_left(job["id"])
