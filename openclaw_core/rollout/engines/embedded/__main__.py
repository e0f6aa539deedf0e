"""Entry of the engine's process."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from pathlib import Path


def _arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m openclaw_core.rollout.engines.embedded", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder: config, weights, tokenizer")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    parser.add_argument("--port-file", type=Path, help="file that gets the port once the model is loaded")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--max-batch", type=int, default=32, help="most requests that run at the same time")
    parser.add_argument("--max-queue", type=int, default=1024, help="most requests that wait; more get 503")
    parser.add_argument("--context-length", type=int, help="most tokens of prompt and reply (default: the model's)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--seed", type=int, default=0, help="seeds requests that bring no sampling_seed")
    parser.add_argument("--weight-version", default="0", help="version of the weights it starts with")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not (args.model / "config.json").is_file():
        sys.stderr.write(f"{args.model} has no config.json. Give a Hugging Face model folder.\n")
        return 2
    try:
        listener = socket.create_server((args.host, args.port))
    except OSError as error:
        sys.stderr.write(f"Can't listen on {args.host}:{args.port}: {error.strerror}. Choose another port.\n")
        return 2
    import torch
    import uvicorn

    from openclaw_core.errors import UserError
    from openclaw_core.files import write_atomic
    from openclaw_core.rollout.engines.embedded.batching import Batcher
    from openclaw_core.rollout.engines.embedded.model import load_model
    from openclaw_core.rollout.engines.embedded.server import ServerSettings, create_app
    from openclaw_core.rollout.engines.embedded.worker import EngineThread

    torch.set_num_threads(args.threads)
    try:
        model = load_model(args.model, args.device, args.dtype)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    context_length = min(args.context_length or model.config.max_position_embeddings, model.config.max_position_embeddings)
    batcher = Batcher(model, max_rows=args.max_batch, context_length=context_length, version=args.weight_version)
    engine = EngineThread(batcher)
    settings = ServerSettings(context_length, args.max_batch, args.max_queue, args.seed, args.device, args.dtype)
    app = create_app(engine, model, lambda: batcher.version, settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=5, timeout_graceful_shutdown=2
        )
    )
    engine.start()
    if args.port_file is not None:
        write_atomic(args.port_file, str(listener.getsockname()[1]))
    server.run(sockets=[listener])
    engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
