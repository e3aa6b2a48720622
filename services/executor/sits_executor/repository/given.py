"""Reads a model configuration as somebody wrote it: config.pbtxt, or JSON sent with a load call."""

import json
import re
from typing import NamedTuple

from google.protobuf import json_format, text_format

from sits_executor.backends.base import LoadError
from sits_executor.repository.layout import CONFIG_FILE, ModelFolder
from sits_executor.safe import hide_paths
from sits_protos.oip.model_config_pb2 import ModelConfig

_SAYS_MAX_BATCH = re.compile(r"^\s*max_batch_size\s*:", re.MULTILINE)


class Given(NamedTuple):
    """`says_max_batch`: max_batch_size is written there, so that 0 means 0."""

    config: ModelConfig
    says_max_batch: bool


def read(folder: ModelFolder, config_json: str) -> Given:
    """The JSON if there is any, else config.pbtxt, else nothing. Raises `LoadError`."""
    if config_json:
        given = from_json(config_json)
    elif folder.has(CONFIG_FILE):
        given = from_text(folder.text(CONFIG_FILE))
    else:
        given = Given(ModelConfig(), False)
    name = given.config.name
    if name and name != folder.name:
        raise LoadError(f"configuration is for model '{name}', its folder is '{folder.name}'")
    given.config.name = folder.name
    return given


def from_text(text: str) -> Given:
    try:
        config = text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise LoadError(f"{CONFIG_FILE} cannot be read: {_line(error)}") from None
    return Given(config, bool(_SAYS_MAX_BATCH.search(text)))


def from_json(text: str) -> Given:
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object, got {type(fields).__name__}")
        config = json_format.ParseDict(fields, ModelConfig())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise LoadError(f"the JSON configuration cannot be read: {_line(error)}") from None
    return Given(config, not fields.keys().isdisjoint(("max_batch_size", "maxBatchSize")))


def _line(error: Exception) -> str:
    return hide_paths(str(error).partition("\n")[0][:300])
