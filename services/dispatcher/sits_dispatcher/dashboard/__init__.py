"""The operator's page, and the figures that it shows."""
