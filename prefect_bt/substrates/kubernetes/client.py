"""Client of a Kubernetes API server: requests, watches, and errors with a Cause.

The `kubernetes` package finds the server and logs in. Objects are decoded JSON.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.refusals import classify_refusal

SUBSTRATE_NAME: Final = "kubernetes"
CONNECT_TIMEOUT: Final = 10.0
READ_TIMEOUT: Final = 30.0
RETRY_DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Delays in seconds before each retry of a request."""
REFUSAL_DELAYS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)
"""Delays in seconds before each retry of a request that a starting API server may have refused."""
_QUICK_REFUSALS: Final = 2
"""Refusals of a request before the API server is asked whether it is ready."""
MAX_RETRY_AFTER: Final = 15.0
"""Longest `Retry-After` of a server that is respected, in seconds."""
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_NOT_READY: Final = frozenset({401, 403, 500, 503})
_JSON: Final = "application/json"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_CONTENT_TYPES: Final = {"PATCH": "application/merge-patch+json"}

Query = Mapping[str, str | int]


class ClusterError(SubstrateError):
    """Error of a request. `status`: the HTTP status; 0 if no server answered."""

    def __init__(self, message: str, *, status: int = 0, next_step: str, cause: Cause) -> None:
        self.status = status
        super().__init__(message, substrate=SUBSTRATE_NAME, next_step=next_step, cause=cause.value)


def store_error(error: StoreError, what: str) -> SubstrateError:
    """Return the error for a store that does not answer. `what`: what failed."""
    return SubstrateError(
        f"{what}: {error.message}",
        substrate=SUBSTRATE_NAME,
        next_step=error.next_step,
        cause=Cause.STORE_FAILED,
    )


class ClusterClient:
    """Client that connects at its first request. Safe to use from several threads."""

    def __init__(  # noqa: PLR0913 (settings of a client)
        self,
        settings: ClusterSettings,
        *,
        server: str = "",
        sleep: Callable[[float], None] = time.sleep,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        refusal_delays: Sequence[float] = REFUSAL_DELAYS,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        """`server`: required address of the API server; "" accepts that of the kubeconfig."""
        self._retry_delays, self._refusal_delays = retry_delays, refusal_delays
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._settings, self._expected, self._sleep = settings, server, sleep
        self._connecting = threading.Lock()
        self._configuration: Any = None
        self._pool: Any = None
        self._namespace, self._context = settings.namespace, settings.context
        self._authority = ""
        self._has_succeeded = False

    @property
    def configuration(self) -> Any:
        """Return the configuration of the `kubernetes` package. ClusterError."""
        self.connect()
        return self._configuration

    @property
    def server(self) -> str:
        """Return the address of the API server. ClusterError."""
        self.connect()
        return str(self._configuration.host)

    @property
    def authority(self) -> str:
        """Return the certificates that sign the server's; "" for those of the system."""
        self.connect()
        return self._authority

    @property
    def context(self) -> str:
        """Return the name of the kubeconfig's context; "" in a pod. ClusterError."""
        self.connect()
        return self._context

    @property
    def namespace(self) -> str:
        """Return the namespace of the settings, else of the context. ClusterError."""
        self.connect()
        return self._namespace

    def connect_in_background(self) -> None:
        """Import the `kubernetes` package and read the kubeconfig, which takes half a second."""

        def connect() -> None:
            with suppress(SubstrateError):  # the first request raises it
                self.connect()

        threading.Thread(target=connect, name="kubernetes-connect", daemon=True).start()

    def connect(self) -> None:
        """Read the kubeconfig once. ClusterError."""
        with self._connecting:
            if self._pool is None:
                self._load()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Query | None = None,
        action: str = "",
    ) -> Json:
        """Return the object in the answer. Retries when the server is busy or starts. ClusterError.

        A PATCH is a merge patch. `action` is for messages, as in "create Job x".
        """
        action = action or f"{method} {path}"
        delays, refusal_delays = iter(self._retry_delays), iter(self._refusal_delays)
        refusals, had_trouble, is_final = 0, False, False
        while True:
            unsent = False
            try:
                with self._open(method, path, body, query, self._read_timeout) as answer:
                    data, status = answer.read(), int(answer.status)
                    if status < HTTPStatus.BAD_REQUEST:
                        self._has_succeeded = True
                        return _parse_object(action, data)
                    error = _refusal_error(action, status, data)
                    retry_after = _retry_after(answer)
            except _transport_errors() as trouble:
                error, retry_after = self._unreachable_error(trouble), None
                unsent = _is_unsent(trouble)
            pause = None
            if _is_refusal(error):  # also of a POST, because it changed nothing
                refusals, pause = refusals + 1, None if is_final else next(refusal_delays, None)
            elif unsent or _may_repeat(method, error.status):
                had_trouble, pause = True, next(delays, None)
            if pause is None:
                raise error
            self._sleep(pause if retry_after is None else retry_after)
            # A server that was ready before the request had loaded its rules, so it means it.
            # After a success or trouble /readyz proves nothing: another server may answer next.
            is_early = refusals < _QUICK_REFUSALS or had_trouble or self._has_succeeded
            is_final = not is_early and not self._is_starting()

    def _is_starting(self) -> bool:
        """Return whether the API server says that it is not ready.

        Until it has loaded the rules of RBAC it refuses everything, also the question.
        """
        try:
            with self._open("GET", "/readyz", None, None, self._read_timeout) as answer:
                answer.read()
                return int(answer.status) in _NOT_READY
        except _transport_errors():
            return False  # the next request meets the same trouble

    def find(self, path: str, *, action: str = "") -> Json | None:
        """Return the object; None if it does not exist. ClusterError."""
        try:
            return self.request("GET", path, action=action)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def delete(self, path: str, *, query: Query | None = None, action: str = "") -> None:
        """Delete the object, or every object that `query` selects. ClusterError.

        A missing object is not an error.
        """
        try:
            self.request("DELETE", path, query=query, action=action)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    @contextmanager
    def watch(self, path: str, query: Query, *, timeout: float) -> Generator[Generator[Json]]:
        """Yield the events of one watch, until the server ends it. ClusterError.

        `timeout`: seconds without data after which the connection is closed.
        """
        query = {**query, "watch": "1", "allowWatchBookmarks": "true"}
        try:
            with self._open("GET", path, None, query, timeout) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise _refusal_error(f"watch {path}", int(answer.status), answer.read())
                yield _iter_events(answer, f"watch {path}")
        except _transport_errors() as trouble:
            raise self._unreachable_error(trouble) from trouble

    @contextmanager
    def _open(
        self, method: str, path: str, body: Any, query: Query | None, timeout: float
    ) -> Generator[Any]:
        """Send the request; yield the answer before its body is read."""
        self.connect()
        configuration = self._configuration
        headers = {
            "Accept": _JSON,
            "Content-Type": _CONTENT_TYPES.get(method, _JSON),
            "User-Agent": "prefect-bt",
        }
        if token := configuration.get_api_key_with_prefix("BearerToken", "authorization"):
            headers["authorization"] = token
        url = f"{configuration.host.rstrip('/')}{path}"
        limits: Any = import_module("urllib3").Timeout(connect=self._connect_timeout, read=timeout)
        answer = self._pool.request(
            method,
            f"{url}?{urlencode(query)}" if query else url,
            body=None if body is None else json.dumps(body),
            headers=headers,
            timeout=limits,
            preload_content=False,
            retries=False,
        )
        try:
            yield answer
        finally:
            answer.close() if "watch" in (query or {}) else answer.release_conn()

    def _load(self) -> None:
        config: Any = import_module("kubernetes.config")
        client: Any = import_module("kubernetes.client")
        configuration = client.Configuration()
        try:
            if not self._load_kubeconfig(config, configuration):
                config.load_incluster_config(client_configuration=configuration)
                self._namespace = self._namespace or _POD_NAMESPACE.read_text().strip()
            path = configuration.ssl_ca_cert  # a temporary file: `up` may live longer
            self._authority = Path(path).read_text() if path else ""
        except Exception as error:  # the package has no common error for a malformed kubeconfig
            raise ClusterError(
                f"No Kubernetes cluster is configured: {error}.",
                next_step="Set KUBECONFIG to a kubeconfig, or set kubeconfig and context in the "
                "Kubernetes Substrate block. `kubectl cluster-info` should answer.",
                cause=Cause.CONFIGURATION,
            ) from error
        if self._expected and configuration.host != self._expected:
            raise ClusterError(
                f"The job runs in the cluster at {self._expected}, but the kubeconfig points to "
                f"{configuration.host}.",
                next_step="Use the kubeconfig of the cluster in which the job was started.",
                cause=Cause.CONFIGURATION,
            )
        self._namespace = self._namespace or "default"
        self._configuration = configuration
        self._pool = client.ApiClient(configuration).rest_client.pool_manager

    def _load_kubeconfig(self, config: Any, configuration: Any) -> bool:
        """Load the kubeconfig. Return False if there is none and this process runs in a pod."""
        text, context = self._settings.kubeconfig, self._settings.context or None
        source: Any = text or None
        if text.lstrip().startswith("{"):  # the contents, from a credentials block
            source = StringIO(json.dumps({"current-context": context} | json.loads(text)))
        try:
            contexts, current = config.list_kube_config_contexts(source)
        except config.ConfigException:
            if source is None and _POD_NAMESPACE.exists():
                return False
            raise
        self._context = context or current["name"]
        config.load_kube_config(source, context=context, client_configuration=configuration)
        chosen = next(one for one in contexts if one["name"] == self._context)
        self._namespace = self._namespace or chosen["context"].get("namespace", "")
        return True

    def _unreachable_error(self, trouble: Exception) -> ClusterError:
        host = self._configuration.host if self._configuration else "the API server"
        return ClusterError(
            f"The Kubernetes API at {host} does not answer: {trouble}.",
            next_step="Check that `kubectl cluster-info` answers with the same kubeconfig.",
            cause=Cause.LAUNCH_FAILED,
        )


def _parse_object(action: str, data: bytes) -> Json:
    """Return the object in the answer. ClusterError for the page of a proxy."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return cast("Json", found)
    text = data[:200].decode(errors="replace")
    raise ClusterError(
        f"{action}: the answer does not come from a Kubernetes API server: {text}",
        next_step="Check that `kubectl cluster-info` answers with the same kubeconfig.",
        cause=Cause.CONFIGURATION,
    )


def _iter_events(answer: Any, action: str) -> Generator[Json]:
    """Yield the event in each complete line. Raise ClusterError for an error event.

    A last line without a line end is dropped.
    """
    rest = b""
    for data in answer.stream(None, decode_content=False):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                event = cast("Json", json.loads(line))
                if event["type"] == "ERROR":
                    status = event["object"]
                    text = json.dumps(status).encode()
                    raise _refusal_error(action, int(status.get("code", 0)), text)
                yield event


def _refusal_error(action: str, status: int, data: bytes) -> ClusterError:
    """Return the error for a Status object of the server, or for the text of a proxy."""
    try:
        message = str(json.loads(data).get("message") or "")
    except (ValueError, AttributeError):
        message = data[:300].decode(errors="replace")
    refusal = classify_refusal(message, status)
    what = f"Kubernetes did not {action}"
    return ClusterError(
        f"{what}: {message.rstrip('.')}." if message else f"{what} (HTTP {status}).",
        status=status,
        next_step=refusal.remedy,
        cause=refusal.cause,
    )


def _may_repeat(method: str, status: int) -> bool:
    """Return whether to retry.

    A POST that was sent is retried only after 429: it may have created the object otherwise.
    """
    return status == HTTPStatus.TOO_MANY_REQUESTS or (
        method != "POST" and (status == 0 or status in _RETRIED)
    )


def _is_refusal(error: ClusterError) -> bool:
    """Return whether a server that starts may have given this answer to an authorized user."""
    return error.status in {401, 403} and error.cause in {Cause.FORBIDDEN, Cause.LAUNCH_FAILED}


def _retry_after(answer: Any) -> float | None:
    text = str(answer.headers.get("Retry-After", ""))
    return min(float(text), MAX_RETRY_AFTER) if text.isdigit() else None


def _is_unsent(trouble: Exception) -> bool:
    """Return whether no connection came about, as while an API server restarts."""
    errors: Any = import_module("urllib3.exceptions")
    return isinstance(trouble, errors.NewConnectionError | errors.ConnectTimeoutError)


def _transport_errors() -> tuple[type[Exception], ...]:
    errors: Any = import_module("urllib3.exceptions")
    return (errors.HTTPError, OSError)
