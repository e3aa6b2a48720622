"""`python -m sits_executor`: runs batches until told to stop."""

import os
import sys

from sits_core.process import run
from sits_executor.app import serve
from sits_executor.drain import EXIT_DEVICE_LOST
from sits_executor.settings import ExecutorSettings

if __name__ == "__main__":
    try:
        run("executor", ExecutorSettings, serve)
    except SystemExit as end:
        if end.code == EXIT_DEVICE_LOST:
            # Libraries would tidy up on a device that is gone, and may hang there.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_DEVICE_LOST)
        raise
