"""Scheduling layer: plain synchronous decisions over plain data. No I/O, no clock."""
