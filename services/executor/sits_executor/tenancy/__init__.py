"""Isolation of tenants: what each class of them gets of the memory and of the processors."""
