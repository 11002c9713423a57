"""The documents: links lead somewhere, and prose is wrapped."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob(".github/**/*.md"),
    )
)
GENERATED = re.compile(r"docs/(benchmarks/experiment-\d\.md|config\.md)$")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", without_blocks(text))


def links_of(text):
    return [first or second for first, second in LINK.findall(without_code(text))]


def anchors_of(path):
    """What headings are called in links to them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(document):
    path = ROOT / document
    for link in links_of(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    assert list(broken(document)) == []


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if not GENERATED.match(document)])
def test_prose_is_wrapped(document):
    """Tables, code, images and single long words may be wider."""
    lines = without_blocks((ROOT / document).read_text()).splitlines()
    assert [
        line for line in lines if len(line) > 120 and not line.startswith(("|", "<")) and " " in line.strip()[:120]
    ] == []


def test_broken_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# A heading, with marks\n")
    (tmp_path / "a.md").write_text(
        "[x](b.md#a-heading-with-marks) [y](b.md#other) [z](c.md) `[no](link.md)`\n"
        "[far](https://example.com/x)\n```\n[code](d.md)\n```\n"
    )
    assert list(broken("a.md")) == ["b.md#other: no such heading", "c.md: no such file"]
