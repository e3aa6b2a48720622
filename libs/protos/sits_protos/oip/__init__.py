"""Open Inference Protocol messages, in a descriptor pool of their own."""
