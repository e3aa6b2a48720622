"""`python -m sits_executor`: runs batches until told to stop."""

from sits_core.process import run
from sits_executor.app import serve
from sits_executor.settings import ExecutorSettings

if __name__ == "__main__":
    run("executor", ExecutorSettings, serve)
