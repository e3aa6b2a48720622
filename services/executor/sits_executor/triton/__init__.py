"""An executor whose models another Triton server runs. Needs `sits-executor[triton]`."""
