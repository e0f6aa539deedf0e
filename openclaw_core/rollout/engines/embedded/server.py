"""The HTTP door of the embedded engine."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

from openclaw_core.rollout.engines.embedded import wire
from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.params import BadRequestError
from openclaw_core.rollout.engines.embedded.request import Request as Generation
from openclaw_core.rollout.engines.embedded.weights import BadWeightsError
from openclaw_core.rollout.engines.embedded.worker import EngineThread, RefusedError

_HEALTH_S = 20.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server tells and holds to. seed feeds the requests that bring none."""

    context_length: int
    max_batch: int
    max_queue: int
    seed: int
    device: str
    dtype: str


def create_app(engine: EngineThread, model: EngineModel, version: Any, settings: ServerSettings) -> FastAPI:
    """version() gives the current weight version."""
    app = FastAPI(title="openclaw embedded engine", docs_url=None, redoc_url=None, openapi_url=None)
    seeds = random.Random(settings.seed)  # noqa: S311 - sampling, no secret

    @app.exception_handler(BadRequestError)
    async def bad_request(_: Request, error: BadRequestError) -> Response:
        return _error(400, str(error))

    @app.exception_handler(RequestValidationError)
    async def bad_body(_: Request, error: RequestValidationError) -> Response:
        places = [f"{'.'.join(str(part) for part in e['loc'][1:3])}: {e['msg']}" for e in error.errors()[:3]]
        return _error(400, "; ".join(dict.fromkeys(places)))

    async def generate(body: wire.GenerateBody, http: Request) -> Response:
        loop = asyncio.get_running_loop()
        futures: dict[int, asyncio.Future[None]] = {}

        def finish(request: Generation) -> None:
            loop.call_soon_threadsafe(_resolve, futures[id(request)])

        requests, listed = wire.parse_requests(body, model, settings.context_length, seeds, finish)
        if sum(engine.load) + len(requests) > settings.max_queue + settings.max_batch:
            return _error(503, f"The request queue is full ({settings.max_queue} waiting).")
        futures.update((id(request), loop.create_future()) for request in requests)
        engine.submit(requests)
        gone = asyncio.create_task(_abort_when_gone(http, engine, [request.rid for request in requests]))
        try:
            await asyncio.gather(*futures.values())
        finally:
            gone.cancel()
        if failed := next((request.error for request in requests if request.error), None):
            return _error(500, failed)
        answers = [wire.response(request, model, body.return_text_in_logprobs) for request in requests]
        return JSONResponse(answers if listed else answers[0])

    @app.api_route("/generate", methods=["POST", "PUT"])
    async def generate_route(body: wire.GenerateBody, http: Request) -> Response:
        return await generate(body, http)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if engine.alive else 503)

    @app.get("/health_generate")
    async def health_generate(http: Request) -> Response:
        body = wire.GenerateBody(input_ids=[0], sampling_params={"max_new_tokens": 1, "temperature": 0.0})
        try:
            return Response(status_code=(await asyncio.wait_for(generate(body, http), _HEALTH_S)).status_code)
        except TimeoutError:
            return Response(status_code=503)

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {
            "model_path": str(model.folder),
            "tokenizer_path": str(model.folder) if model.tokenizer is not None else None,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": version(),
            "model_type": model.config.model_type,
            "architectures": model.config.architectures,
        }

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        running, waiting = engine.load
        return {
            "version": "embedded",
            "model_path": str(model.folder),
            "context_length": settings.context_length,
            "max_running_requests": settings.max_batch,
            "max_queued_requests": settings.max_queue,
            "vocab_size": model.real_vocab,
            "random_seed": settings.seed,
            "device": settings.device,
            "dtype": settings.dtype,
            "weight_version": version(),
            "is_paused": engine.paused,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {
            "id": str(model.folder),
            "object": "model",
            "created": int(time.time()),
            "owned_by": "openclaw",
            "root": str(model.folder),
        }
        return {"object": "list", "data": [{**card, "parent": None, "max_model_len": settings.context_length}]}

    @app.post("/update_weights_from_disk")
    async def update(body: wire.UpdateBody) -> Response:
        def stage_and_queue() -> Any:
            return engine.update(
                Path(body.model_path), body.weight_version, flush=body.flush_cache, abort_all=body.abort_all_requests
            )

        try:
            await asyncio.wrap_future(await asyncio.to_thread(stage_and_queue))
        except (BadWeightsError, RefusedError) as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        except Exception as error:
            logging.getLogger(__name__).exception("A weight update failed.")
            return JSONResponse({"success": False, "message": f"{type(error).__name__}: {error}", "num_paused_requests": 0}, 400)
        message = f"Succeeded to update model weights. Weight version updated to {version()}."
        return JSONResponse(
            {"success": True, "message": message, "num_paused_requests": sum(engine.load) if engine.paused else 0}
        )

    @app.post("/pause_generation")
    async def pause(body: wire.PauseBody) -> dict[str, str]:
        await asyncio.wrap_future(engine.pause(body.mode))  # type: ignore[arg-type]
        return {"message": "Generation paused successfully.", "status": "ok"}

    @app.post("/continue_generation")
    async def resume() -> dict[str, str]:
        await asyncio.wrap_future(engine.resume())
        return {"message": "Generation continued successfully.", "status": "ok"}

    @app.post("/abort_request")
    async def abort(body: wire.AbortBody) -> Response:
        if body.abort_all or body.rid:
            await asyncio.wrap_future(engine.abort(None if body.abort_all else body.rid))
        return Response(status_code=200)

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush() -> Response:
        if await asyncio.wrap_future(engine.flush()):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Flush cache failed.\n", 400)

    return app


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _abort_when_gone(http: Request, engine: EngineThread, rids: list[str]) -> None:
    """Ends requests whose client has closed the connection: nobody would read them."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    for rid in rids:
        engine.abort(rid)


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status)
