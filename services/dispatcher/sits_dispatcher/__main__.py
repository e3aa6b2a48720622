"""`python -m sits_dispatcher`: the dispatcher of a mesh."""

from sits_core.process import run
from sits_dispatcher.app import serve
from sits_dispatcher.settings import DispatcherSettings

if __name__ == "__main__":
    run("dispatcher", DispatcherSettings, serve)
