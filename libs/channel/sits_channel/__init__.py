"""Communication layer: bounded channels, links between services, payload pools."""
