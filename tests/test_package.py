"""jitreplay works installed from a wheel, installed editable, and from the root of a checkout with or without either.

Each way is tried in a fresh virtual environment that holds the base dependencies and nothing else: no torch, no Triton.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import jitreplay

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ["manifest", "jit", "recorder", "replayer", "engines", "cli", "examples"]
# jit, engines and examples may need torch or Triton, beyond their own `__init__`.
LIGHT = ["jitreplay", *(f"jitreplay.{room}" for room in ROOMS), "jitreplay.manifest.file", "jitreplay.cli.main"]

REPORT = """
import importlib, json, os, sys
names = json.loads(sys.argv[1])
files = {name: os.path.realpath(importlib.import_module(name).__file__) for name in names}
import jitreplay
print(json.dumps({"files": files, "loaded": sorted(sys.modules), "path": list(jitreplay.__path__)}))
"""


class Environment:
    """A virtual environment without pip; the pip that runs the tests fills it."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.bin = folder / "bin"
        self.site = next(folder.glob("lib/python*/site-packages"))

    def copy(self, *names: str) -> None:
        """Copy distributions and all that they require from the running environment: no download."""
        waiting, seen = list(names), set()
        while waiting:
            name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
            if name in seen:
                continue
            seen.add(name)
            distribution = metadata.distribution(name)
            for file in distribution.files or []:
                if ".." not in file.parts and file.suffix != ".pyc":
                    target = self.site / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(str(file.locate()), target)
            for requirement in map(Requirement, distribution.requires or []):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    waiting.append(requirement.name)

    def pip(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.bin / "python"]
        done = run([*command, *arguments], self.site)
        assert done.returncode == 0, done.stdout + done.stderr

    def report(self, cwd: Path, names: list[str] = LIGHT) -> dict:
        """Import each module in a fresh process and say which files were taken."""
        done = run([self.bin / "python", "-c", REPORT, json.dumps(names)], cwd)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def run(command: list, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JITREPLAY_"))}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean | variables, text=True, capture_output=True, timeout=200
    )


def layout(package: Path, rooms: Path) -> dict[str, str]:
    """The file of each module, where `package` holds the public names and `rooms` the rooms."""
    files = {"jitreplay": package / "__init__.py"}
    files |= {f"jitreplay.{room}": rooms / room / "__init__.py" for room in ROOMS}
    files |= {"jitreplay.manifest.file": rooms / "manifest/file.py", "jitreplay.cli.main": rooms / "cli/main.py"}
    return {name: str(file.resolve()) for name, file in files.items()}


def find_python(version: str) -> Path | None:
    """An interpreter that starts: a version manager leaves stand-ins on the path for those that are not chosen."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    if manager := os.environ.get("PYENV_ROOT"):
        folders += sorted(Path(manager, "versions").glob(f"{version}.*/bin"))
    for folder in folders:
        python = folder / f"python{version}"
        if python.is_file() and run([python, "-c", ""], ROOT).returncode == 0:
            return python
    return None


def assert_light(report: dict) -> None:
    assert not {"torch", "triton", "numpy"} & set(report["loaded"])


def assert_command_works(environment: Environment, cwd: Path) -> None:
    done = run([environment.bin / "jitreplay", "--version"], cwd)
    assert done.returncode == 0, done.stderr
    assert jitreplay.__version__ in done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that a build leaves nothing in the real one."""
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("checkout") / "root", ignore=leave))


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, "."], checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def dependencies(wheel: Path) -> list[str]:
    """What the wheel says it needs when no extra is asked for."""
    [name] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    lines = zipfile.ZipFile(wheel).read(name).decode().splitlines()
    requirements = [Requirement(line.partition(": ")[2]) for line in lines if line.startswith("Requires-Dist: ")]
    return [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def bare(dependencies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Base dependencies, and no jitreplay."""
    environment = Environment(tmp_path_factory.mktemp("bare"))
    environment.copy(*dependencies)
    return environment


@pytest.fixture(scope="module")
def installed(wheel: Path, dependencies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("installed"))
    environment.copy(*dependencies)
    environment.pip("install", "--quiet", "--no-deps", "--no-index", wheel)
    return environment


@pytest.fixture(scope="module")
def editable(checkout: Path, dependencies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("editable"))
    environment.copy("setuptools", *dependencies)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    environment.pip("install", *options, "--editable", checkout)
    return environment


class TestWheel:
    def test_holds_the_rooms_and_nothing_else(self, wheel: Path) -> None:
        names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
        assert {name.split("/")[0] for name in names} == {"jitreplay"}
        assert {name.split("/")[1] for name in names if name.count("/") > 1} == set(ROOMS)
        assert "jitreplay/py.typed" in names
        assert "jitreplay/recorder/site/sitecustomize.py" in names

    def test_holds_every_module_of_every_room(self, wheel: Path, checkout: Path) -> None:
        names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
        sources = {
            f"jitreplay/{file.relative_to(checkout)}" for room in ROOMS for file in checkout.glob(f"{room}/*.py")
        }
        assert sources - names == set()

    def test_carries_its_licence_and_version(self, wheel: Path) -> None:
        archive = zipfile.ZipFile(wheel)
        folder = f"jitreplay-{jitreplay.__version__}.dist-info"
        assert b"Apache License" in archive.read(f"{folder}/licenses/LICENSE")
        assert b"License-Expression: Apache-2.0" in archive.read(f"{folder}/METADATA")

    def test_needs_the_four_base_dependencies(self, installed: Environment, dependencies: list[str]) -> None:
        assert sorted(dependencies) == ["click", "msgpack", "msgspec", "rich"]
        installed.pip("check")

    def test_is_used_from_any_folder(self, installed: Environment, tmp_path: Path) -> None:
        report = installed.report(tmp_path)
        assert report["files"] == layout(installed.site / "jitreplay", installed.site / "jitreplay")
        assert report["path"] == [str(installed.site / "jitreplay")]
        assert_light(report)

    def test_gives_way_to_the_checkout_at_its_root(self, installed: Environment, checkout: Path) -> None:
        report = installed.report(checkout)
        assert report["files"] == layout(checkout / "jitreplay", checkout)
        assert_light(report)

    def test_takes_no_stray_folder_beside_it_for_a_room(self, installed: Environment, tmp_path: Path) -> None:
        """Some distributions leave a pyproject.toml or a folder of a common name in site-packages."""
        copy = tmp_path / "site"
        shutil.copytree(installed.site / "jitreplay", copy / "jitreplay")
        (copy / "manifest").mkdir()
        (copy / "pyproject.toml").touch()
        report = installed.report(copy)
        assert report["path"] == [str(copy / "jitreplay")]

    @pytest.mark.parametrize("where", ["elsewhere", "root"])
    def test_installs_the_command(self, installed: Environment, checkout: Path, tmp_path: Path, where: str) -> None:
        assert_command_works(installed, checkout if where == "root" else tmp_path)


class TestEditable:
    @pytest.mark.parametrize("where", ["elsewhere", "root"])
    def test_is_the_checkout(self, editable: Environment, checkout: Path, tmp_path: Path, where: str) -> None:
        report = editable.report(checkout if where == "root" else tmp_path)
        assert report["files"] == layout(checkout / "jitreplay", checkout)
        assert_light(report)

    @pytest.mark.parametrize("where", ["elsewhere", "root"])
    def test_installs_the_command(self, editable: Environment, checkout: Path, tmp_path: Path, where: str) -> None:
        assert_command_works(editable, checkout if where == "root" else tmp_path)


class TestCheckout:
    def test_works_at_its_root_without_an_install(self, bare: Environment, checkout: Path) -> None:
        report = bare.report(checkout)
        assert report["files"] == layout(checkout / "jitreplay", checkout)
        assert_light(report)

    def test_is_not_found_elsewhere(self, bare: Environment, tmp_path: Path) -> None:
        assert "No module named 'jitreplay'" in run([bare.bin / "python", "-c", "import jitreplay"], tmp_path).stderr


class TestImport:
    """Here torch and Triton are installed, and must not be loaded all the same."""

    def test_brings_in_nothing_heavy(self, tmp_path: Path) -> None:
        code = "import sys, jitreplay; print(*{name.split('.')[0] for name in sys.modules})"
        loaded = set(run([sys.executable, "-c", code], tmp_path).stdout.split())
        assert "jitreplay" in loaded
        assert not {"torch", "triton", "numpy", "rich", "click", "msgspec", "msgpack"} & loaded

    def test_the_readers_bring_in_neither_torch_nor_triton(self, tmp_path: Path) -> None:
        code = "import sys, jitreplay.cli.main, jitreplay.manifest.file, jitreplay.manifest.diff; print(*sys.modules)"
        done = run([sys.executable, "-c", code], tmp_path)
        assert done.returncode == 0, done.stderr
        assert not {"torch", "triton", "numpy"} & set(done.stdout.split())

    def test_offers_its_public_names_before_they_are_loaded(self) -> None:
        assert {"Recorder", "prefetch", "replay", "load", "ready", "__version__"} <= set(dir(jitreplay))
        assert sorted(jitreplay.__all__) == sorted(["Recorder", "prefetch", "replay", "load", "ready", "__version__"])

    @pytest.mark.parametrize(
        "name, home",
        [
            ("Recorder", "jitreplay.recorder.session"),
            ("ready", "jitreplay.recorder.session"),
            ("prefetch", "jitreplay.replayer.replay"),
            ("replay", "jitreplay.replayer.replay"),
            ("load", "jitreplay.manifest.file"),
        ],
    )
    def test_a_public_name_loads_on_first_use(self, name: str, home: str) -> None:
        assert getattr(jitreplay, name) is getattr(sys.modules[home], name)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="module 'jitreplay' has no attribute 'replays'"):
            jitreplay.__getattr__("replays")

    def test_the_version_is_the_distribution_s(self) -> None:
        assert metadata.version("jitreplay") == jitreplay.__version__


class TestArming:
    """`JITREPLAY_RECORD` in the environment starts the recorder at import, and can break no program."""

    @pytest.fixture
    def program(self, checkout: Path, tmp_path: Path) -> Path:
        """A checkout whose bootstrap only says that it was called, or fails."""
        shutil.copytree(checkout / "jitreplay", tmp_path / "jitreplay")
        for file in ["pyproject.toml", "manifest/__init__.py", "recorder/__init__.py"]:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            shutil.copy(checkout / file, tmp_path / file)
        return tmp_path

    def start(self, program: Path, body: str, **variables: str) -> subprocess.CompletedProcess:
        (program / "recorder" / "bootstrap.py").write_text(f"def arm():\n    {body}\n")
        return run([sys.executable, "-c", "import jitreplay; print('imported')"], program, **variables)

    def test_arms_when_asked(self, program: Path) -> None:
        assert self.start(program, "print('armed')", JITREPLAY_RECORD="d").stdout == "armed\nimported\n"

    @pytest.mark.parametrize(
        "variables",
        [{}, {"JITREPLAY_RECORD": ""}, {"JITREPLAY_RECORD": "d", "JITREPLAY_DISABLE": "1"}],
        ids=["unset", "empty", "disabled"],
    )
    def test_stays_out_otherwise(self, program: Path, variables: dict[str, str]) -> None:
        assert self.start(program, "print('armed')", **variables).stdout == "imported\n"

    def test_a_failure_is_one_line(self, program: Path) -> None:
        done = self.start(program, "raise OSError('no room')", JITREPLAY_RECORD="d")
        assert (done.returncode, done.stdout) == (0, "imported\n")
        assert done.stderr == "jitreplay: not recording: OSError: no room\n"

    def test_a_failure_is_survived_without_stderr(self, program: Path) -> None:
        (program / "recorder" / "bootstrap.py").write_text("def arm():\n    raise OSError('no room')\n")
        code = "import sys; sys.stderr = None; import jitreplay; print('imported')"
        assert run([sys.executable, "-c", code], program, JITREPLAY_RECORD="d").stdout == "imported\n"


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_every_module_compiles_on(version: str, tmp_path: Path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    files = [ROOT / "jitreplay" / "__init__.py", *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]
    code = "import sys\nfor name in sys.argv[1:]: compile(open(name, encoding='utf-8').read(), name, 'exec')"
    done = run([python, "-W", "error", "-c", code, *files], tmp_path)
    assert done.returncode == 0, done.stderr
