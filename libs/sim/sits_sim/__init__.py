"""Simulator of SITS: models of the world around the decision code of `sits_scheduling`."""
