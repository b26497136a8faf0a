"""The page that shows every call, and the description that it reads."""

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles


def add_to(api: FastAPI) -> None:
    """Add the page; it needs no internet."""
    api.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]))
    api.get("/docs", include_in_schema=False)(_docs)
    api.get("/", include_in_schema=False)(_docs)


def describe(api: FastAPI) -> None:
    """Make the OpenAPI description say what is true: invalid input is answered 400, not 422."""
    description = api.openapi()
    for path in description["paths"].values():
        for call in path.values():
            call["responses"].pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(unused, None)


async def _docs(request: Request) -> HTMLResponse:
    root = request.scope.get("root_path", "").rstrip("/")
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="Paidonce",
        swagger_js_url=f"{root}/docs/assets/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/assets/swagger-ui.css",
        swagger_favicon_url=f"{root}/docs/assets/favicon.png",
    )
