"""The house rules, read off the installed package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

PACKAGE = Path(localspec.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(
        path.read_text("utf-8")
    )
    for path in PACKAGE.rglob("*.py")
}
# Who may import whom: a module imports only modules of rows above its own.
LAYERS = [
    ["errors", "cancellation", "elasticity", "forgetting"],
    [
        "sampling",
        "draft_length",
        "header",
        "pair",
        "text",
        "thought_families",
        "sandbox",
        "step_ratios",
        "patience",
        "disk",
        "ratio_estimate",
    ],
    ["vocabulary", "llama_options", "thinking"],
    ["amx_trial"],
    [
        "native",
        "amx",
        "huge_pages",
        "cache_state",
        "token_batch",
        "own_process",
        "profile",
        "whole_file",
    ],
    [
        "access",
        "handle",
        "devices",
        "machine",
        "tensor_types",
        "model_shape",
        "header_vocabulary",
    ],
    ["placement"],
    ["acceptance", "cost", "drafting", "memory", "speedup"],
    ["budget", "step_times", "attention", "mapping", "interleaving"],
    ["candidate"],
    ["automatic"],
    ["filters", "penalties", "martingale", "prompts"],
    ["transforms", "logprobs"],
    ["randomness", "verify", "model", "metrics", "preset", "model_file"],
    ["preset_file", "hub_api", "other_caches", "model_source", "content"],
    ["presets", "cache", "hub_request", "progress"],
    ["transfer", "remote_source", "llama_params"],
    ["download_job"],
    ["downloads"],
    ["proposers", "llama", "hub", "template", "control_guard"],
    ["fetch", "installed", "user_presets", "room", "model_headers", "known_costs"],
    ["explanation", "installation"],
    ["problems"],
    ["rules", "rounding", "lookup"],
    ["speculative", "resolver"],
    ["kept_texts", "preparation", "proposer_choice"],
    ["cache_file"],
    ["identity_check", "law_check"],
    ["answer_text"],
    ["stream"],
    ["async_stream", "attachment", "prompt_maker"],
    ["chat"],
    ["answering", "session"],
    ["engine"],
    ["step_bench"],
    ["thread_choice"],
    ["loading", "selfcheck", "bench"],
    ["isolated_child"],
    ["child_process"],
    ["isolated"],
    ["cli.exit_codes", "cli.screen", "cli.standard_input", "cli.interrupt", "cli.bars"],
    ["cli.waiting"],
    ["cli.sampling_options", "cli.device_options", "cli.stats_object"],
    ["cli.models_add", "cli.models_remove", "cli.models_verify"],
    ["cli.download", "cli.models"],
    ["cli.offer", "cli.table", "cli.wrapping", "cli.clipboard", "cli.modes"],
    ["cli.narrowed"],
    ["cli.options", "cli.markdown", "cli.line_editor"],
    ["cli.answer", "cli.conversation", "cli.prompt_tokens", "cli.plot"],
    ["cli.answer_view", "cli.settings", "cli.idle_time"],
    ["cli.chat_commands"],
    ["cli.terminal"],
    ["cli.chat", "cli.generate", "cli.verify", "cli.bench", "cli.explain", "cli.doctor"],
    ["cli.__init__"],
    ["__main__"],
]


def imports(tree: ast.AST) -> set[str]:
    """Dotted names of everything imported, at any depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_module_has_a_layer():
    assert {name for layer in LAYERS for name in layer} == set(MODULES) - {"__init__"}


@pytest.mark.parametrize("name", [name for layer in LAYERS for name in layer])
def test_imports_go_one_way(name):
    """Down the layers only, wherever in a file the import stands."""
    rank = next(i for i, layer in enumerate(LAYERS) if name in layer)
    above = {f"localspec.{other}" for layer in LAYERS[rank:] for other in layer}
    above.discard(f"localspec.{name}")
    assert not imports(MODULES[name]) & above


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("llama_cpp", {"llama"}),
        (
            "click",
            {n for n in MODULES if n.startswith("cli.")}
            - {"cli.interrupt", "cli.idle_time", "cli.exit_codes", "cli.stats_object"}
            - {"cli.table", "cli.markdown", "cli.settings", "cli.plot"}
            - {"cli.prompt_tokens", "cli.modes", "cli.narrowed"},
        ),
        ("huggingface_hub", {"hub_api"}),
        ("requests", {"transfer", "hub_request"}),
        ("psutil", {"machine"}),
        ("rich", {"cli.bars", "cli.table", "cli.wrapping"}),
        ("prompt_toolkit", {"cli.line_editor", "cli.narrowed"}),
        ("matplotlib", {"cli.plot"}),
        ("jinja2", {"sandbox", "template"}),
    ],
)
def test_each_library_has_one_place(library, allowed):
    users = {
        name
        for name, tree in MODULES.items()
        if any(found.split(".")[0] == library for found in imports(tree))
    }
    assert users == allowed


def test_the_loop_sees_no_text_no_path_and_no_clock():
    """Neither directly nor through what it imports."""
    seen, waiting = set(), ["speculative"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        for found in imports(MODULES[name]):
            assert found.split(".")[0] not in {"time", "pathlib", "os", "llama_cpp", "click"}, (
                name
            )
            waiting.append(found.removeprefix("localspec."))
    assert {"verify", "transforms", "randomness", "proposers"} <= seen


def test_importing_the_package_is_quick():
    """No libllama, no click, no hub, not even NumPy."""
    code = "import sys, localspec; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"llama_cpp", "click", "huggingface_hub", "numpy", "jinja2"} & set(loaded)


def test_every_public_name_resolves():
    assert localspec.__all__ == sorted(localspec.__all__, key=lambda n: (n.islower(), n))
    for name in localspec.__all__:
        assert getattr(localspec, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = localspec.nothing


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_stay_small(name):
    """One noun a file, one screen a function."""
    tree = MODULES[name]
    length = max(getattr(node, "end_lineno", 0) for node in ast.walk(tree))
    assert length <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_a_docstring(name):
    tree = MODULES[name]
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_the_tests_run_against_the_installed_package():
    """Not against the checkout that they lie in."""
    assert Path(__file__).parent.parent / "localspec" != PACKAGE
