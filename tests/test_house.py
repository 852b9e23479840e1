"""The house rules: arrows one way, small modules, light imports, a README that tells the truth."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import raystitch
from raystitch.sweep.read import read_sweep

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "raystitch"

PLAIN = (
    *("errors", "names", "forms", "settings", "compute", "evaluation", "cards", "lstsq", "files"),
    "seeds",
)
ROOMS = ("data", "zoo", "stitching", "sweep", "results", "run", "cli")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "raystitch": (),
    **dict.fromkeys(PLAIN, PLAIN),
    "data": ("data", *PLAIN),
    "zoo": ("zoo", "data", *PLAIN),
    "stitching": ("stitching", "zoo", "data", *PLAIN),
    "sweep": ("sweep", *PLAIN, "results.schema"),
    "results": ("results", *PLAIN, "sweep.cells"),
    "run": tuple(room for room in (*PLAIN, *ROOMS) if room != "cli"),
    "cli": (*PLAIN, *ROOMS),
}
"""Room or plain module -> what it may import: rooms, or single modules of one."""

TORCH = ("torch", "torchvision", "timm", "safetensors.torch")
RAY = ("ray",)
TORCH_FREE = ("raystitch", *PLAIN, "data", "sweep", "results")
MOST_LINES = 350

Sources = Mapping[str, str]
"""Module name -> its text; a package goes by its own name."""


def package_sources() -> dict[str, str]:
    return {_module_name(path): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(text: str, modules: Iterable[str]) -> Iterator[str]:
    """Names of all modules that a text imports, within functions and for types alone too."""
    modules = set(modules)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The linter forbids relative imports of parents, and rooms are one folder deep.
            base = node.module or ""
            assert not node.level, f"relative import of {base!r}: write it from raystitch on"
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                submodule = inner in modules or not base.startswith("raystitch")
                yield inner if submodule else base
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                yield named.value


def _called(call: ast.Call) -> str:
    function = call.func
    return getattr(function, "attr", getattr(function, "id", ""))


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def _within(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def arrow_faults(sources: Sources) -> list[str]:
    """A line for each import that the rooms' rules do not allow."""
    faults: list[str] = []
    for module, text in sources.items():
        room = room_of(module)
        if room not in MAY_IMPORT:
            faults.append(f"{module}: no rule says what {room} may import")
            continue
        allowed = [f"raystitch.{name}" for name in MAY_IMPORT[room]]
        for target in imports(text, sources):
            own = target == "raystitch" or _within(target, allowed)
            back = target.startswith("raystitch") and not own
            heavy = room in TORCH_FREE and _within(target, TORCH)
            ray = room != "run" and _within(target, RAY)
            if back or heavy or ray:
                faults.append(f"{module} imports {target}")
    return faults


def test_arrows_between_rooms_point_one_way() -> None:
    assert arrow_faults(package_sources()) == []


def test_every_rule_is_about_something_that_is_there() -> None:
    rooms = {room_of(module) for module in package_sources()}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("module", "line", "target"),
    [
        ("errors", "from raystitch.sweep.spec import Sweep", "raystitch.sweep.spec"),
        ("errors", "import torch", "torch"),
        ("data.images", "from raystitch.zoo import models", "raystitch.zoo.models"),
        ("data.images", "from torch.utils import data", "torch.utils.data"),
        ("data.images", "import safetensors.torch", "safetensors.torch"),
        ("zoo.models", "from raystitch.stitching.fit import x", "raystitch.stitching.fit"),
        ("zoo.models", "def f():\n    import ray.tune", "ray.tune"),
        ("zoo.models", "import raystitch.run.unit as u", "raystitch.run.unit"),
        ("stitching.fit", "from raystitch.sweep.spec import Sweep", "raystitch.sweep.spec"),
        ("stitching.fit", "if TYPE_CHECKING:\n    from raystitch import run", "raystitch.run"),
        ("sweep.spec", "from raystitch.data.sources import facts", "raystitch.data.sources"),
        ("sweep.spec", "from raystitch.results.store import Storage", "raystitch.results.store"),
        ("results.store", "importlib.import_module('raystitch.run.unit')", "raystitch.run.unit"),
        ("results.store", "__import__('timm')", "timm"),
        ("run.unit", "from raystitch import cli", "raystitch.cli"),
        ("cli", "from ray import tune", "ray.tune"),
        ("__init__", "from raystitch.errors import RaystitchError", "raystitch.errors"),
    ],
)
def test_a_planted_arrow_back_is_found(module: str, line: str, target: str) -> None:
    name = f"raystitch.{module}".removesuffix(".__init__")
    sources = {**dict.fromkeys(package_sources(), ""), "raystitch.cli": "", name: line}
    assert arrow_faults(sources) == [f"{name} imports {target}"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("run.unit", "import ray, torch"),
        ("run.unit", "from raystitch import __version__"),
        ("cli", "from raystitch.run import pipeline"),
        ("stitching.fit", "from raystitch.data import images"),
        ("sweep.plan", "from raystitch.results.schema import PLACE"),
        ("zoo.models", "import torchvision"),
        ("data.images", "import raystack, torchish"),
    ],
)
def test_an_allowed_arrow_is_let_through(module: str, line: str) -> None:
    sources = {**dict.fromkeys(package_sources(), ""), f"raystitch.{module}": line}
    assert arrow_faults(sources) == []


def test_a_room_without_a_rule_is_found() -> None:
    faults = arrow_faults({"raystitch.attic": ""})
    assert faults == ["raystitch.attic: no rule says what attic may import"]


def too_long(sources: Sources) -> dict[str, int]:
    lines = {module: len(text.splitlines()) for module, text in sources.items()}
    return {module: count for module, count in lines.items() if count > MOST_LINES}


def test_modules_are_small() -> None:
    assert too_long(package_sources()) == {}
    assert too_long({"a": "\n" * MOST_LINES, "b": "\n" * (MOST_LINES + 1)}) == {"b": 351}


_LOADED = """
import importlib, sys
modules, banned = sys.argv[1].split(","), set(sys.argv[2].split(","))
for module in modules:
    importlib.import_module(module)
    if found := banned & set(sys.modules):
        sys.exit(f"{module} loads {', '.join(sorted(found))}")
"""


def load(modules: Iterable[str], banned: Iterable[str]) -> str:
    """Import modules in order in a fresh process: the first that loads a banned one, or nothing."""
    command = [sys.executable, "-c", _LOADED, ",".join(modules), ",".join(banned)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 or done.stderr, "the process died without a word"
    return done.stderr.strip()


def _modules(*rooms: str) -> list[str]:
    return sorted(module for module in package_sources() if room_of(module) in rooms)


@pytest.mark.parametrize("rooms", [("raystitch", *PLAIN, "sweep", "results", "data"), ("cli",)])
def test_light_rooms_load_neither_torch_nor_ray(rooms: tuple[str, ...]) -> None:
    assert load(_modules(*rooms), ("torch", "ray")) == ""


def test_the_science_loads_no_ray() -> None:
    assert load(_modules("stitching", "zoo"), ("ray",)) == ""


def test_what_a_module_loads_is_seen() -> None:
    modules = ["raystitch.names", "raystitch.zoo.attacks"]
    assert load(modules, ("torch", "ray")) == "raystitch.zoo.attacks loads torch"


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == raystitch.__version__


def command_options() -> dict[str, set[str]]:
    """The commands of the CLI, each with its options."""
    import typer

    from raystitch import cli

    app: Any = typer.main.get_command(cli.app)
    return {
        name: {option for parameter in command.params for option in parameter.opts} | {"--help"}
        for name, command in app.commands.items()
    }


def command_faults(text: str, commands: Mapping[str, set[str]]) -> list[str]:
    """Commands and options that a text writes in code and the CLI does not have."""
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    code = code.replace("scripts/quickstart", "raystitch sweep")
    faults: list[str] = []
    for name, rest in re.findall(r"(?<![\w/.])raystitch ([a-z][\w-]*)([^\n`#|]*)", code):
        if name not in commands:
            faults.append(f"raystitch {name}")
            continue
        options = re.findall(r"(?<!\S)--?[a-z][\w-]*", re.sub(r'".*?"', "", rest))
        faults += [f"raystitch {name} {o}" for o in options if o not in commands[name]]
    return faults


def test_commands_of_the_readme_are_there() -> None:
    commands = command_options()
    text = (ROOT / "README.md").read_text("utf-8")
    assert command_faults(text, commands) == []
    unnamed = [name for name in commands if f"raystitch {name}" not in text]
    assert unnamed == []


def test_a_command_that_is_not_there_is_found() -> None:
    text = (
        "Write raystitch nonsense. `raystitch plan f.yaml --why`\n"
        "`raystitch plam`\n```\nraystitch plan f.yaml --wy  # --no\n"
        'raystitch query r "SELECT --x" --format csv\nscripts/quickstart --foo\n```\n'
    )
    commands = {"plan": {"--why"}, "query": {"--format"}, "sweep": {"--storage"}}
    faults = ["raystitch plam", "raystitch plan --wy", "raystitch sweep --foo"]
    assert command_faults(text, commands) == faults


def test_the_sweep_file_of_the_readme_has_no_faults(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    whole = [block for block in blocks if block.startswith("name:")]
    assert len(whole) == 1
    path = tmp_path / "sweep.yaml"
    path.write_text(whole[0], encoding="utf-8")
    found, faults = read_sweep(path)
    assert not faults
    assert found is not None
    path.write_text(whole[0].replace("fula]", "fulla]"), encoding="utf-8")
    assert [fault.place for fault in read_sweep(path)[1]] == ["objectives[3]"]


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
    sections = re.findall(r"^   (\d)\. [A-Z]", text, flags=re.MULTILINE)
    assert sections == list("123456789")
