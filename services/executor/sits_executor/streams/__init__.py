"""Batches on a device that runs them while its one thread does other work."""
