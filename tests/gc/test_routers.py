"""The router of a deployment goes when nothing can ever answer behind it, and not before."""

import os
from collections.abc import Iterator

import pytest

from prefect_bt.gc.findings import OrphanKind
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger, Revision
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import ensure_router, stop_router
from tests.gc.conftest import Site

NAME = "stories"


@pytest.fixture
def router(site: Site) -> Iterator[RouterFolder]:
    ensure_router(site.state, NAME, environment=os.environ)
    yield RouterFolder.for_deployment(site.state, NAME)
    stop_router(site.state, NAME, grace=1)


def revision(site: Site, state: JobState) -> None:
    deployments = DeploymentLedger(site.ledger)
    deployments.ensure_deployment(NAME)
    made = deployments.add_revision(
        NAME, lambda n: Revision(n, 1.0, "transformers", "full", ("a",), (("abc1234", "a"),))
    )
    deployments.bind_job(NAME, made.number, site.job(state))


def test_it_goes_with_the_last_revision(site: Site, router: RouterFolder) -> None:
    revision(site, JobState.COMPLETED)
    revision(site, JobState.FAILED)
    (found,) = [one for one in site.look().orphans if one.kind is OrphanKind.ROUTER]
    assert "no revision" in found.reason
    found.remove()
    assert not router.is_running()
    assert not [one for one in site.look().orphans if one.kind is OrphanKind.ROUTER]


def test_it_stays_while_one_runs_and_is_looked_at_again(site: Site, router: RouterFolder) -> None:
    revision(site, JobState.COMPLETED)
    (found,) = [one for one in site.look().orphans if one.kind is OrphanKind.ROUTER]
    revision(site, JobState.RUNNING)
    assert not [one for one in site.look().orphans if one.kind is OrphanKind.ROUTER]
    found.remove()
    assert router.is_running(), "somebody deployed since"


def test_one_that_the_store_does_not_know_is_left_alone(site: Site, router: RouterFolder) -> None:
    assert router.is_running()
    assert not [one for one in site.look().orphans if one.kind is OrphanKind.ROUTER]
