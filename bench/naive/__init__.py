"""Baseline v1 of the ablation ladder: the mesh as one writes it at first.

Three grpc.aio services, each of which parses what it gets and calls the next with one request
at a time; executors are picked at random. Well-meant, idiomatic and complete for what it does:
channels are kept open, calls are concurrent, nothing is slowed down.
"""
