"""Stage 1: the front door. Checks requests, forms batches, answers callers."""
