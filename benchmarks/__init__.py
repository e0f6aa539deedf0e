"""Benchmarks of the product, driven through its command line."""
