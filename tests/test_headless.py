"""A target without its GPU: what it compiles, what it answers, and that nothing of it stays.

Each program runs in a process of its own, since a driver and torch.cuda are global; it prints one JSON value.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jitreplay.jit.devices import DEVICES, parse_target

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ["cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942", "hip:gfx950"]

# e_machine and, for AMD, the low byte of e_flags: LLVM's BinaryFormat/ELF.h
EM_CUDA, EM_AMDGPU = 190, 224
MACH = {"gfx942": 0x4C, "gfx950": 0x4F}

PRELUDE = """
import gc, json, sys, weakref
import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.runtime.driver import driver as config
from jitreplay.jit import headless
from jitreplay.jit.headless import install, uninstall

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

def answer(value):
    print(json.dumps(value))
"""


def run(folder: Path, program: str, prelude: str = PRELUDE) -> Any:
    """Run a program with a Triton cache of its own and return the JSON of its last line."""
    script = folder / "program.py"
    script.write_text(prelude + dedent(program))
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TestParseTarget:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("cuda:75", "Tesla T4"),
            ("cuda:80", "NVIDIA A100-SXM4-80GB"),
            ("cuda:90", "NVIDIA H100 80GB HBM3"),
            ("cuda:90/H200", "NVIDIA H200"),
            ("cuda:90/nvidia h200", "NVIDIA H200"),
            ("cuda:100", "NVIDIA B200"),
            ("cuda:120", "NVIDIA GeForce RTX 5090"),
            ("hip:gfx942", "AMD Instinct MI300X"),
            ("hip:gfx950/MI355X", "AMD Instinct MI355X"),
        ],
    )
    def test_names_the_device(self, text: str, name: str) -> None:
        target, device = parse_target(text)

        assert name == device.name
        assert text.partition("/")[0] == str(target)
        assert (device.backend, device.arch, device.warp_size) == (target.backend, target.arch, target.warp_size)

    @pytest.mark.parametrize("text", ["", "cuda", "cuda:", "cuda:91", "hip:90", "cuda:gfx942", "H200", "cuda:90a"])
    def test_an_unknown_target_lists_the_known_ones(self, text: str) -> None:
        with pytest.raises(ValueError, match="unknown target") as caught:
            parse_target(text)

        for device in DEVICES.values():
            assert str(device.target) in str(caught.value)
        assert "cuda:90/H200" in str(caught.value)

    @pytest.mark.parametrize("text", ["cuda:90/", "cuda:90/H300", "cuda:80/H200"])
    def test_an_unknown_device_lists_those_of_the_target(self, text: str) -> None:
        with pytest.raises(ValueError, match="leave the device out") as caught:
            parse_target(text)

        short, name = ("A100-40GB", "NVIDIA A100-SXM4-40GB") if "80" in text else ("H200", "NVIDIA H200")
        assert f"{short} ({name})" in str(caught.value)

    def test_imports_neither_torch_nor_triton(self, tmp_path: Path) -> None:
        program = """
            import json, sys
            import jitreplay.jit.devices
            print(json.dumps([name for name in ("torch", "triton") if name in sys.modules]))
        """

        assert run(tmp_path, program, prelude="") == []


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One kernel for every target, in one process, each install over the one before."""
    program = f"""
        found = {{}}
        for target in {TARGETS}:
            driver = install(target)
            x, out = torch.ones(1000), torch.zeros(1000)
            kernel = add[(4,)](x, x, out, 1000, BLOCK=256)
            binary = kernel.kernel
            found[target] = dict(
                target=[*vars(kernel.metadata.target).values()],
                elf=binary[:64].hex(),
                asm=sorted(kernel.asm),
                shared=triton.compiler.compiler.max_shared_mem(0),
                counts=[driver.launches, driver.loads],
                untouched=not out.any().item(),
                cpp=driver.map_python_to_cpp_type("*fp32"),
            )
        answer(found)
    """
    return run(tmp_path_factory.mktemp("compile"), program)


class TestCompile:
    @pytest.mark.parametrize("target", TARGETS)
    def test_the_binary_is_the_targets(self, compiled: dict[str, Any], target: str) -> None:
        found, (wanted, device) = compiled[target], parse_target(target)
        elf = bytes.fromhex(found["elf"])
        machine, flags = struct.unpack_from("<H", elf, 18)[0], struct.unpack_from("<I", elf, 48)[0]

        assert [wanted.backend, wanted.arch, wanted.warp_size] == found["target"]
        assert elf.startswith(b"\x7fELF")
        if wanted.backend == "cuda":
            assert "cubin" in found["asm"]
            assert machine == EM_CUDA
            # ptxas 13 moved the architecture up by a byte
            assert wanted.arch in (flags & 0xFF, flags >> 8 & 0xFF)
        else:
            assert "hsaco" in found["asm"]
            assert machine == EM_AMDGPU
            assert MACH[str(wanted.arch)] == flags & 0xFF
        assert device.max_shared_mem == found["shared"]

    @pytest.mark.parametrize("target", TARGETS)
    def test_a_launch_is_counted_and_dropped(self, compiled: dict[str, Any], target: str) -> None:
        found = compiled[target]

        assert found["counts"] == [1, 1]
        assert found["untouched"]
        assert found["cpp"] == ("hipDeviceptr_t" if target.startswith("hip") else "CUdeviceptr")


class TestLaunch:
    def test_alignment_makes_the_key(self, tmp_path: Path) -> None:
        program = """
            install("cuda:90")
            x, out = torch.ones(1024), torch.zeros(1024)
            add[(4,)](x, x, out, 1000, BLOCK=256)
            add[(4,)](x[4:], x, out, 1000, BLOCK=256)
            before = len(add.device_caches[0][0])
            add[(4,)](x[1:], x, out, 1000, BLOCK=256)
            answer([before, sorted(add.device_caches[0][0])])
        """
        before, keys = run(tmp_path, program)

        assert (before, len(keys)) == (1, 2)
        assert sorted("('*fp32', 'D'), ('*fp32', 'D'), ('*fp32', 'D')" in key for key in keys) == [False, True]

    def test_callbacks_and_hooks_see_it(self, tmp_path: Path) -> None:
        program = """
            driver, seen = install("cuda:90"), []
            driver.on_launch.append(lambda name, grid: seen.append([name, *grid]))
            triton.knobs.runtime.launch_enter_hook = lambda metadata: seen.append("enter")
            triton.knobs.runtime.launch_exit_hook = lambda metadata: seen.append("exit")
            x = torch.ones(1000)
            add[lambda meta: (4, meta["BLOCK"])](x, x, x, 1000, BLOCK=256)
            answer([seen, driver.launches, driver.loads])
        """

        assert run(tmp_path, program) == [["enter", ["add", 4, 256, 1], "exit"], 1, 1]

    def test_tensors_are_freed_at_once(self, tmp_path: Path) -> None:
        program = """
            driver = install("cuda:90")
            gc.disable()

            # in a function: Triton's compiler copies a kernel's globals, and lets go of them at the next collection
            def launch(start):
                x, y = torch.ones(1000), torch.ones(1000)
                kernel = add[(start,)](x, y, x, 1000, BLOCK=256)
                kernel[(start, 1, 1)](x, y, x, 1000, 256)
                return [weakref.ref(x), weakref.ref(y)]

            alive = [*launch(4), *launch(5)]
            answer([driver.launches, [ref() is None for ref in alive]])
        """

        assert run(tmp_path, program) == [4, [True] * 4]

    def test_a_binary_past_the_devices_shared_memory_is_refused(self, tmp_path: Path) -> None:
        program = """
            from dataclasses import replace
            from jitreplay.jit.devices import parse_target

            @triton.jit
            def dot(a, b, out, K, B: tl.constexpr):
                i = tl.arange(0, B)
                acc = tl.zeros((B, B), tl.float32)
                for k in range(0, K, B):
                    acc = tl.dot(tl.load(a + i[:, None] * K + k + i), tl.load(b + (k + i)[:, None] * B + i), acc)
                tl.store(out + i[:, None] * B + i, acc)

            x, out, found = torch.ones(4096, dtype=torch.float16), torch.ones(4096), []
            small = replace(parse_target("cuda:90")[1], max_shared_mem=1024)
            for device in (None, small, None):
                with install("cuda:90", device):
                    try:
                        dot[(1,)](x, x, out, 64, B=64)
                        found.append("launched")
                    except triton.runtime.errors.OutOfResources as error:
                        found.append(error.limit)
            answer(found)
        """

        assert run(tmp_path, program) == ["launched", 1024, "launched"]

    def test_liger_rms_norm_runs_on_cpu_tensors(self, tmp_path: Path) -> None:
        pytest.importorskip("liger_kernel")
        program = """
            driver = install("cuda:90/H200")
            from liger_kernel.ops.rms_norm import LigerRMSNormFunction
            seen = []
            driver.on_launch.append(lambda name, grid: seen.append(name))
            x = torch.randn(4, 8, 512, dtype=torch.bfloat16)
            y = LigerRMSNormFunction.apply(x, torch.ones(512, dtype=torch.bfloat16), 1e-6)
            answer([list(y.shape), seen])
        """
        shape, seen = run(tmp_path, program)

        assert shape == [4, 8, 512]
        assert len(seen) == 1
        assert "rms_norm_forward" in seen[0]


class TestAnswers:
    @pytest.mark.parametrize("target", ["cuda:90/H200", "hip:gfx942"])
    def test_torch_describes_the_device(self, tmp_path: Path, target: str) -> None:
        program = f"""
            install({target!r})
            props = torch.cuda.get_device_properties("cuda:0")
            with torch.cuda.device(0), torch.cuda.device_of(torch.ones(1)), torch.cuda.stream(None):
                torch.cuda.set_device(0)
                torch.cuda.synchronize()
            answer(dict(
                name=[torch.cuda.get_device_name(0), props.name],
                capability=[list(torch.cuda.get_device_capability()), [props.major, props.minor]],
                count=[torch.cuda.device_count(), torch.cuda.current_device(), torch.cuda.is_available()],
                stream=torch.cuda.current_stream().cuda_stream,
                facts=[props.multi_processor_count, props.total_memory, props.shared_memory_per_block_optin,
                       props.L2_cache_size, props.warp_size, props.max_threads_per_multi_processor],
                arch=props.gcnArchName,
                triton=config.active.utils.get_device_properties(0),
                hip=torch.version.hip,
            ))
        """
        _, device = parse_target(target)
        found = run(tmp_path, program)

        assert [device.name] * 2 == found["name"]
        assert [list(device.capability)] * 2 == found["capability"]
        assert found["count"] == [1, 0, False]
        assert found["stream"] == 0
        facts = (device.multiprocessors, device.total_memory, device.max_shared_mem, device.l2, device.warp_size)
        assert [*facts, device.max_threads_per_multiprocessor] == found["facts"]
        assert found["arch"].startswith(str(device.arch) if device.backend == "hip" else device.name)
        assert device.max_shared_mem == found["triton"]["max_shared_mem"]
        assert found["hip"] == ("headless" if device.backend == "hip" else None)

    def test_the_h200_is_as_its_driver_says(self) -> None:
        device = DEVICES["H200"]

        assert (device.total_memory, device.l2, device.max_shared_mem) == (150109880320, 62914560, 232448)
        # Triton 3.6.0 on an H200: driver.active.utils.get_device_properties(0)
        assert device.triton_properties() == {
            "max_shared_mem": 232448,
            "max_num_regs": 65536,
            "multiprocessor_count": 132,
            "warpSize": 32,
            "sm_clock_rate": 1980000,
            "mem_clock_rate": 3201000,
            "mem_bus_width": 6016,
        }

    @pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
    def test_exactly_one_driver_is_active_and_no_other_is_asked(self, tmp_path: Path, target: str) -> None:
        program = f"""
            def probe(*args):
                raise SystemExit("a real driver was asked")

            for backend in backends.values():
                backend.driver.__init__ = probe
                backend.driver.is_active = staticmethod(probe)
            driver = install({target!r})
            active = [b.driver for b in backends.values() if b.driver and b.driver.is_active()]
            same = config.active is driver and config.default is driver
            config.reset_active()
            answer([active == [type(driver)], same, config.active is driver, sorted(backends)])
        """

        assert run(tmp_path, program) == [True, True, True, ["amd", "nvidia"]]


class TestAutotuner:
    def test_the_first_config_wins_and_is_not_kept_on_disk(self, tmp_path: Path) -> None:
        program = """
            from pathlib import Path
            configs = [triton.Config({"BLOCK": b}) for b in (512, 128, 256)]
            tuned = triton.autotune(configs, key=["n"], cache_results=True)(add)
            x, found = torch.ones(1024), []
            for target in ("cuda:80", "cuda:90"):
                with install(target) as driver:
                    tuned[(4,)](x, x, x, 1000)
                    tuned[(4,)](x, x, x, 2000)
                    found.append([[c.kwargs["BLOCK"] for c in tuned.cache.values()], driver.launches, driver.loads])
                    slow = triton.testing.do_bench(lambda: None, quantiles=[0.5])
            files = [str(p) for p in Path(__file__).with_name("cache").rglob("*.autotune.json")]
            answer([found, len(tuned.cache), "do_bench" in vars(tuned), slow, files])
        """
        found, left, bench, slow, files = run(tmp_path, program)

        # three timed launches and a real one for each of two keys; a config binds n = 1000 and n = 2000 apart
        assert found == [[[512, 512], 8, 6]] * 2
        assert (left, bench, slow, files) == (0, False, 1.0, [])


class TestUninstall:
    def test_everything_is_as_it_was_found(self, tmp_path: Path) -> None:
        program = """
            owners = dict(torch=torch.cuda, testing=triton.testing, tuner=triton.runtime.autotuner.Autotuner,
                          config=config, compiler=triton.compiler.compiler, jit=triton.runtime.jit)
            def look():
                return {name: dict(vars(owner)) for name, owner in owners.items()} | {"backends": dict(backends)}
            def changed(before, after):
                return sorted(
                    f"{name}.{key}" for name in before for key in before[name].keys() | after[name].keys()
                    if before[name].get(key, before) is not after[name].get(key, before)
                )
            before, order, place = look(), list(backends), id(backends)
            first = install("cuda:80")
            driver = install("hip:gfx942")
            during = changed(before, look())
            first.uninstall()
            still = config.active is driver
            x = torch.ones(1000)
            kernel = add[(4,)](x, x, x, 1000, BLOCK=256)
            driver.uninstall()
            driver.uninstall()
            uninstall()
            answer(dict(
                during=during, still=still, after=changed(before, look()),
                backends=order == list(backends) and place == id(backends),
                kernel=[kernel.module, kernel.function, kernel._run], caches=dict(add.device_caches),
                shared=triton.compiler.compiler.max_shared_mem.cache_info().currsize,
            ))
        """
        found = run(tmp_path, program)

        assert {"backends.amd", "backends.nvidia", "config._active", "torch.get_device_name"} < set(found["during"])
        assert found["still"], "uninstalling the replaced one must not touch the one that replaced it"
        assert found["after"] == []
        assert found["backends"]
        # a kernel that somebody kept is compiled but not loaded, and no kernel remembers it
        assert (found["kernel"], found["caches"], found["shared"]) == ([None] * 3, {}, 0)

    def test_kernels_and_choices_from_before_come_back(self, tmp_path: Path) -> None:
        program = """
            tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (512, 128)], key=["n"])(add)
            install("cuda:80")
            x = torch.ones(1000)
            tuned[(4,)](x, x, x, 1000)
            kernels, choices = dict(add.device_caches), dict(tuned.cache)
            # what `install` would find if another driver had been at work
            with headless.HeadlessDriver.__new__(headless.HeadlessDriver) as other:
                other._undo = []
                headless._set_aside(other, headless._look_up())
                empty = [len(add.device_caches), len(tuned.cache)]
                tuned[(4,)](x, x, x, 16)
            answer([empty, dict(add.device_caches) == kernels, dict(tuned.cache) == choices])
        """

        assert run(tmp_path, program) == [[0, 0], True, True]

    def test_an_error_inside_uninstalls(self, tmp_path: Path) -> None:
        program = """
            try:
                with install("cuda:90"):
                    raise KeyError
            except KeyError:
                answer([config._active, headless._installed])
        """

        assert run(tmp_path, program) == [None, None]


class TestErrors:
    @pytest.mark.parametrize(
        "missing", ["triton.compiler.compiler.max_shared_mem", "triton.runtime.autotuner.Autotuner.check_disk_cache"]
    )
    def test_a_triton_without_a_needed_name_is_named(self, tmp_path: Path, missing: str) -> None:
        program = f"""
            before = dict(backends)
            del {missing}
            try:
                install("cuda:90")
            except headless.HeadlessError as error:
                answer([str(error), triton.__version__, before == backends, config._active])
        """
        text, version, same, active = run(tmp_path, program)

        assert f"Triton {version}" in text
        assert missing.rpartition(".")[2] in text
        assert (same, active) == (True, None)

    def test_a_failed_install_leaves_what_was_there(self, tmp_path: Path) -> None:
        program = """
            from jitreplay.jit.devices import DEVICES
            driver, errors = install("cuda:90"), []
            for target, device in (("cuda:91", None), ("cuda:80", DEVICES["H200"])):
                try:
                    install(target, device)
                except ValueError as error:
                    errors.append(str(error))
            answer([errors, config.active is driver])
        """
        errors, same = run(tmp_path, program)

        assert "unknown target 'cuda:91'" in errors[0]
        assert "NVIDIA H200 is a cuda:90 device" in errors[1]
        assert same
