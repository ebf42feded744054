"""Pages of jobs and models for browsers, at the addresses that clients print, and their login.

The cookie of a login shows these pages and nothing else: every other route needs a key.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from html import escape
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, quote, urlencode

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from prefect_bt.errors import NotFoundError, PrefectBtError
from prefect_bt.file_server.signed_urls import compute_signature, is_signature_valid
from prefect_bt.http_api.access import (
    ApiSite,
    Caller,
    ForbiddenError,
    SiteDep,
    UnauthorizedError,
    find_any_job,
    find_job,
    find_project,
)
from prefect_bt.http_api.errors import error_response
from prefect_bt.job_index.entries import Document
from prefect_bt.job_service.log_reader import LogWindow
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.rollout.revisions import deployment_document
from prefect_bt.text.control_characters import escape_controls, remove_colors
from prefect_bt.text.quantities import format_size, format_utc

COOKIE: Final = "prefect-bt-login"
_SECONDS: Final = 12 * 3600
_MAX_LINES: Final = 500
_MAX_JOBS: Final = 50
_REFRESH_SECONDS: Final = "5"
_LOCAL: Final = re.compile(r"/[^/\\\s\x00-\x1f\x7f][^\\\s\x00-\x1f\x7f]*")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    ),
    # Not no-referrer: with it, a browser hides the origin of our own forms from us, too.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">{refresh}<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }}
table {{ border-collapse: collapse }}
td, th {{ padding: .2rem 1.5rem .2rem 0; text-align: left; vertical-align: top }}
pre {{ border: 1px solid #8888; overflow: auto; padding: .8rem; white-space: pre-wrap }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>"""
_FORM: Final = """<form method="post" action="/login?{query}">
<p><label>API key <input name="key" type="password" required autofocus></label>
<button>Log in</button></p></form>"""
_LOG_OUT: Final = '<form method="post" action="/logout"><p><button>Log out</button></p></form>'


class _Html(str):
    """Text that is HTML already."""


class _PageRoute(APIRoute):
    """Answers errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_as_page(request: Request) -> Response:
            try:
                return await answer(request)
            except UnauthorizedError:
                query = urlencode({"next": quote(request.scope["path"])})
                return RedirectResponse(f"/login?{query}", 302, _HEADERS)
            except PrefectBtError as error:
                status = error_response(error).status_code
                return _page("Error", f"<p>{_text(str(error))}</p>", status=status)

        return answer_as_page


router = APIRouter(include_in_schema=False, route_class=_PageRoute)


def _require_own_form(request: Request) -> None:
    """Raise ForbiddenError for a form of a page of another origin."""
    sent_by = request.headers.get("sec-fetch-site", "none")
    host = request.headers.get("host", "")
    origin = request.headers.get("origin", f"http://{host}")
    if sent_by not in {"same-origin", "none"} or origin.partition("://")[2] != host:
        raise ForbiddenError("A page of another address sent this form. Open /login here.")


def _find_viewer(request: Request, site: SiteDep) -> Caller:
    """Return the caller that logged in; raise UnauthorizedError."""
    key_id, _, signed = request.cookies.get(COOKIE, "").partition(".")
    expires, _, signature = signed.partition(".")
    name, secret = f"login/{key_id}", site.uploads.secret
    if is_signature_valid(secret, name, expires=expires, signature=signature, now=time.time()):
        record = site.keys.find_active(key_id)
        if record is not None:
            return Caller(record.id, record.name, record.team)
    raise UnauthorizedError("Log in first.")


Viewer = Annotated[Caller, Depends(_find_viewer)]


@router.get("/login")
def show_login(next: str = "") -> Response:
    """Show a form for the key."""
    return _login_form(next)


@router.post("/login", dependencies=[Depends(_require_own_form)])
def log_in(
    request: Request, site: SiteDep, body: Annotated[bytes, Body()] = b"", next: str = ""
) -> Response:
    """Set the cookie of the key, and go on to the page."""
    given = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0].strip()
    record = site.keys.verify(given)
    if record is None:
        return _login_form(next, "This is no valid API key.", status=401)
    # A redirect could end at Prefect's UI, and a form may lead to no other address.
    refresh = f"0; url={next}" if _LOCAL.fullmatch(next) else ""
    answer, expires = (
        _page("Logged in", _LOG_OUT, refresh=refresh),
        str(int(time.time()) + _SECONDS),
    )
    signature = compute_signature(site.uploads.secret, f"login/{record.id}", expires)
    value, is_https = f"{record.id}.{expires}.{signature}", request.url.scheme == "https"
    answer.set_cookie(COOKIE, value, secure=is_https, httponly=True, samesite="strict")
    return answer


@router.post("/logout", dependencies=[Depends(_require_own_form)])
def log_out() -> Response:
    """Remove the cookie."""
    answer = _login_form("", "You are logged out.")
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/training/{project_id}")
def show_project(project_id: str, site: SiteDep, viewer: Viewer) -> Response:
    """Show the newest jobs of a project."""
    project, index = find_project(project_id, site, viewer), StoreJobs(site.ledger).open_index()
    jobs = index.list_documents(index.list_entries(project.id)[: -_MAX_JOBS - 1 : -1])
    rows = [{**one, "job": _job_link(project.id, one["id"])} for one in jobs]
    table = _table(rows, "job", "name", "current_status", "created_at")
    return _page(f"Project {project.name}", table + _LOG_OUT)


@router.get("/training/{project_id}/logs/{job_id}")
def show_job(project_id: str, job_id: str, site: SiteDep, viewer: Viewer) -> Response:
    """Show a job: its page in Prefect's UI if it has one, else one of ours."""
    project = find_project(project_id, site, viewer)
    record = find_job(project, find_any_job(job_id, site, viewer))
    runs = site.ledger.runs.list(record.id)
    if runs and runs[-1].url:
        return RedirectResponse(runs[-1].url, 302, _HEADERS)
    job = StoreJobs(site.ledger).open_index().read(record.id)
    job["instance"] = job["instance_type"]["name"]
    job["project"] = _link(project.name, f"/training/{project.id}")
    for one in job["checkpoints"]:
        one |= {"name": one["checkpoint_id"], "size": format_size(one["size_bytes"])}
    columns = ("project", "name", "current_status", "created_at", "instance", "error_message")
    body = f"""{_table([job], *columns)}<h2>Checkpoints</h2>
        {_table(job["checkpoints"], "name", "checkpoint_type", "size", "created_at")}
        <h2>Log</h2><pre>{_show_log(site, record)}</pre>{_LOG_OUT}"""
    has_ended = JobState(job["current_status"]).terminal
    return _page(f"Job {job_id}", body, refresh="" if has_ended else _REFRESH_SECONDS)


@router.get("/models/{model_id}")
@router.get("/models/{model_id}/logs/{version}")
def show_model(model_id: str, site: SiteDep, viewer: Viewer, version: str = "") -> Response:
    """Show a deployment with its revisions, or with one of them."""
    try:
        model = deployment_document(site.ledger, model_id)
        revisions = [one for one in model["revisions"] if version in {"", str(one["number"])}]
        jobs = [find_any_job(one["job_id"], site, viewer) for one in revisions if one["job_id"]]
    except NotFoundError:
        raise NotFoundError("model", model_id) from None  # names no model of another team
    if not revisions or not (jobs or viewer.team is None):
        raise NotFoundError("model", model_id)
    links = {one.id: _job_link(one.project_id, one.id) for one in jobs}
    rows = [{**one, "job": links.get(one["job_id"])} for one in reversed(revisions)]
    tables = _table([model], "status", "address") + _table(rows, "number", "state", "job", "at")
    return _page(f"Model {model_id}", tables + _LOG_OUT)


def _show_log(site: ApiSite, record: JobRecord) -> str:
    """Return the newest lines as HTML, the newest last."""
    newest = site.job_readers.get(record).log.read(LogWindow(limit=_MAX_LINES))
    documents = [json.loads(entry.document) for entry in reversed(newest)]
    lines = [(int(one["timestamp"]), one["message"]) for one in documents]
    return "\n".join(_text(f"{format_utc(at / 1e9)}  {message}") for at, message in lines)


def _job_link(project_id: str, job_id: str) -> str:
    return _link(job_id, f"/training/{project_id}/logs/{job_id}")


def _link(text: str, path: str) -> str:
    return _Html(f'<a href="{escape(path)}">{_text(text)}</a>')


def _login_form(next_path: str, sentence: str = "", *, status: int = 200) -> HTMLResponse:
    query = urlencode({"next": next_path if _LOCAL.fullmatch(next_path) else ""})
    form = _FORM.format(query=escape(query))
    return _page("Log in", f"<p>{sentence}</p>{form}", status=status)


def _page(title: str, body: str, *, status: int = 200, refresh: str = "") -> HTMLResponse:
    meta = f'<meta http-equiv="refresh" content="{escape(refresh)}">' if refresh else ""
    return HTMLResponse(_PAGE.format(title=_text(title), body=body, refresh=meta), status, _HEADERS)


def _table(rows: Iterable[Document], *columns: str) -> str:
    """Return a table of these values of the rows."""
    heads = (f"<th>{column.replace('_', ' ').capitalize()}</th>" for column in columns)
    cells = ("".join(f"<td>{_text(row[column])}</td>" for column in columns) for row in rows)
    return "<table><tr>" + "<tr>".join(["".join(heads), *cells]) + "</table>"


def _text(value: Any) -> str:
    if isinstance(value, _Html):
        return value
    return escape(escape_controls(remove_colors("" if value is None else str(value))))
