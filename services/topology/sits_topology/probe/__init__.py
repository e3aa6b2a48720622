"""`python -m sits_topology.probe`: times real copies and collectives of this host."""
