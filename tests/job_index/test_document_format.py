"""The fields of a job's document and the format of the documents that are stored."""

from pathlib import Path

from prefect_bt.job_index import entries
from prefect_bt.jobs.job_json import job_document
from tests.cli.conftest import ENDED, Shop

FIELDS = (
    "advice attempts availability_model checkpoint_sync_error checkpoint_sync_status checkpoints "
    "created_at current_status environment_variables error_message events flow_run_id "
    "flow_run_url goodput id image "
    "instance_type max_run_time name node_count only_on priority resources retries run_time "
    "store substrate training training_project training_project_id truss_user_env uncommitted "
    "updated_at uploads user warnings weights"
)


def test_other_fields_need_another_format(tmp_path: Path) -> None:
    """A reader would miss a new field in the documents that are stored already."""
    assert entries.FORMAT == 5, "add the new fields above"
    shop = Shop(str(tmp_path / "store"))
    found = job_document(shop.ledger, shop.job("tiny", *ENDED))
    assert " ".join(sorted(found)) == FIELDS
