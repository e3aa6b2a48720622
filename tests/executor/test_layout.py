"""Nothing outside the model repository is ever opened."""

from pathlib import Path

import pytest

from sits_core.errors import InvalidArgument, NotFound
from sits_executor.backends.base import LoadError
from sits_executor.repository.layout import Repository, check_name, check_relative, refuse_pickled
from sits_executor.repository.uploads import Upload

BAD_PATHS = ["", "/etc/passwd", "../x", "1/../../x", "1//x", "./x", "1/", "a\\b", "a\0b", "a\nb"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a\0", "a\n", "é", "-a", "x" * 256]
)
def test_names_that_could_be_paths_are_refused(name: str, repository: Path) -> None:
    with pytest.raises(InvalidArgument, match="invalid model name"):
        Repository(repository).folder(name)


@pytest.mark.parametrize("name", ["a", "A_1-b.c", "resnet 50", "x" * 255, "user@model+1"])
def test_ordinary_names_are_fine(name: str) -> None:
    check_name(name)


def test_an_unknown_model_is_not_found(repository: Path) -> None:
    with pytest.raises(NotFound, match="'nobody' is not in the model repository"):
        Repository(repository).folder("nobody")


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_could_leave_the_folder_are_refused(path: str, repository: Path) -> None:
    (repository / "m").mkdir()
    with pytest.raises(LoadError, match="invalid file path"):
        check_relative(path)
    with pytest.raises(LoadError):
        Repository(repository).folder("m").file(path)


def test_links_out_of_the_repository_are_refused(repository: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.onnx").symlink_to(secret)
    (repository / "out").symlink_to(tmp_path)
    with pytest.raises(LoadError, match="leads out of the model repository"):
        Repository(repository).folder("m").file("1/model.onnx")
    with pytest.raises(InvalidArgument, match="leads out of the model repository"):
        Repository(repository).folder("out")


def test_links_within_the_repository_are_followed(repository: Path) -> None:
    (repository / "a" / "1").mkdir(parents=True)
    (repository / "a" / "1" / "model.onnx").write_text("x")
    (repository / "b").mkdir()
    (repository / "b" / "1").symlink_to(repository / "a" / "1")
    assert Repository(repository).folder("b").file("1/model.onnx").read_text() == "x"


def test_a_repository_that_is_itself_a_link_works(repository: Path, tmp_path: Path) -> None:
    (repository / "a" / "1").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(repository)
    assert Repository(link).folder("a").versions() == (1,)


def test_only_numbers_above_zero_are_versions(repository: Path) -> None:
    for name in ("1", "10", "2", "0", "01", "-1", "1a", "latest", ".1"):
        (repository / "m" / name).mkdir(parents=True)
    (repository / "m" / "7").write_text("a file")
    assert Repository(repository).folder("m").versions() == (1, 2, 10)


def test_hidden_folders_and_files_are_no_models(repository: Path) -> None:
    (repository / ".git").mkdir()
    (repository / "m").mkdir()
    (repository / "README.md").write_text("x")
    assert Repository(repository).names() == ["m"]
    assert Repository(repository / "none").names() == []


@pytest.mark.parametrize("name", ["model.pt", "model.pkl", "a/MODEL.PTH", "x.joblib", "x.pickle"])
def test_formats_that_hold_pickled_objects_are_refused(name: str) -> None:
    with pytest.raises(LoadError, match="may hold pickled objects"):
        refuse_pickled(name)


@pytest.mark.parametrize("path", [*BAD_PATHS, "1/model.pkl"])
def test_uploads_with_unsafe_names_write_nothing(path: str) -> None:
    upload = Upload("m", {"1/ok": b"x", path: b"x"}, 100)
    with pytest.raises(InvalidArgument):
        upload.write()
    assert upload._temporary is None


def test_uploads_are_limited_in_size_and_number() -> None:
    with pytest.raises(InvalidArgument, match="at most 1000 files of 3 bytes"):
        Upload("m", {"1/a": b"xx", "1/b": b"xx"}, 3).write()
    with pytest.raises(InvalidArgument, match="1001 files"):
        Upload("m", {f"1/{i}": b"" for i in range(1001)}, 3).write()


def test_an_upload_is_private_and_goes_when_removed() -> None:
    upload = Upload("m", {"1/model.onnx": b"x", "labels.txt": b"a\n"}, 100)
    folder = upload.write()
    assert folder.path.stat().st_mode & 0o077 == 0
    assert folder.versions() == (1,)
    assert folder.text("labels.txt") == "a\n"
    upload.remove()
    assert not folder.path.exists()
