"""The house rules, read off the installed package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import localspec
from draw_packages import (
    imported_by,
    package_imports,
    reachable,
    with_drawing,
)
from unique_names import twice_defined

PACKAGE = Path(localspec.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8")
    for path in PACKAGE.rglob("*.py")
}
IMPORTED = {name: imported_by(source) for name, source in MODULES.items()}
# Who may import whom: a package imports only packages below it.
PACKAGES = [
    ["cli"],
    ["evaluation", "server", "kernels"],
    ["isolated"],
    ["engine", "advice"],
    ["chat", "planning"],
    ["streaming", "llama", "presets"],
    ["policy", "constraints", "hub", "tool_servers"],
    ["speculative", "gguf_file", "tools"],
    ["sampling", "rpc_address", "pictures"],
    ["keywords", "system"],
    ["errors", "vocabulary", "exactness", "_version"],
]


def test_every_package_imports_only_packages_below_it():
    imports = package_imports(PACKAGE)
    assert set(imports) == {room for row in PACKAGES for room in row}
    for i, row in enumerate(PACKAGES):
        below = {room for lower in PACKAGES[i + 1 :] for room in lower}
        for room in row:
            assert imports[room] <= below, room


def test_the_pages_about_the_house_name_what_is_there():
    """Paths of files on the pages for contributors, in the repository or in the package."""
    root = Path(__file__).parents[2]
    pages = [
        (root / name).read_text("utf-8") for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")
    ]
    paths = {path for page in pages for path in re.findall(r"`([\w/]+/\w+\.(?:py|md))`", page)}
    assert paths
    assert [path for path in paths if not _is_there(root, path)] == []


def test_each_folder_of_tests_is_of_a_room_and_in_the_table_of_places():
    """And each row of that table names tests that are there."""
    root = Path(__file__).parents[2]
    folders = {path.parent.name for path in root.glob("tests/*/test_*.py")}
    rooms = {name.split(".")[0] for name in MODULES if "." in name}
    assert folders - rooms == {"whole"}
    page = (root / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| [^|]+ \| [^|]*`(?:localspec|scripts)/[^|]+ \| (.+) \|$", page, re.M)
    assert len(rows) > 20
    named = set()
    for row in rows:
        tests = re.findall(r"`tests/(\w+)/(test_\w+\.py)?`", row)
        assert tests, row
        assert all((root / "tests" / folder / file).exists() for folder, file in tests), row
        named.update(folder for folder, _ in tests)
    assert named == folders


def test_no_two_modules_share_a_name():
    """A reader knows which file is meant without its folder."""
    names = Counter(name.split(".")[-1] for name in MODULES)
    assert [name for name, count in names.items() if count > 1] == ["__init__"]


def _is_there(root: Path, path: str) -> bool:
    return (root / path).exists() or (PACKAGE / path).exists()


def test_no_modules_import_each_other_in_a_circle():
    """Not inside a room either, not for types alone, and not late, within functions."""
    imports = {
        name: {found.removeprefix("localspec.") for found in imported_by(source)} & set(MODULES)
        for name, source in MODULES.items()
    }
    assert [name for name in imports if name in reachable(imports, name)] == []


def test_what_commands_share_imports_no_command():
    """Within the command line, only its top and other commands may."""
    importers = set()
    for name, imported in IMPORTED.items():
        if any(found.startswith("localspec.cli.commands") for found in imported):
            importers.add(name)
    outside = {name for name in importers if not name.startswith("cli.commands.")}
    assert outside == {"cli.__init__"}


def test_one_name_stands_for_one_thing():
    assert twice_defined(PACKAGE) == {}


def test_the_graph_and_the_rooms_in_architecture_md_are_current():
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
    assert with_drawing(page, PACKAGE) == page, (
        "python scripts/develop/draw_packages.py writes them again"
    )


def test_nothing_imports_the_top_of_the_house():
    """`localspec` itself stands above all rooms; PyInstaller's hook is no part of it."""
    above = {name for name, imported in IMPORTED.items() if "localspec" in imported}
    assert above == {"__pyinstaller.hook-localspec"}


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("llama_cpp", {"llama.loaded"}),
        ("click", {"cli"}),
        ("huggingface_hub", {"hub.api"}),
        ("psutil", {"system.machine"}),
        ("gguf", {"gguf_file.tensor_types"}),
        (
            "rich",
            {
                "cli.download_dialogue",
                "cli.commands.kernels_command",
                "cli.screen",
                "cli.terminal.markdown",
                "cli.terminal.wrapping",
            },
        ),
        ("pygments", {"cli.terminal.markdown"}),
        ("prompt_toolkit", {"cli.terminal.line_editor"}),
        ("starlette", {"server"}),
        ("uvicorn", {"server.running"}),
        ("PIL", {"pictures.picture"}),
        ("jinja2", {"chat.sandbox"}),
        ("llguidance", {"constraints.guidance"}),
        ("pydantic", {"tools.python_types"}),
        ("mcp", {"tool_servers.connection", "tool_servers.whole_lines"}),
    ],
)
def test_each_library_has_one_place(library, allowed):
    """allowed: modules, and rooms whose modules may all import it."""
    users = {
        name
        for name, imported in IMPORTED.items()
        if any(found.split(".")[0] == library for found in imported)
    }
    assert {name if name in allowed else name.split(".")[0] for name in users} == allowed


def test_the_loop_sees_no_text_no_path_and_no_clock():
    """Neither directly nor through what it imports."""
    seen, waiting = set(), ["speculative.loop"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        for found in imported_by(MODULES[name]):
            assert found.split(".")[0] not in {"time", "pathlib", "os", "llama_cpp", "click"}, (
                name
            )
            waiting.append(found.removeprefix("localspec."))
    assert {"speculative.verify", "sampling.chain", "speculative.randomness"} <= seen


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("import localspec", {"click", "numpy", "jinja2", "PIL", "mcp", "anyio"}),
        (
            "from click.testing import CliRunner; from localspec.cli import main;"
            "CliRunner().invoke(main, ['--help'], catch_exceptions=False)",
            {"httpx", "httpx2", "mcp", "rich", "prompt_toolkit"},
        ),
    ],
    ids=["import", "--help"],
)
def test_what_needs_no_model_loads_no_library_of_models(code, more):
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not {"llama_cpp", "gguf", "huggingface_hub", *more} & set(loaded)


def test_every_public_name_resolves():
    assert localspec.__all__ == sorted(localspec.__all__, key=lambda n: (n.islower(), n))
    for name in localspec.__all__:
        assert getattr(localspec, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = localspec.nothing


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    tree = ast.parse(MODULES[name])
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_the_tests_run_against_the_installed_package():
    """Not against the checkout that they lie in."""
    assert Path(__file__).parents[2] / "localspec" != PACKAGE
