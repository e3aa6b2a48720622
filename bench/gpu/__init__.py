"""Benchmarks that need GPUs: one module a part, kept results beside them."""
