"""What a model's configuration says about giving its answers again.

Triton's `response_cache { enable: true }`, and parameters of ours:
  response_cache_ttl_s    how long an answer is given again; the front door's setting else
  response_cache_stale_s  how long after that while governance degrades; 0 = never
  response_cache_shared   "true": an answer that one tenant paid for is given to all. Otherwise
                          each tenant has its own, so that nobody learns from how fast an answer
                          comes what others asked
"""

import math
from typing import Final, NamedTuple

from sits_protos.oip.model_config_pb2 import ModelConfig

TTL: Final = "response_cache_ttl_s"
STALE: Final = "response_cache_stale_s"
SHARED: Final = "response_cache_shared"
MAX_S: Final = 30 * 86_400.0


class CacheRule(NamedTuple):
    """`ttl_s` None = the front door's own."""

    ttl_s: float | None
    stale_s: float
    shared: bool


def cache_rule(config: ModelConfig) -> CacheRule | None:
    """None when answers are not kept. Raises `ValueError`, with the parameter's name."""
    if not config.response_cache.enable:
        return None
    ttl_s = _seconds(config, TTL)
    if ttl_s == 0:
        raise ValueError(f"parameter '{TTL}': expected seconds > 0")
    return CacheRule(ttl_s, _seconds(config, STALE) or 0.0, _flag(config, SHARED))


def _seconds(config: ModelConfig, name: str) -> float | None:
    if name not in config.parameters:
        return None
    text = config.parameters[name].string_value
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_S:
        raise ValueError(f"parameter '{name}': expected 0 to {MAX_S:.0f} seconds, got {text!r}")
    return value


def _flag(config: ModelConfig, name: str) -> bool:
    text = config.parameters[name].string_value if name in config.parameters else "false"
    if text not in ("true", "false"):
        raise ValueError(f"parameter '{name}': expected true or false, got {text!r}")
    return text == "true"
