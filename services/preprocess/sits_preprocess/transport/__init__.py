"""Transports of the front port behind one seam (`call`): `grpcio` and `native`."""
