"""Compute layer: a backend is a pure function from named arrays to named arrays."""
