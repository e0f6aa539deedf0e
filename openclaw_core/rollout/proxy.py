"""The OpenAI-compatible door: chat, models, health and status, and nothing else."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from openclaw_core.errors import UserError
from openclaw_core.rollout.chat import Answer, Chat
from openclaw_core.rollout.engines.errors import EngineBusy, EngineError, EngineTimeout, PromptTooLong
from openclaw_core.rollout.gate import RETRY_AFTER_S, GateClosed
from openclaw_core.rollout.pool import NoEngine
from openclaw_core.rollout.replies import completion, events
from openclaw_core.rollout.requests import ApiError, ChatRequest, parse_chat_request
from openclaw_core.rollout.settings import ProxySettings

SESSION_HEADER = "x-session-id"
TURN_TYPE_HEADER = "x-turn-type"
CLIENT_GONE = 499


def create_app(chat: Chat, *, status: Callable[[], dict[str, Any]], lifespan: Any = None) -> FastAPI:
    """The application around a Chat. status gives what /status shows beside the funnel."""
    settings = chat.settings
    app = FastAPI(title="OpenClaw training proxy", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    def key(request: Request) -> None:
        check_key(request, settings)

    guarded = [Depends(key)]

    @app.exception_handler(ApiError)
    async def refuse(_: Request, error: ApiError) -> Response:
        return _refusal(error)

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        message = f"There is no {request.method} {request.url.path} here."
        return _refusal(ApiError(error.status_code, "not_found", message, headers=error.headers))

    @app.exception_handler(Exception)
    async def own_fault(_: Request, error: Exception) -> Response:
        return _refusal(ApiError(500, "internal_error", f"The proxy failed: {type(error).__name__}."))

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def complete(request: Request) -> Response:
        chat.store.count("received")
        try:
            parsed = parse_chat_request(await _json_body(request, settings.max_body_bytes), settings)
            work = asyncio.create_task(_answer(request, parsed, chat))
            await _unless_gone(request, work, settings.keep_alive_s if parsed.stream else None)
            if not work.done():
                waiting = _late_stream(work, settings, lambda error: chat.store.count(f"refused:{error.code}"))
                return StreamingResponse(waiting, media_type="text/event-stream")
            answer = work.result()
        except ApiError as error:
            chat.store.count(f"refused:{error.code}")
            raise
        if answer.stream:
            return StreamingResponse(_events(answer, settings), media_type="text/event-stream", headers=answer.headers)
        return JSONResponse(completion(answer.turn, settings.model, time.time()), headers=answer.headers)

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> Any:
        limits = {
            "context_length": settings.context_length, "max_model_len": settings.context_length,
            "max_output_tokens": settings.max_response_tokens,
        }  # fmt: skip
        about = {"object": "model", "created": 0, "owned_by": "openclaw", **limits}
        return {"object": "list", "data": [{"id": name, **about} for name in (settings.model, *settings.aliases)]}

    @app.get("/health")
    async def health() -> Response:
        if chat.pool.ready:
            return JSONResponse({"status": "ready", "paused": chat.gate.paused})
        return _refusal(_not_ready("no engine has generated a token yet or all are out"))

    @app.get("/status", dependencies=guarded)
    async def show_status() -> Any:
        return {"funnel": chat.store.funnel().as_dict(), "gate": chat.gate.status(), "engines": chat.pool.status(), **status()}

    return app


def check_key(request: Request, settings: ProxySettings) -> None:
    """401 that names the door, in constant time; without a key, 403 to web pages, which would train the model from a browser."""
    if settings.api_key is None:
        if "origin" in request.headers:
            message = "Web pages may not use the training proxy unless it has a key: whoever can chat can train the model."
            raise ApiError(403, "origin_refused", f"{message} Set {settings.key_setting}.")
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    matches = hmac.compare_digest(given.strip().encode(), settings.api_key.encode())
    if scheme.lower() != "bearer" or not matches:
        message = (
            f"The OpenClaw training proxy takes the key of {settings.key_setting} as a Bearer token; this is another or none."
        )
        raise ApiError(401, "invalid_api_key", message, headers={"WWW-Authenticate": 'Bearer realm="openclaw training proxy"'})


async def _unless_gone(request: Request, work: asyncio.Task[Answer], timeout_s: float | None) -> None:
    """Waits for the work, at most timeout_s. A client that leaves meanwhile frees its engine; raises ApiError 499 then."""
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({work, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise ApiError(CLIENT_GONE, "client_gone", "The client left before its reply was there.")
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _late_stream(
    work: asyncio.Task[Answer], settings: ProxySettings, refused: Callable[[ApiError], None]
) -> AsyncIterator[str]:
    """Comments while the reply is under way, then the reply; an error comes as an event, for the status went out as 200."""
    try:
        while not work.done():
            yield ": the reply is under way\n\n"
            await asyncio.wait({work}, timeout=settings.keep_alive_s)
        try:
            answer = work.result()
        except ApiError as error:
            refused(error)
            yield f"data: {json.dumps(error.body())}\n\n"
            return
        for event in _events(answer, settings):
            yield event
    finally:
        work.cancel()


def _events(answer: Answer, settings: ProxySettings) -> Iterator[str]:
    return events(answer.turn, settings.model, time.time(), include_usage=answer.include_usage)


async def _answer(request: Request, parsed: ChatRequest, chat: Chat) -> Answer:
    """The reply, or an ApiError whatever went wrong behind the door."""
    turn_type = request.headers.get(TURN_TYPE_HEADER, "main").lower()
    if turn_type not in ("main", "side"):
        raise ApiError(400, "invalid_value", f"X-Turn-Type is {turn_type!r}: main or side.", param="X-Turn-Type")
    session_id = request.headers.get(SESSION_HEADER)
    try:
        return await chat.answer(parsed, header_id=session_id, side=turn_type == "side")
    except GateClosed as error:
        raise _retry_later(503, error.reason, str(error)) from error
    except NoEngine as error:
        raise _not_ready(str(error)) from error
    except PromptTooLong as error:
        raise ApiError(400, "context_length_exceeded", error.what, param="messages") from error
    except EngineBusy as error:
        raise _retry_later(503, "engine_busy", error.what) from error
    except EngineTimeout as error:
        raise ApiError(504, "engine_timeout", str(error)) from error
    except EngineError as error:
        # The engine's refusal of a request stays a refusal; what it sends that can't be read is a fault behind this door.
        status = error.status if error.status and 400 <= error.status < 500 else 502
        raise ApiError(status, "engine_error", str(error)) from error
    except UserError as error:
        raise ApiError(400, "invalid_value", str(error), param="messages") from error


async def _json_body(request: Request, limit: int) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "Send the request as application/json.")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise ApiError(413, "body_too_large", f"The body has more than {limit} bytes.")
    except ClientDisconnect as error:
        raise ApiError(CLIENT_GONE, "client_gone", "The client left before its request was there.") from error
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"The body is not JSON ({error}).") from error


def _retry_later(status: int, code: str, message: str) -> ApiError:
    return ApiError(status, code, message, headers={"Retry-After": str(RETRY_AFTER_S)})


def _not_ready(cause: str) -> ApiError:
    return _retry_later(503, "not_ready", f"The model isn't ready: {cause}")


def _refusal(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)
