"""What the docs point at is there: links and their headings, files by their path, and every module
in the table of its package."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "libs", "services", "bench", "tests")
PAGES = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
FILE = re.compile(r"`((?:libs|services|tests|bench|scripts|docs|helm|protos)/[\w./-]+)`")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ELSEWHERE = {"sits_sim": "docs/simulator.md"}
"""Where the modules of a package are listed, if not in its README."""
ROW = re.compile(r"^\| (`[^|]*) \|", re.MULTILINE)
CODE = re.compile(r"`([^`]*)`")
TRIVIAL = {"__init__", "__main__"}
PACKAGES = sorted(p for folder in ("libs", "services") for p in (ROOT / folder).glob("*/sits_*"))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    texts = (heading.lower() for heading in HEADING.findall(page.read_text()))
    return {re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    broken = []
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_by_their_path_are_there(page: Path) -> None:
    named = FILE.findall(page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def modules(package: Path) -> set[str]:
    """Paths within the package, without the suffix."""
    sources = (file.relative_to(package).with_suffix("") for file in package.rglob("*.py"))
    return {str(source) for source in sources if source.name not in TRIVIAL}


def listed(package: Path) -> Iterator[list[str]]:
    """The names in each row of the tables of modules."""
    elsewhere = ELSEWHERE.get(package.name)
    page = ROOT / elsewhere if elsewhere else package.parent / "README.md"
    for table in page.read_text().split("| module |")[1:]:
        rows = table.partition("\n\n")[0]
        yield from (CODE.findall(names) for names in ROW.findall(rows))


def meant(name: str, before: str, package: Path) -> set[str]:
    """Modules that `name` stands for, from the top of the package or beside the one before it.
    A folder stands for all in it, `x_*` for all that begin so."""
    pattern = name.removesuffix(".py") + ("*" if name.endswith("/") else "")
    for tried in (pattern, str(Path(before).parent / pattern)):
        if found := {module for module in modules(package) if fnmatch(module, tried)}:
            return found
    return set()


@pytest.mark.parametrize(
    "package", [p for p in PACKAGES if p.name != "sits_protos"], ids=lambda package: package.name
)
def test_every_module_is_in_the_table_of_its_package_and_no_other(package: Path) -> None:
    found, unknown = set[str](), list[str]()
    for names in listed(package):
        before = ""
        for name in names:
            modules_meant = meant(name, before, package)
            if not modules_meant and not any(package.glob(f"{name}*")):
                unknown.append(name)
            found |= modules_meant
            before = min(modules_meant, default=before)
    assert unknown == []
    assert sorted(modules(package) - found) == []
