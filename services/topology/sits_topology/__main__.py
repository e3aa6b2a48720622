"""`python -m sits_topology`: the topology service of this host."""

from sits_core.process import run
from sits_topology.app import serve
from sits_topology.settings import TopologySettings

if __name__ == "__main__":
    run("topology", TopologySettings, serve)
