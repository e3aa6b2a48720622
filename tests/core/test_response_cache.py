"""What config.pbtxt says about giving answers again."""

import pytest

from sits_core.response_cache import CacheRule, cache_rule
from sits_protos.oip.model_config_pb2 import ModelConfig


def config(enable: bool = True, **parameters: str) -> ModelConfig:
    made = ModelConfig()
    made.response_cache.enable = enable
    for key, value in parameters.items():
        made.parameters[key].string_value = value
    return made


def test_answers_are_kept_only_where_that_is_asked_for() -> None:
    assert cache_rule(ModelConfig()) is None
    assert cache_rule(config(enable=False, response_cache_ttl_s="5")) is None
    assert cache_rule(config()) == CacheRule(None, 0.0, shared=False)


def test_a_model_says_how_long_and_for_whom() -> None:
    said = config(
        response_cache_ttl_s="2.5", response_cache_stale_s="60", response_cache_shared="true"
    )
    assert cache_rule(said) == CacheRule(2.5, 60.0, shared=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_cache_ttl_s", ""),
        ("response_cache_ttl_s", "0"),
        ("response_cache_ttl_s", "inf"),
        ("response_cache_ttl_s", "-1"),
        ("response_cache_stale_s", "nan"),
        ("response_cache_stale_s", "9999999"),
        ("response_cache_shared", "True"),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"parameter '{name}': expected"):
        cache_rule(config(**{name: value}))
