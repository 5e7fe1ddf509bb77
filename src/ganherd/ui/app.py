"""Create the web application: the API, the static files, error messages, compression and access control."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from ganherd.ui.access import AccessControl
from ganherd.ui.live import LiveFeed
from ganherd.ui.routes import make_router
from ganherd.ui.run_catalog import RunCatalog, UnknownRun
from ganherd.ui.sampler import Busy, SampleService
from ganherd.util.errors import UserError
from ganherd.util.text import without_controls
from ganherd.util.version import __version__
from ganherd.web.page_script import STATIC

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def create_app(
    roots: Sequence[Path], host: str = "127.0.0.1", token: str | None = None, trust_code: bool = False
) -> FastAPI:
    """Return the application that shows the runs in some folders.

    Args:
        roots: Run folders, and folders that contain runs.
        host: The address that the server is bound to; requests for other names are refused.
        token: The secret that requests must contain; None: none is needed.
        trust_code: Whether drawing samples may build a user's nets, which runs their code.
    """
    app = FastAPI(
        title="ganherd", version=__version__, docs_url=None, redoc_url=None, openapi_url="/openapi.json",
        description="Read runs of ganherd, and sample their mixtures. In metrics, numbers that are not finite are null; elsewhere "
        "they are the texts nan, inf and -inf.",
    )  # fmt: skip
    catalog = RunCatalog(roots)
    app.state.feed = LiveFeed(catalog)
    app.include_router(make_router(catalog, SampleService(trust_code), app.state.feed))
    _add_errors(app)
    _add_static(app)
    app.add_middleware(GZipMiddleware, minimum_size=800, compresslevel=5)
    app.add_middleware(AccessControl, host=host, token=token)
    return app


def _add_errors(app: FastAPI) -> None:
    """Answer every expected error with a JSON object whose `detail` is one sentence."""

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = str(first["loc"][-1]) if first.get("loc") else "request"
        return JSONResponse({"detail": f"{where}: {first['msg']}."[:300]}, 422)

    @app.exception_handler(UnknownRun)
    def unknown(_: Request, error: UnknownRun) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404)

    @app.exception_handler(UserError)
    def refused(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": without_controls(str(error))[:1000]}, 422)

    @app.exception_handler(OSError)
    def unreadable(_: Request, error: OSError) -> JSONResponse:
        return JSONResponse(
            {"detail": f"A file of this run cannot be read: {error.strerror or 'unknown reason'}."}, 422
        )

    @app.exception_handler(RecursionError)
    def nested(_: Request, __: RecursionError) -> JSONResponse:
        return JSONResponse({"detail": "A file of this run is nested too deeply to be shown."}, 422)

    @app.exception_handler(Busy)
    def busy(_: Request, __: Busy) -> JSONResponse:
        sentence = "Too many requests wait for samples. Try again in a moment."
        return JSONResponse({"detail": sentence}, 503, headers={"retry-after": "2"})


def _add_static(app: FastAPI) -> None:
    """Serve the files in web/static, which are read once; no request can reach any other file."""
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:20]}"' for name, content in files.items()}

    def answer(name: str, request: Request) -> Response:
        headers = {"etag": tags[name], "cache-control": "no-cache"}
        if request.headers.get("if-none-match", "").removeprefix("W/") == tags[name]:
            return Response(status_code=304, headers=headers)
        kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(files[name], media_type=kind, headers=headers)

    @app.get("/", include_in_schema=False)
    def index(request: Request) -> Response:
        return answer("index.html", request)

    @app.get("/docs", include_in_schema=False)
    def docs(request: Request) -> Response:
        return answer("docs.html", request)

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str, request: Request) -> Response:
        if name not in files:
            return JSONResponse({"detail": "There is no such file."}, 404)
        return answer(name, request)

    @app.get("/favicon.ico", include_in_schema=False)
    def icon(request: Request) -> Response:
        return answer("icon.svg", request)
