"""SITS_REDIS_URL is read right or refused, and never shown."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_core.redis_url import Address, RedisUrl, parse
from sits_core.settings import SettingsError

PW = "pw"
NASTY = "p@ss:w/o#r%d+ 1?&=[]"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://cache", RedisUrl((Address("cache", 6379),))),
        ("redis://cache:7000/3", RedisUrl((Address("cache", 7000),), db=3)),
        ("redis://cache?db=4", RedisUrl((Address("cache", 6379),), db=4)),
        ("redis://[::1]:7000", RedisUrl((Address("::1", 7000),))),
        ("rediss://cache", RedisUrl((Address("cache", 6379),), tls=True)),
        ("rediss://:pw@cache", RedisUrl((Address("cache", 6379),), tls=True, password=PW)),
        ("redis://ann@cache", RedisUrl((Address("cache", 6379),), username="ann")),
        ("unix:///run/a@b.sock", RedisUrl(socket_path="/run/a@b.sock")),
        (
            "unix://ann:pw@/run/r.sock?db=2",
            RedisUrl(socket_path="/run/r.sock", db=2, username="ann", password=PW),
        ),
        (
            "redis+sentinel://a,b:7,[::1]/main/5",
            RedisUrl(
                (Address("a", 26379), Address("b", 7), Address("::1", 26379)),
                primary_name="main",
                db=5,
            ),
        ),
        (
            "rediss+sentinel://:pw@a/main?sentinel_auth=yes",
            RedisUrl(
                (Address("a", 26379),),
                primary_name="main",
                tls=True,
                password=PW,
                sentinel_auth=True,
            ),
        ),
    ],
)
def test_each_form_of_url_is_understood(url: str, expected: RedisUrl) -> None:
    assert parse(url) == expected


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_user_and_password_survive_percent_encoding(user: str, password: str) -> None:
    user, password = (t.encode(errors="replace").decode() for t in (user, password))
    url = parse(f"redis://{quote(user, safe='')}:{quote(password, safe='')}@cache")
    assert (url.username, url.password) == (user, password)
    assert url.addresses == (Address("cache", 6379),)


@pytest.mark.parametrize("url", ["redis://:{}@cache", "unix://:{}@/run/r.sock"])
def test_special_characters_work_without_encoding_too(url: str) -> None:
    assert parse(url.format(NASTY)).password == NASTY


@pytest.mark.parametrize(
    "url",
    [
        "{}",
        "//{}@cache",
        "http://:{}@cache",
        "redis://:{}",
        "redis://:{}@",
        "redis://:{}@cache:port",
        "redis://:{}@cache:0",
        "redis://:{}@cache:70000",
        "redis://:{}@cache/zero",
        "redis://:{}@cache/1/2",
        "redis://:{}@cache/-1",
        "redis://:{}@cache#fragment",
        "redis://:{}@a,b",
        "redis://cache?password={}",
        "rediss://:{}@cache?ssl_cert_reqs=none",
        "unix://:{}@run/r.sock",
        "unix://:{}@/",
        "redis+sentinel://:{}@a,b",
        "redis+sentinel://:{}@a,,b/main",
        "redis+sentinel://:{}@a/main?sentinel_auth=maybe",
        "redis+cluster://:{}@a",
    ],
)
def test_a_wrong_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(SettingsError, match="SITS_REDIS_URL") as caught:
        parse(url.format("hunter2"))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)


def test_neither_form_of_text_shows_the_password() -> None:
    url = parse("redis+sentinel://ann:hunter2@a,b:7/main")
    assert "hunter2" not in repr(url)
    assert str(url) == "a:26379,b:7"


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
def test_a_cluster_url_is_refused_and_told_what_works(scheme: str) -> None:
    with pytest.raises(SettingsError, match=r"Redis Cluster, which SITS does not use.*Sentinels"):
        parse(f"{scheme}://a,b,c")
