"""The application: the routes of all resources, and what holds for each of them."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from prefect_bt.errors import StoreError
from prefect_bt.http_api.access import ApiSite
from prefect_bt.http_api.errors import install_error_handlers
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.middleware import (
    BodyLimit,
    ForwardProxy,
    LenientRequests,
    PatientReads,
    UnreadBodies,
)
from prefect_bt.http_api.routes import (
    files,
    graphql,
    jobs,
    logs,
    metrics,
    pages,
    projects,
    queue,
    service,
    sessions,
    teams,
)
from prefect_bt.http_api.uploads import routes as uploads_routes
from prefect_bt.http_api.uploads.bucket_uploads import open_bucket_uploads
from prefect_bt.http_api.uploads.staging import Uploads
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.settings import Settings

_ROUTERS: Final = (
    projects.router,
    jobs.router,
    queue.router,
    teams.router,
    sessions.router,
    graphql.router,
    files.router,
    logs.router,
    metrics.router,
    uploads_routes.router,
    service.router,
    pages.router,
)


def open_site() -> ApiSite:
    """Return the site of the settings' store. StoreError."""
    ledger, settings = open_ledger(), Settings()
    try:
        StoreClock(ledger.store).now()
    except StoreError as error:
        raise StoreError(
            f"The API cannot write to its store {ledger.store.url}: {error}",
            url=ledger.store.url,
            next_step="Check PREFECT_BT_STORE and the rights on it.",
        ) from error
    bucket = open_bucket_uploads(ledger.store, settings.upload_role)
    uploads = Uploads(settings.state_dir, bucket=bucket)
    uploads.remove_stale()
    return ApiSite(ledger, settings, ApiKeys(ledger.store), uploads)


def create_app(site: ApiSite) -> FastAPI:
    """Return the ASGI application of a site."""
    app = FastAPI(
        title="prefect-bt Training API",
        version="1",
        docs_url=None,
        redoc_url=None,
        strict_content_type=False,  # clients send JSON without a type
    )
    app.state.site, app.state.is_stopping = site, lambda: False
    install_error_handlers(app)
    for router in _ROUTERS:
        app.include_router(router)
    app.add_api_route("/health", lambda: "ok", include_in_schema=False)
    app.add_middleware(PatientReads)
    app.add_middleware(BodyLimit)
    app.add_middleware(LenientRequests)
    app.add_middleware(ForwardProxy)
    app.add_middleware(UnreadBodies)
    return app
