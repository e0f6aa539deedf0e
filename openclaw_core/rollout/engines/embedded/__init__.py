"""An inference engine of our own for machines without SGLang: the Hugging Face model, a KV cache and continuous batching
behind SGLang's HTTP bodies. Runs as a process: `python -m openclaw_core.rollout.engines.embedded --help`."""
