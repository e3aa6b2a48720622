"""The mesh without its dispatcher: the most that a short cut around it could gain.

The front door sends its batches to the only executor itself, whose links speak alike. It is no
mesh to use: nothing places, moves, hedges, governs or explains.

Run, this file is its front door.
"""

import sys
from dataclasses import replace

from sits_cli.mesh import Plan
from sits_cli.supervisor import Program
from sits_core.process import run
from sits_preprocess import dispatchers
from sits_preprocess.app import serve
from sits_preprocess.settings import PreprocessSettings


class NoDispatcher(Plan):
    """Its dispatcher runs and has nothing to do."""

    def programs(self, redis_url: str | None) -> list[Program]:
        return [
            _direct(each, self.addresses.executors[0][0]) if each.name == "preprocess" else each
            for each in super().programs(redis_url)
        ]


def _direct(front: Program, executor: str) -> Program:
    return replace(
        front,
        argv=(sys.executable, __file__),
        env={**front.env, "SITS_PREPROCESS_DISPATCHERS": executor},
    )


if __name__ == "__main__":
    dispatchers.LINK = "/sits.v1.Execute/Link"
    run("preprocess", PreprocessSettings, serve)
