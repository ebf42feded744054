"""Teams: who owns a project of a name, whose cache and secrets its jobs get, and what is said."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.attempts.lifecycle import plan_attempt, resolve_job_secrets
from prefect_bt.cli.app import main
from prefect_bt.credentials.secrets import EnvironmentSecrets, InMemorySecrets, resolve_secrets
from prefect_bt.definitions import CacheConfig, SecretReference, TrainingProject
from prefect_bt.errors import AmbiguousError, PlanError, WeightsError
from prefect_bt.host.job_lock import JobLock
from prefect_bt.jobs import submit
from prefect_bt.jobs.delete import delete_project
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import make_id, project_index_key, project_record_key
from prefect_bt.planning.plan import GangPlan, VolumeKind
from prefect_bt.planning.planner import plan_weights_sources
from prefect_bt.settings import Settings
from prefect_bt.training_cache.usage import summarize_cache
from prefect_bt.weights.sources.checkpoint import CheckpointSource
from prefect_bt.weights.sources.protocol import SourceRequest
from tests.jobs.records import small_project


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return open_ledger()


def defined(name: str = "llm", team: str | None = None, secret: str = "") -> TrainingProject:
    variables = {"TOKEN": SecretReference(name=secret)} if secret else {}
    cache = CacheConfig(enabled=True)
    return small_project(name, team=team, cache_config=cache, environment_variables=variables)


OPTIONS = SubmitOptions(substrate="local", secret_sources=(EnvironmentSecrets(),))


def pushed(ledger: Ledger, folder: Path, project: TrainingProject) -> tuple[JobRecord, GangPlan]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "train.py").touch()
    claim = JobLock(Settings().state_dir)
    accepted = submit.create_job(ledger, project, source_dir=work, options=OPTIONS, lock=claim)
    claim.release_and_remove()  # a lock that is left says that a process died with the job
    return accepted


def team_cache(plan: GangPlan) -> str:
    return next(v.key for v in plan.nodes[0].volumes if v.kind is VolumeKind.TEAM_CACHE)


@pytest.mark.slow
def test_two_teams_own_a_project_of_the_same_name(ledger: Ledger, tmp_path: Path) -> None:
    alone, _ = pushed(ledger, tmp_path, defined(team="research"))
    # Without a team, a push goes to the only team that has a project of the name.
    again, plan = pushed(ledger, tmp_path, defined())
    assert (again.project_id, team_cache(plan)) == (alone.project_id, "research")
    other, plan = pushed(ledger, tmp_path, defined(team="sales"))
    assert other.project_id != alone.project_id
    assert team_cache(plan) == "sales"
    common, plan = pushed(ledger, tmp_path, defined(team=""))
    assert team_cache(plan) == "default"
    assert pushed(ledger, tmp_path, defined(team="default"))[0].project_id == common.project_id
    assert len({alone.project_id, other.project_id, common.project_id}) == 3
    assert len(ledger.projects.list()) == 3
    for record, team in ((again, "research"), (other, "sales"), (common, "")):
        site = open_job_context(ledger, record)
        assert team_cache(plan_attempt(site, 0)) == (team or "default")
        document = job_document(ledger, record)["training_project"]
        assert document == {"id": record.project_id, "name": "llm", "team_name": team or None}

    with pytest.raises(AmbiguousError, match="--team default or --team research or --team sales"):
        pushed(ledger, tmp_path, defined())
    # A repeated job stays with the project it was of.
    copy = submit.write_job(ledger, defined(team="sales"), OPTIONS, None, old=other)
    assert copy.project_id == other.project_id


@pytest.mark.slow
def test_an_ambiguous_name_lists_the_ids_of_the_projects(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = pushed(ledger, tmp_path, defined(team="research"))
    (tmp_path / "state" / "cache" / "projects" / one.project_id).mkdir(parents=True)
    assert ledger.projects.get("llm").id == one.project_id
    two, _ = pushed(ledger, tmp_path, defined(team=""))
    told = f"{two.project_id} (the default team), {one.project_id} (team research)"
    for words in (
        ["view", "--project", "llm"],
        ["cache", "summarize", "llm"],
        ["delete", "--project", "llm", "--yes"],
        ["checkpoints", "list", "--project", "llm"],
    ):
        assert main(words) != 0
        shown = capsys.readouterr().err.replace("\n", " ")
        assert told in shown
        assert "Give the id instead of the name." in shown
    (weights,) = plan_weights_sources(["bt://llm"])
    with pytest.raises(WeightsError, match="Give the id instead"):
        CheckpointSource(SourceRequest(weights, store=ledger.store)).list_files()
    assert ledger.projects.get("llm", prefer="research").id == one.project_id
    with pytest.raises(AmbiguousError):
        ledger.projects.get("llm", prefer="sales")

    assert main(["view", "--project", one.project_id, "-o", "json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["training_jobs"]
    assert job["training_project"]["team_name"] == "research"
    assert main(["view", "--job-id", one.id]) == 0
    assert "Team" in (shown := capsys.readouterr().out) and "research" in shown
    assert main(["view"]) == 0
    assert "Team" in (shown := capsys.readouterr().out) and "research" in shown

    # What is deleted is the one that was named; the other is found by the name alone then.
    ledger.append_event(one.id, JobState.STOPPED)
    delete_project(ledger, one.project_id, settings=Settings())
    assert not summarize_cache(tmp_path / "state", one.project_id).entries
    assert ledger.projects.get("llm").id == two.project_id
    assert [project.id for project in ledger.projects.list()] == [two.project_id]
    back, _ = pushed(ledger, tmp_path, defined(team="research"))
    assert back.project_id not in {one.project_id, two.project_id}


def test_a_store_of_a_release_without_teams_is_read(ledger: Ledger, tmp_path: Path) -> None:
    old = ProjectRecord(make_id(), "llm", 1.0, "research")
    ledger.store.put(project_record_key(old.id), json.dumps(old.__dict__).encode())
    ledger.store.put(project_index_key("llm"), json.dumps({"project_id": old.id}).encode())
    assert pushed(ledger, tmp_path, defined())[0].project_id == old.id
    # In those releases a job of another team's push got that team's cache.
    record, _ = pushed(ledger, tmp_path, defined())
    strayed = replace(record, definition={**record.definition, "team_name": "sales"})
    assert team_cache(plan_attempt(open_job_context(ledger, strayed), 0)) == "research"
    assert pushed(ledger, tmp_path, defined(team=""))[0].project_id != old.id


def test_many_pushes_of_many_teams_make_one_project_each(ledger: Ledger) -> None:
    teams = ["", "a", "b / c", "x" * 400] * 4
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda team: ledger.projects.ensure("llm", team=team), teams))
    assert {project.team_name for project in made} == set(teams)
    assert len({project.id for project in made}) == 4
    assert len(ledger.projects.list()) == 4
    assert set(ledger.projects.list()) == set(made)
    stored = {info.key for info in ledger.store.list("training_projects")}
    assert stored == {project_record_key(project.id) for project in made}


def test_a_teams_secret_wins_over_the_common_one(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = defined(team="ML Research", secret="hf-token")
    with pytest.raises(PlanError) as caught:
        pushed(ledger, tmp_path, project)
    for place in ("PREFECT_BT_SECRET_ML_RESEARCH_HF_TOKEN", "PREFECT_BT_SECRET_HF_TOKEN"):
        assert place in str(caught.value)
    monkeypatch.setenv("PREFECT_BT_SECRET_HF_TOKEN", "common")
    record, _ = pushed(ledger, tmp_path, project)
    site = open_job_context(ledger, record)
    site.secret_sources = (EnvironmentSecrets(),)
    assert resolve_job_secrets(site) == {"hf-token": "common"}
    monkeypatch.setenv("PREFECT_BT_SECRET_ML_RESEARCH_HF_TOKEN", "theirs")
    assert resolve_job_secrets(site) == {"hf-token": "theirs"}
    # Also where the common one lies in a source that is asked earlier.
    blocks = InMemorySecrets({"hf-token": "common"}, "blocks")
    sources = (blocks, EnvironmentSecrets())
    assert resolve_secrets(["hf-token"], sources, team="ML Research") == {"hf-token": "theirs"}
    assert resolve_secrets(["hf-token"], sources) == {"hf-token": "common"}
    named = InMemorySecrets({"ml-research-hf-token": "block"}, "blocks")
    assert resolve_secrets(["hf-token"], [named], team="ML Research") == {"hf-token": "block"}
