"""What each step trained on, on disk: one safetensors file a step and a JSONL index."""
