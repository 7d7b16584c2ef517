"""Start an unpacked vLLM on a machine that has no GPU.

`start()` puts the tree of VLLM_ROOT on the path, gives Triton a headless driver, and stands in for
what a CUDA machine would supply: the compiled extension modules, the operators that vLLM asks for
while it is imported, and the platform. Every buffer is then a CPU tensor, and Triton binds,
specialises and compiles each kernel for the target as a server would; launches do nothing.

Nothing of vLLM may be imported before `start()`: HAS_TRITON is decided once, at the first import
of vllm.triton_utils, by walking the registered drivers.
"""

import contextlib
import functools
import os
import sys
import tempfile
import types
from pathlib import Path

EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    # Present, so that the flash-attention back end is chosen as on a CUDA machine.
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)

# Operators of the CUDA extension that modules of vLLM call while they are imported. All answer no.
IMPORT_TIME_OPS = (
    "cutlass_scaled_mm_supports_block_fp8(int cc) -> bool",
    "cutlass_scaled_mm_supports_fp8(int cc) -> bool",
    "cutlass_group_gemm_supported(int cc) -> bool",
    "cutlass_scaled_mm_supports_fp4(int cc) -> bool",
)

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}

# Operators that layers call or modules look up. They write into tensors that they are given: here
# these stay as they are. The signatures fit both versions of vLLM.
OUTPUT_OPS = {
    "_C": (
        "silu_and_mul(Tensor! out, Tensor input) -> ()",
        "gelu_and_mul(Tensor! out, Tensor input) -> ()",
        "rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()",
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
        "rotary_embedding(Tensor positions, Tensor! query, Tensor? key, int head_size,"
        " Tensor cache, bool is_neox) -> ()",
        "vocab_parallel_embedding(Tensor! out, Tensor ids, Tensor weight, int start, int end, int padding,"
        " int added_start, int added_end) -> ()",
    ),
    "_moe_C": (
        "topk_softmax(Tensor! weights, Tensor! ids, Tensor! rows, Tensor gates, bool renormalize,"
        " Tensor? bias=None, Tensor? is_padding=None) -> ()",
        "moe_align_block_size(Tensor ids, int num_experts, int block_size, Tensor! sorted_ids, Tensor! expert_ids,"
        " Tensor! padded, Tensor? expert_map=None, Tensor? scatter_idx=None) -> ()",
        "moe_sum(Tensor input, Tensor! out, Tensor? ids=None, Tensor? expert_map=None) -> ()",
    ),
}
# Operators of quantization that the fusion passes name when they are imported, and that never run.
NAMED_OPS = (
    "static_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "per_token_group_fp8_quant",
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "silu_and_mul_quant",
    "silu_and_mul_per_block_quant",
    "fused_qk_norm_rope",
)

DEVICES = 8
"""Ranks that one host may have."""

_libraries = []  # a torch Library takes its operators away when it is collected


def start(target="cuda:90/H200"):
    """Make vLLM importable for `target` and return (driver, vllm module)."""
    root = Path(os.environ["VLLM_ROOT"])
    if not (root / "vllm" / "__init__.py").exists():
        raise SystemExit(f"VLLM_ROOT must name the folder of an unpacked vLLM wheel, not {root}")
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    sys.path.insert(0, str(root))
    from jitreplay.jit.headless import install

    driver = install(target)
    for name in EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    _define_operators()
    _stub_streams()
    _tame_tensors()
    import vllm

    _install_platform(driver)
    return driver, vllm


def version():
    """The version of the vLLM in use, as a tuple of two integers."""
    import vllm

    return tuple(int(part) for part in vllm.__version__.split(".")[:2])


def _define_operators():
    import torch

    def define(namespace, definitions, answer):
        library = torch.library.Library(namespace, "FRAGMENT")
        for definition in definitions:
            library.define(definition)
            library.impl(definition.split("(")[0], answer, "CompositeExplicitAutograd")
        _libraries.append(library)

    define("_C", IMPORT_TIME_OPS, lambda *args: False)
    for namespace, definitions in OUTPUT_OPS.items():
        define(namespace, definitions, lambda *args: None)
    define("_C", [f"{name}() -> ()" for name in NAMED_OPS], lambda: None)
    define("_C", ["get_cuda_view_from_cpu_tensor(Tensor tensor) -> Tensor"], lambda tensor: tensor)
    # torchvision's wheel is built for CUDA; next to a CPU torch its operators are missing, and these
    # are asked for when it is imported.
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    define("torchvision", [f"nms{boxes}", f"qnms{boxes}"], lambda dets, scores, iou_threshold: dets)


class _Event:
    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        pass

    def synchronize(self):
        pass

    def wait(self, *args):
        pass

    def query(self):
        return True


class _Stream:
    cuda_stream = 0

    def __init__(self, *args, **kwargs):
        import torch

        self.device = torch.device("cpu")

    def wait_stream(self, *args):
        pass

    def wait_event(self, *args):
        pass

    def synchronize(self):
        pass

    def record_event(self, *args):
        return _Event()


def _stub_streams():
    """Streams and events that do nothing, as vLLM's own CPU runner has them."""
    import torch

    def quiet(*names):
        # A function each: Dynamo keys its handlers on the function, and two names of one would clash.
        for owner, name in names:
            setattr(owner, name, lambda *args, **kwargs: None)

    cuda, accelerator = torch.cuda, torch.accelerator
    torch.Event = cuda.Event = _Event
    cuda.Stream = _Stream
    cuda.current_stream = lambda *args: _Stream()
    cuda.default_stream = lambda *args: _Stream()
    cuda.stream = lambda *args: contextlib.nullcontext()
    for module in (cuda, accelerator):
        quiet((module, "synchronize"), (module, "empty_cache"), (module, "reset_peak_memory_stats"))
        module.memory_stats = lambda *args: {}
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            setattr(module, name, lambda *args: 0)
        module.device_count = lambda: DEVICES
    quiet((cuda, "set_stream"), (accelerator, "empty_host_cache"), (accelerator, "set_device_index"))
    quiet((torch.Tensor, "record_stream"), (torch._C, "_accelerator_setAllocatorSettings"))
    accelerator.current_device_index = lambda: 0
    accelerator.get_memory_info = lambda *args: (1 << 37, 1 << 37)
    cuda.mem_get_info = lambda *args: (1 << 37, 1 << 37)
    cuda.memory.get_allocator_backend = lambda: "none"


def _tame_tensors():
    """Take pinned memory for granted, and make torch.empty and its kin return zeros.

    No kernel fills new tensors here, and what a server computes from them on the host (indices,
    counts) has to stay in range.
    """
    import torch

    def tamed(make, zero):
        @functools.wraps(make)
        def make_tamed(*args, pin_memory=False, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.zero_() if zero and tensor.device.type == "cpu" else tensor

        return make_tamed

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, tamed(getattr(owner, name), True))
    for name in ("zeros", "ones", "full", "tensor", "arange", "empty_strided", "zeros_like"):
        setattr(torch, name, tamed(getattr(torch, name), False))
    torch.Tensor.pin_memory = lambda tensor, *args: tensor
    torch.Tensor.is_pinned = lambda tensor, *args: True


def _install_platform(driver):
    """A CUDA platform whose tensors lie on the CPU.

    Derived from vLLM's own NonNvmlCudaPlatform, so that every choice by platform is the one of a
    CUDA machine; what that class asks the driver or NVML is answered here.
    """
    import torch
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    capability = divmod(int(driver.get_current_target().arch), 10)

    class HeadlessCudaPlatform(NonNvmlCudaPlatform):
        device_type = "cpu"
        dispatch_key = "CPU"
        dist_backend = "gloo"

        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id=0):
            return torch.cuda.get_device_name(device_id)

        @classmethod
        def get_device_total_memory(cls, device_id=0):
            return torch.cuda.get_device_properties(device_id).total_memory

        @classmethod
        def get_device_uuid(cls, device_id=0):
            return "headless"

        @classmethod
        def get_current_memory_usage(cls, device=None):
            return 0.0

        @classmethod
        def device_count(cls):
            return DEVICES

        @classmethod
        def get_device_communicator_cls(cls):
            return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"

        @classmethod
        def is_pin_memory_available(cls):
            return True

        @classmethod
        def get_default_ir_op_priority(cls, vllm_config):
            from vllm.config.kernel import IrOpPriorityConfig

            return IrOpPriorityConfig.with_default(["native"])

        @classmethod
        def num_compute_units(cls, device_id=0):
            return torch.cuda.get_device_properties(device_id).multi_processor_count

    vllm.platforms._current_platform = HeadlessCudaPlatform()


@contextlib.contextmanager
def alone(vllm_config=None):
    """A process group of one and a default VllmConfig, for layers that ask for their rank."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    with set_current_vllm_config(vllm_config or VllmConfig()):
        if not parallel_state.model_parallel_is_initialized():
            _, path = tempfile.mkstemp(prefix="world-of-one-")
            parallel_state.init_distributed_environment(1, 0, f"file://{path}", 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1)
        yield
