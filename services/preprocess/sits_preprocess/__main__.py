"""`python -m sits_preprocess`: the front door."""

from sits_core.process import run
from sits_preprocess.app import serve
from sits_preprocess.settings import PreprocessSettings

if __name__ == "__main__":
    run("preprocess", PreprocessSettings, serve)
