"""Errors of the admin API as JSON: what is wrong, and what to do about it."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sits_core.errors import safe_text
from sits_dispatcher.admin_models import Problem

log = structlog.get_logger()

DOCUMENT = "/openapi.json describes every call"
Responses = dict[int | str, dict[str, object]]


def answers(**texts: str) -> Responses:
    """Failures of a call, for the OpenAPI document: `answers(s404="Unknown")`."""
    return {
        int(status[1:]): {"model": Problem, "description": text} for status, text in texts.items()
    }


GUARDED = answers(s401="No or a wrong admin token", s403="Not from here")
INVALID = answers(s422="A parameter is wrong")


class AdminError(Exception):
    """A call that is refused; both texts are shown to the caller."""

    def __init__(self, status: int, error: str, do: str) -> None:
        super().__init__(error)
        self.status, self.do = status, do


def install(app: FastAPI) -> None:
    """Answer every failure of `app` with a `Problem`."""
    app.add_exception_handler(AdminError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _broken)


def _answer(status: int, error: str, do: str) -> JSONResponse:
    # Browsers ask for nothing by themselves on Bearer; other clients learn what is wanted.
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    body = Problem(error=safe_text(error), do=do).model_dump()
    return JSONResponse(body, status, headers)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AdminError)  # noqa: S101 - registered for it
    return _answer(error.status, str(error), error.do)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    first = error.errors()[0]
    where = " ".join(str(part) for part in first["loc"])
    return _answer(422, f"{where}: {first['msg']}", DOCUMENT)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    return _answer(error.status_code, f"{request.method} {request.url.path}: {error.detail}",
                   DOCUMENT)  # fmt: skip


async def _broken(request: Request, error: Exception) -> JSONResponse:
    log.error("admin.failed", path=request.url.path, exc_info=error)
    return _answer(500, "the dispatcher failed to answer", "its log says why")
