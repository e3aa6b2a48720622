"""The `sits` command."""
