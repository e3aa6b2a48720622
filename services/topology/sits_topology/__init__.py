"""The topology service: how the devices of this host are connected, and what that costs."""
