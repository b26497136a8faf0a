"""The operators' HTTP API, thin over `operations`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, TypeVar
from uuid import UUID

from fastapi import FastAPI, Query, Request, Response, status
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.exceptions import HTTPException
from uuid_utils.compat import uuid7

from paidonce import __version__
from paidonce.domain.events import EventStatus
from paidonce.domain.payments import PaymentStatus
from paidonce.engine.linking import User
from paidonce.errors import PaidonceError
from paidonce.operations import MAX_PAGE, Operations
from paidonce.telemetry import logger
from paidonce.views import EventDetail, EventView, PaymentView, SubscriptionView
from paidonce.web.auth import Operator, ProblemError, Reader, Verbs
from paidonce.web.problems import INTERNAL, Problem, problem_of

log = logger(__name__)

T = TypeVar("T")


Text = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
"""Text that the database can hold."""


class Page(BaseModel, Generic[T]):
    """Part of a list. `next_cursor` asks for what follows; null at the end."""

    items: list[T]
    next_cursor: str | None = None


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str


class NewUser(BaseModel):
    """Says that the address was verified: payments made under it are this user's."""

    model_config = ConfigDict(extra="forbid")
    email: Text


class Link(BaseModel):
    """Whose payment it is; give one."""

    model_config = ConfigDict(extra="forbid")
    user_id: UUID | None = None
    email: Text | None = None


Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": ProblemBody, "content": {"application/problem+json": {}}}
    for code in (400, 401, 403, 404, 409, 503)
}


def operators_api(operations: Operations) -> FastAPI:
    """The application for everything that is not a delivery."""
    api = FastAPI(
        title="Paidonce", version=__version__, docs_url=None, redoc_url=None, responses=_ERRORS
    )
    api.state.operations = operations
    api.add_exception_handler(PaidonceError, _on_error)
    api.add_exception_handler(ProblemError, _on_error)
    api.add_exception_handler(RequestValidationError, _on_error)
    api.add_exception_handler(HTTPException, _on_error)
    api.add_exception_handler(Exception, _on_error)
    api.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]))
    api.get("/docs", include_in_schema=False)(_docs)
    api.get("/", include_in_schema=False)(_docs)
    _add_users(api)
    _add_payments(api)
    _add_events(api)
    return api


def describe(api: FastAPI) -> None:
    """Make the OpenAPI description say what is true: invalid input is answered 400, not 422."""
    description = api.openapi()
    for path in description["paths"].values():
        for call in path.values():
            call["responses"].pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(unused, None)


def _add_users(api: FastAPI) -> None:
    @api.post("/api/v1/users", status_code=status.HTTP_201_CREATED, tags=["users"])
    async def create_user(body: NewUser, verbs: Verbs, actor: Operator, answer: Response) -> User:
        """Create a user. A repeat returns the one that is there, with 200.

        What was paid under the address before is applied when the answer arrives.
        """
        user, is_new = await verbs.create_user(body.email)
        answer.status_code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return user

    @api.get("/api/v1/users", tags=["users"])
    async def find_users(email: Text, verbs: Verbs, actor: Reader) -> Page[User]:
        """The user with this address, in any letter case."""
        return Page(items=await verbs.users_by_email(email))

    @api.get("/api/v1/users/{user_id}", tags=["users"])
    async def get_user(user_id: UUID, verbs: Verbs, actor: Reader) -> User:
        """One user."""
        return await verbs.user(user_id)

    @api.get("/api/v1/subscriptions", tags=["subscriptions"])
    async def list_subscriptions(
        verbs: Verbs, actor: Reader, user_id: UUID | None = None, email: Text | None = None
    ) -> Page[SubscriptionView]:
        """The subscriptions of one user, found by id or by address."""
        return Page(items=await verbs.subscriptions(user_id=user_id, email=email))


def _add_payments(api: FastAPI) -> None:
    @api.get("/api/v1/payments", tags=["payments"])
    async def list_payments(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: PaymentStatus | None = None,
        applied: bool | None = None,
        email: Text | None = None,
        order: Text | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[PaymentView]:
        """Payments, the newest first. `applied=false`: money received and not applied."""
        items = await verbs.payments(
            limit=limit + 1,
            cursor=cursor,
            source=source,
            status=status,
            applied=applied,
            email=email,
            order_reference=order,
        )
        return _page(items, limit)

    @api.get("/api/v1/payments/{payment_id}", tags=["payments"])
    async def get_payment(payment_id: UUID, verbs: Verbs, actor: Reader) -> PaymentView:
        """One payment."""
        return await verbs.payment(payment_id)

    @api.post("/api/v1/payments/{payment_id}/link", tags=["payments"])
    async def link_payment(
        payment_id: UUID, body: Link, verbs: Verbs, actor: Operator
    ) -> PaymentView:
        """Say whose payment it is; it is applied at once if it can be."""
        return await verbs.link_payment(payment_id, actor, user_id=body.user_id, email=body.email)


def _add_events(api: FastAPI) -> None:
    @api.get("/api/v1/events", tags=["events"])
    async def list_events(
        verbs: Verbs,
        actor: Reader,
        source: Text | None = None,
        status: EventStatus | None = None,
        error_code: Text | None = None,
        order: Text | None = None,
        payment: Text | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: Limit = 50,
        cursor: UUID | None = None,
    ) -> Page[EventView]:
        """Events, the newest first; rejected and conflicting deliveries are events too."""
        items = await verbs.events(
            limit=limit + 1,
            cursor=cursor,
            since=since,
            until=until,
            source=source,
            status=status,
            error_code=error_code,
            order_reference=order,
            payment=payment,
        )
        return _page(items, limit)

    @api.get("/api/v1/events/{event_id}", tags=["events"])
    async def get_event(event_id: UUID, verbs: Verbs, actor: Reader) -> EventDetail:
        """One event with its whole trail."""
        return await verbs.event(event_id)


Viewed = TypeVar("Viewed", PaymentView, EventView)


def _page(items: Sequence[Viewed], limit: int) -> Page[Viewed]:
    """One more than the limit was asked for, to know whether something follows."""
    shown = list(items[:limit])
    follows = len(items) > limit
    return Page(items=shown, next_cursor=str(shown[-1].id) if follows else None)


async def _docs() -> HTMLResponse:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Paidonce",
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="/docs/assets/favicon.png",
    )


async def _on_error(request: Request, error: Exception) -> Response:
    request_id = str(uuid7())
    problem = _problem(error)
    if problem is INTERNAL:
        log.error("api_failed", request_id=request_id, path=request.url.path, exc_info=error)
    headers = problem.headers() | {"x-request-id": request_id}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(problem.body(request_id), problem.status, headers)


def _problem(error: Exception) -> Problem:
    match error:
        case ProblemError():
            return error.problem
        case RequestValidationError():
            return Problem(400, "INVALID_REQUEST", "; ".join(_complaints(error)))
        case HTTPException():
            code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "REFUSED")
            return Problem(error.status_code, code, str(error.detail))
        case PaidonceError():
            return problem_of(error)
        case _:
            return INTERNAL


def _complaints(error: RequestValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in one['loc'][1:]) or 'body'}: {one['msg']}"
        for one in error.errors()
    ]
