"""Serves the page: a handful of files out of this package, and what browsers may do with them."""

from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import FastAPI, HTTPException, Request, Response
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    # The page loads its own files, asks its own server, and nothing else.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Asset(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def install(app: FastAPI) -> None:
    """Serve the page at / and its files below /static; the page itself tells nothing."""
    assets = dict(_assets(files(__package__).joinpath("static")))
    app.add_middleware(SecurityHeaders)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _answer(request, assets[INDEX])

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise HTTPException(404, "no such file")
        return _answer(request, asset)


def _assets(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _assets(entry, f"{name}/")
        elif media_type := TYPES.get(f".{name.rpartition('.')[2]}"):
            content = entry.read_bytes()
            yield name, Asset(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')


def _answer(request: Request, asset: Asset) -> Response:
    # Asked again each time: after an upgrade no old script meets a new API.
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)


class SecurityHeaders:
    """Adds `HEADERS` to every answer; what no answer says of caching is not cached."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)
