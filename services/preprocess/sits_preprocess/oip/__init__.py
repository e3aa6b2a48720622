"""The Open Inference Protocol: its messages to checked requests, and answers back to messages."""
