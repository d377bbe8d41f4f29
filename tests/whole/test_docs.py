"""The pages build without a warning, name everything there is, and their code runs."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import api_page
import localspec
import localspec.errors
import option_table
from localspec.cli import main
from localspec.sampling.params import SamplingKeywords

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    for name in ("mkdocs", "mkdocs_click"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (python -m pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("docs")
    # The script and not `-m`, which would put the checkout before the installed package.
    command = [Path(sys.executable).parent / "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "-f", ROOT / "mkdocs.yml", "-d", folder / "site"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder / "site"


@pytest.mark.process
def test_every_public_name_has_its_entry(site):
    page = (site / "api.html").read_text("utf-8")
    for name in localspec.__all__:
        assert f"<code>{name}</code>" in page, name


def test_the_reference_of_python_is_as_the_code_has_it():
    """And needs no program to be read: signatures and docstrings are in the page."""
    text = api_page.PAGE.read_text("utf-8")
    assert text == api_page.page(text), "run: python scripts/develop/api_page.py"
    for name in localspec.__all__:
        assert f"### `{name}`" in text, name
    for method in ("generate", "generate_raw", "chat", "cancel"):
        assert f"#### `Engine.{method}`" in text, method
    assert re.search(
        r"^### `load`\n\n```python\nload\(\n    preset: .*\n\) -> Engine\n```\n\nAn engine for",
        text,
        re.M | re.S,
    )
    assert ":::" not in text


def test_a_public_name_needs_a_place_in_the_reference(monkeypatch):
    monkeypatch.setitem(api_page.SECTIONS, "Loading", ("load",))
    with pytest.raises(ValueError, match="SECTIONS lacks Embedded, Embedder, Progress"):
        api_page.reference()


@pytest.mark.process
def test_every_command_has_its_entry(site):
    page = (site / "cli.html").read_text("utf-8")
    for name, command in main.commands.items():
        assert f"localspec {name}" in page
        assert "Sentinel" not in page
        for option in command.params:
            if not getattr(option, "hidden", False):
                names = [word for word in option.opts if word.startswith("--")]
                # One that an option had before is taken, and not shown.
                assert not names or names[0] in page


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page.name for page in PAGES if f" {page.name}" not in listed] == []


def test_every_reason_for_no_draft_is_explained():
    text = (ROOT / "docs/faq.md").read_text("utf-8")
    for reason in localspec.DraftOff:
        assert f"| `{reason.value}` |" in text


def test_the_table_of_options_is_as_the_code_has_them():
    text = option_table.PAGE.read_text("utf-8")
    assert text == option_table.page(text), "run: python scripts/develop/option_table.py"
    assert SamplingKeywords.__annotations__.keys() <= option_table.shared_fields().keys()


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["README", "docs/tutorial", "docs/applications", "docs/constrained"]
)
def test_the_code_on_a_page_runs(name, tmp_path):
    """All blocks of a page, one after the other, as a reader would type them."""
    text = (ROOT / f"{name}.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.process
def test_the_readmes_picture_is_drawn_by_what_the_program_prints_today():
    """Its question and its legend are those of a picture that is drawn now."""
    terminal_picture = pytest.importorskip("terminal_picture", reason="no pseudo-terminals")
    drawn_now = terminal_picture.answer_picture("demo")
    of_readme = terminal_picture.PICTURE.read_text("utf-8")
    legend = ("accepted", "recovered", "bonus", "plain")
    assert (
        _words(drawn_now)[: _legend_end(drawn_now)]
        == (_words(of_readme)[: _legend_end(of_readme)])
    ), "run: python scripts/develop/terminal_picture.py MODEL.gguf"
    assert set(legend) <= set(_words(of_readme))
    assert 'src="' not in of_readme
    assert "url(http" not in of_readme


def _words(picture: str) -> list[str]:
    """The words of an SVG, in order."""
    lines = re.findall(r"<text [^>]*>([^<]*)</text>", picture)
    return html.unescape(" ".join(lines)).replace("\xa0", " ").split()


def _legend_end(picture: str) -> int:
    """How many words there are up to the end of the legend."""
    last_line = ("plain", "nothing", "was", "drafted")
    return _words(picture).index(last_line[0]) + len(last_line)
