"""PyTorch: TorchScript, exported programs and registered modules. Needs `sits-executor[torch]`."""
