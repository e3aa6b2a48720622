"""Which device this executor runs on."""


def device_name(setting: str, node: int) -> str:
    """The setting, or the CPU of the node; an unbound process counts as node 0."""
    return setting or f"cpu:{max(node, 0)}"


def is_gpu(device: str) -> bool:
    return device.startswith(("GPU-", "MIG-"))
