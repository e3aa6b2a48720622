"""`sits.v1`: what SITS services say to each other and to batch clients."""
