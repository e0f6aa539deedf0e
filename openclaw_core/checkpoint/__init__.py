"""Conversion between Hugging Face folders and megatron's torch_dist, without building a model."""
