"""Foreign exception texts are cut down to what a client may see."""

import pytest

from sits_executor.safe import safe_cause


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bad value", "ValueError: bad value"),
        ("", "ValueError"),
        ("first\nsecond", "ValueError: first"),
        ("in /srv/models/a/1/model.onnx: broken", "ValueError: in <path>: broken"),
        ("at '/x.py:12'", "ValueError: at '<path>:12'"),
        ("../../etc/passwd", "ValueError: <path>"),
        ("~/key and/or 3/4", "ValueError: <path> and/or 3/4"),
        ("CUDA failure 9 ; hostname=a-b.c ; line=1", "ValueError: CUDA failure 9 ; "
         "hostname=<host> ; line=1"),
        ("100 % é 日 \x07", "ValueError: 100 % é 日"),
    ],
)  # fmt: skip
def test_texts_lose_paths_lines_and_control_characters(text: str, shown: str) -> None:
    assert safe_cause(ValueError(text)).strip() == shown


def test_folders_that_have_a_name_for_others_are_shown_by_it() -> None:
    error = ValueError("/srv/models/a/1/w.bin, /srv/models/b/1/w.bin, /x/srv/models/a/1/w.bin")
    cause = safe_cause(error, {"/srv/models/a/1": "a/1"})
    assert cause == "ValueError: a/1/w.bin, <path>, <path>"


def test_a_very_long_text_is_cut() -> None:
    assert len(safe_cause(ValueError("é" * 40_000)).encode()) <= 1000
