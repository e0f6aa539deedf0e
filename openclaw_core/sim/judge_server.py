"""Serves the scripted judge behind the OpenAI chat interface, as an engine would.

python -m openclaw_core.sim.judge_server --port 0 --port-file judge.port --useless-hints 0.5
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from openclaw_core.sim.judge import JudgeSettings, ScriptedJudge

MODEL = "scripted-judge"


class ChatRequest(BaseModel):
    """The part of OpenAI's body that the judge reads; sampling parameters are accepted and mean nothing to it."""

    model_config = ConfigDict(extra="ignore")

    messages: list[dict[str, Any]] = Field(min_length=1)
    n: int = Field(1, ge=1, le=64)


def make_app(settings: JudgeSettings) -> FastAPI:
    """The judge as an ASGI app: /v1/chat/completions, /v1/models, /health, /model_info."""
    judge = ScriptedJudge(settings)
    app = FastAPI(title=MODEL, docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest) -> dict[str, Any]:
        texts = [judge.answer(request.messages) for _ in range(request.n)]
        prompt = sum(len(str(message.get("content", "")).split()) for message in request.messages)
        completion = sum(len(text.split()) for text in texts)
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": MODEL,
            "choices": [
                {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for i, text in enumerate(texts)
            ],
            "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "openclaw"}]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model_info")
    async def model_info() -> dict[str, Any]:
        return {"model_path": MODEL, "is_generation": True}

    return app


def serve(settings: JudgeSettings, host: str, port: int, port_file: Path | None) -> None:
    """Serves until SIGINT or SIGTERM. port 0 takes a free one; port_file gets the number once connections are accepted."""
    with socket.create_server((host, port), backlog=256) as listener:
        if port_file is not None:
            part = port_file.with_name(port_file.name + ".part")
            part.write_text(f"{listener.getsockname()[1]}\n")
            os.replace(part, port_file)
        config = uvicorn.Config(make_app(settings), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_core.sim.judge_server", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--port-file", type=Path, help="gets the port's number once the server listens")
    parser.add_argument("--useless-hints", type=_share, default=0.0, help="share of hint sets with a hint that asks for nothing")
    parser.add_argument("--only-useless", type=lambda t: t.lower() == "true", default=False, metavar="true|false")
    parser.add_argument("--unparsable", type=_share, default=0.05, help="share of votes that can't be parsed")
    parser.add_argument("--votes", type=int, default=3, help="hint votes of one turn")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    settings = JudgeSettings(args.useless_hints, args.only_useless, args.unparsable, args.votes, args.seed)
    try:
        serve(settings, args.host, args.port, args.port_file)
    except OSError as error:
        sys.stderr.write(f"The judge can't listen on {args.host}:{args.port} ({error.strerror}). Choose another port.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
