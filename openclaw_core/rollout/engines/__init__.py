"""Inference engines behind SGLang's HTTP bodies: the client, the weight swap, and an engine of our own."""
