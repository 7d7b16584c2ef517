"""The options that a manifest may set, by backend. Any other makes its variant opaque.

None names a path (`extern_libs`, `ir_override`), a compiler flag (`ptx_options`, `llvm_fn_attrs`) or another target
(`arch`, `backend_name`, `warp_size`): a manifest is data from outside. Read from CUDAOptions and HIPOptions of Triton
3.6.0 to 3.9.0.
"""

from __future__ import annotations

from ..manifest import values as V

_COMMON: dict[str, tuple[type, ...]] = {
    "num_warps": (V.Integer,),
    "num_stages": (V.Integer,),
    "num_ctas": (V.Integer,),
    "cluster_dims": (V.Tuple,),
    "enable_fp_fusion": (V.Bool,),
    "launch_cooperative_grid": (V.Bool,),
    "default_dot_input_precision": (V.Text,),
    "allowed_dot_input_precisions": (V.Tuple,),
    "supported_fp8_dtypes": (V.Tuple,),
    "deprecated_fp8_dot_operand_dtypes": (V.Tuple,),
    "max_num_imprecise_acc_default": (V.Integer, V.Nothing),
    "sanitize_overflow": (V.Bool,),
    "min_shared_mem": (V.Integer, V.Nothing),
    "debug": (V.Bool, V.Nothing, V.Integer),
    "warp_specialize": (V.Bool,),
}
_BY_BACKEND: dict[str, dict[str, tuple[type, ...]]] = {
    "cuda": {
        "maxnreg": (V.Integer, V.Nothing),
        "launch_pdl": (V.Bool,),
        "ptx_version": (V.Integer, V.Nothing),
        "enable_reflect_ftz": (V.Bool,),
        "sched4reg": (V.Bool,),
        "clc": (V.Bool,),
        "reg_dec_producer": (V.Integer,),
        "reg_inc_consumer": (V.Integer,),
        "num_consumer_groups": (V.Integer,),
        "num_buffers_warp_spec": (V.Integer,),
    },
    "hip": {
        "waves_per_eu": (V.Integer,),
        "matrix_instr_nonkdim": (V.Integer,),
        "kpack": (V.Integer,),
        "schedule_hint": (V.Text,),
        "allow_flush_denorm": (V.Bool,),
        "instruction_sched_variant": (V.Text,),
        "wgp_cu_mode": (V.Text,),
    },
}


def names() -> frozenset[str]:
    """Return the names of the options of all backends."""
    return frozenset().union(_COMMON, *_BY_BACKEND.values())


def refused(backend: str, options: tuple[tuple[str, V.Value], ...]) -> str:
    """Return why an option may not be replayed on this backend, or "" when all may."""
    allowed = {**_COMMON, **_BY_BACKEND.get(backend, {})}
    for name, value in options:
        if name not in allowed:
            return f"option {name} is not one that a manifest may set for {backend}"
        if not isinstance(value, allowed[name]):
            return f"option {name} has a value of a kind that it does not take"
    return ""
