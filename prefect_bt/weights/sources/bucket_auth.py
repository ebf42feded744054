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
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.obstore_identity import (
    CredentialProvider,
    assume_role,
    exchange_google_token,
    use_web_identity,
)
from prefect_bt.weights.sources.protocol import CONNECT_TIMEOUT, STALL_TIMEOUT
from prefect_bt.weights.sources.secret_fields import (
    DEFAULT_REGION,
    parse_azure_secret,
    parse_google_secret,
    parse_s3_secret,
)

ANONYMOUS: Final = "no credentials"
REGIONS: Final = {"r2": "auto"}
S3_LIKE: Final = ("s3", "r2", "cw")
MAX_RETRIES: Final = 2
"""How often obstore repeats a request by itself; what is longer is for download/context.py."""


@dataclass(frozen=True)
class AccessMethod:
    """`open` gives obstore's store at the bucket's root; `name` is for sentences."""

    name: str
    open: Callable[[], Any]
    has_credentials: bool = True
    """Whether there are credentials; if not, looking for them may fail like a network does."""


@dataclass(frozen=True)
class BucketLocation:
    """object_store.urls.Address, as far as it is needed here."""

    scheme: str
    bucket: str
    prefix: str
    account: str
    endpoint: str
    virtual_hosted: bool
    stall_timeout: float = STALL_TIMEOUT


def parse_location(plan: WeightsPlan) -> BucketLocation:
    """The bucket that the source names; WeightsError when it names none."""
    addresses: Any = import_module("prefect_bt.object_store.urls")
    try:
        found = addresses.parse_bucket_url(plan.source)
    except StoreError as error:
        raise WeightsError(error.message, source=plan.source, next_step=error.next_step) from None
    return BucketLocation(
        found.scheme,
        found.bucket,
        found.prefix,
        found.account,
        found.endpoint,
        found.virtual_hosted,
    )


def list_access_methods(
    plan: WeightsPlan,
    place: BucketLocation,
    secret: str | None,
    *,
    stall_timeout: float = STALL_TIMEOUT,
) -> list[AccessMethod]:
    """In the order to try. WeightsError for a secret that is not what its kind is to be.

    `stall_timeout` in seconds: what is opened gives up a connection that is silent for so long.
    """
    place = replace(place, stall_timeout=stall_timeout)
    region = {"region": plan.auth.region}
    match plan.auth.method:
        case "AWS_ASSUME_ROLE":
            return [_role_method("the assumed role", place, lambda: assume_role(plan), region)]
        case "AWS_OIDC":
            return [
                _role_method(
                    "the web identity's role", place, lambda: use_web_identity(plan), region
                )
            ]
        case "GCP_OIDC":
            return [
                _role_method(
                    "the workload identity", place, lambda: exchange_google_token(plan), {}
                )
            ]
        case _ if secret is not None:
            return [
                _access_method(
                    f"the secret {plan.secret!r}", place, _secret_options(plan, place, secret)
                )
            ]
        case _:
            return [
                *_ambient_methods(plan, place),
                _access_method(ANONYMOUS, place, {"skip_signature": True}),
            ]


def _role_method(
    name: str, place: BucketLocation, get: Callable[[], CredentialProvider], options: dict[str, Any]
) -> AccessMethod:
    return AccessMethod(name, lambda: _connect(place, {**options, "credential_provider": get()}))


def _secret_options(plan: WeightsPlan, place: BucketLocation, secret: str) -> dict[str, Any]:
    """Through a provider where there is one: what else the environment holds is not mixed in."""
    if place.scheme == "gs":
        return {"service_account_key": parse_google_secret(plan, secret)}
    if place.scheme == "azure":
        found = parse_azure_secret(plan, secret)
        if "account_key" in found:
            return {
                "credential_provider": lambda: _static_credentials(access_key=found["account_key"])
            }
        return {"credential_provider": lambda: _static_credentials(sas_token=found["sas_token"])}
    keys = parse_s3_secret(plan, secret)

    def provide() -> dict[str, Any]:
        return _static_credentials(
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            token=keys.session_token or None,
        )

    return {"credential_provider": provide, "region": keys.region}


def _static_credentials(**fields: str | None) -> dict[str, Any]:
    return {**fields, "expires_at": None}


def _ambient_methods(plan: WeightsPlan, place: BucketLocation) -> Iterator[AccessMethod]:
    name = "the credentials of this machine"
    if place.scheme not in S3_LIKE:
        yield AccessMethod(name, lambda: _connect(place, {}), has_credentials=False)
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
    yield _access_method(name, place, options)


def _access_method(name: str, place: BucketLocation, options: dict[str, Any]) -> AccessMethod:
    return AccessMethod(name, lambda: _connect(place, options))


def _connect(place: BucketLocation, options: dict[str, Any]) -> Any:
    store: Any = import_module("obstore.store")
    options = {
        "client_options": {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT),
            "read_timeout": timedelta(seconds=place.stall_timeout),
            "timeout": timedelta(days=7),
        },
        "retry_config": {
            "max_retries": MAX_RETRIES,
            "retry_timeout": timedelta(seconds=2 * place.stall_timeout),
        },
        **options,
    }
    if place.scheme == "gs":
        return store.GCSStore(place.bucket, **options)
    if place.scheme == "azure":
        return store.AzureStore(place.bucket, account_name=place.account, **options)
    options |= _endpoint_options(place)
    options["region"] = REGIONS.get(place.scheme) or options.get("region") or DEFAULT_REGION
    return store.S3Store(place.bucket, **options)


def _endpoint_options(place: BucketLocation) -> dict[str, Any]:
    if not place.endpoint:
        return {}
    if place.virtual_hosted:
        host = place.endpoint.replace("://", f"://{place.bucket}.", 1)
        return {"endpoint": host, "virtual_hosted_style_request": True}
    return {"endpoint": place.endpoint}
