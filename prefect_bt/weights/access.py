"""With which credentials a bucket is read: one way when auth is given, else what may work.

Without auth: the credentials that this machine has (variables, profiles, SSO, roles, workload
identity), then none at all, for buckets that anybody may read. Nothing is reached before a store
that was opened here is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from prefect_bt.errors import StoreError, WeightsError
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.credentials import (
    DEFAULT_REGION,
    read_azure_secret,
    read_google_secret,
    read_s3_secret,
)
from prefect_bt.weights.identity import (
    Provider,
    assume_role,
    exchange_google_token,
    use_web_identity,
)
from prefect_bt.weights.source import CONNECT_SECONDS, STALL_SECONDS

NOBODY: Final = "no credentials"
REGIONS: Final = {"r2": "auto"}
S3_LIKE: Final = ("s3", "r2", "cw")
TRIES: Final = 2
"""How often obstore repeats a request by itself; what is longer is for fetching.py."""


@dataclass(frozen=True)
class Way:
    """`open` gives obstore's store at the bucket's root; `name` is for sentences."""

    name: str
    open: Callable[[], Any]
    certain: bool = True
    """Whether there are credentials; if not, looking for them may fail like a network does."""


@dataclass(frozen=True)
class Place:
    """objects.addresses.Address, as far as it is needed here."""

    scheme: str
    bucket: str
    prefix: str
    account: str
    endpoint: str
    in_host: bool
    stall: float = STALL_SECONDS


def find_place(plan: WeightsPlan) -> Place:
    """The bucket that the source names; WeightsError when it names none."""
    addresses: Any = import_module("prefect_bt.objects.addresses")
    try:
        found = addresses.parse_address(plan.source)
    except StoreError as error:
        raise WeightsError(error.what, source=plan.source, next_step=error.next_step) from None
    return Place(
        found.scheme, found.bucket, found.prefix, found.account, found.endpoint, found.in_host
    )


def ways_in(
    plan: WeightsPlan, place: Place, secret: str | None, *, stall: float = STALL_SECONDS
) -> list[Way]:
    """In the order to try. WeightsError for a secret that is not what its kind is to be.

    `stall` in seconds: what is opened gives up a connection that is silent for so long.
    """
    place = replace(place, stall=stall)
    region = {"region": plan.auth.region}
    match plan.auth.method:
        case "AWS_ASSUME_ROLE":
            return [_role("the assumed role", place, lambda: assume_role(plan), region)]
        case "AWS_OIDC":
            return [_role("the web identity's role", place, lambda: use_web_identity(plan), region)]
        case "GCP_OIDC":
            return [_role("the workload identity", place, lambda: exchange_google_token(plan), {})]
        case _ if secret is not None:
            return [_way(f"the secret {plan.secret!r}", place, _explicit(plan, place, secret))]
        case _:
            return [*_ambient(plan, place), _way(NOBODY, place, {"skip_signature": True})]


def _role(name: str, place: Place, get: Callable[[], Provider], options: dict[str, Any]) -> Way:
    return Way(name, lambda: _connect(place, {**options, "credential_provider": get()}))


def _explicit(plan: WeightsPlan, place: Place, secret: str) -> dict[str, Any]:
    """Through a provider where there is one: what else the environment holds is not mixed in."""
    if place.scheme == "gs":
        return {"service_account_key": read_google_secret(plan, secret)}
    if place.scheme == "azure":
        found = read_azure_secret(plan, secret)
        if "account_key" in found:
            return {"credential_provider": lambda: _lasting(access_key=found["account_key"])}
        return {"credential_provider": lambda: _lasting(sas_token=found["sas_token"])}
    keys = read_s3_secret(plan, secret)

    def provide() -> dict[str, Any]:
        return _lasting(
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            token=keys.session_token or None,
        )

    return {"credential_provider": provide, "region": keys.region}


def _lasting(**fields: str | None) -> dict[str, Any]:
    return {**fields, "expires_at": None}


def _ambient(plan: WeightsPlan, place: Place) -> Iterator[Way]:
    name = "the credentials of this machine"
    if place.scheme not in S3_LIKE:
        yield Way(name, lambda: _connect(place, {}), certain=False)
        return
    faults: Any = import_module("botocore.exceptions")
    try:
        session: Any = import_module("boto3.session").Session()
        known = session.get_credentials()
    except faults.BotoCoreError as error:
        raise WeightsError(
            f"{plan.source}: the AWS settings of this machine cannot be used "
            f"({type(error).__name__}).",
            source=plan.source,
            next_step="Check AWS_PROFILE and the files in ~/.aws, or give auth.",
        ) from None
    if known is None:
        return
    provider: Any = import_module("obstore.auth.boto3").Boto3CredentialProvider(session)
    options = {
        "credential_provider": provider,
        "region": session.region_name or DEFAULT_REGION,
    }
    yield _way(name, place, options)


def _way(name: str, place: Place, options: dict[str, Any]) -> Way:
    return Way(name, lambda: _connect(place, options))


def _connect(place: Place, options: dict[str, Any]) -> Any:
    store: Any = import_module("obstore.store")
    options = {
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=place.stall),
            "timeout": timedelta(days=7),
        },
        "retry_config": {
            "max_retries": TRIES,
            "retry_timeout": timedelta(seconds=2 * place.stall),
        },
        **options,
    }
    if place.scheme == "gs":
        return store.GCSStore(place.bucket, **options)
    if place.scheme == "azure":
        return store.AzureStore(place.bucket, account_name=place.account, **options)
    options |= _host(place)
    options["region"] = REGIONS.get(place.scheme) or options.get("region") or DEFAULT_REGION
    return store.S3Store(place.bucket, **options)


def _host(place: Place) -> dict[str, Any]:
    if not place.endpoint:
        return {}
    if place.in_host:
        host = place.endpoint.replace("://", f"://{place.bucket}.", 1)
        return {"endpoint": host, "virtual_hosted_style_request": True}
    return {"endpoint": place.endpoint}
