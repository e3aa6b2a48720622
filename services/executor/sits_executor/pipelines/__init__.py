"""Pipelines: models that are run as one, with the precision of each tensor on its way."""
