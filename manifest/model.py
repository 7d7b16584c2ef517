"""What a manifest holds: environments, kernels, variants and autotuner choices."""

from __future__ import annotations

import hashlib
from enum import Enum as PyEnum

import msgspec

from .values import Opaque, Value, first_opaque


class Phase(str, PyEnum):
    """When a variant was first really launched. Later members weigh more when journals are merged."""

    NEVER = "never"
    STARTUP = "startup"
    SERVING = "serving"


def digest(key: str) -> str:
    """Return the digest that stands for the text of one of Triton's keys: 32 hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


PHASE_WEIGHT = {Phase.NEVER: 0, Phase.STARTUP: 1, Phase.SERVING: 2}


class Device(msgspec.Struct, frozen=True):
    """The recorded device: name as the driver gives it, bytes of shared memory per block and of memory."""

    name: str = ""
    shared_memory: int = 0
    multiprocessors: int = 0
    memory: int = 0


class Environment(msgspec.Struct, frozen=True):
    """Where a recording ran. `variables` are the environment variables and knobs that enter a cache key;
    `injected` the options that Triton itself adds to each launch; `settings` the engine's numbers and words."""

    backend: str
    arch: int | str
    warp_size: int
    device: Device = Device()
    jitreplay: str = ""
    triton: str = ""
    torch: str = ""
    python: str = ""
    engine: str = ""
    variables: dict[str, str] = {}
    injected: dict[str, str] = {}
    settings: dict[str, int | float | str | bool | None] = {}

    @property
    def target(self) -> str:
        """The target as commands take it, such as `cuda:90`."""
        return f"{self.backend}:{self.arch}"


class Param(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A kernel's parameter. `annotation` is Triton's normalised text; `kind` Python's, as an integer."""

    name: str
    constexpr: bool = False
    do_not_specialize: bool = False
    do_not_specialize_on_alignment: bool = False
    annotation: str = ""
    kind: int = 1


class Kernel(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """A JITFunction by name and source. `wrappers` are the classes between the module's name and the JITFunction,
    outermost first; `fingerprint` covers its text, its callees and captured constants, not its place in a file.
    `main` is the module that `__main__` was run from, if it was one. `named` says that the module's name led to it: not
    to one that a function made, or that was rewritten from another."""

    module: str
    qualname: str
    fingerprint: str
    params: tuple[Param, ...] = ()
    wrappers: tuple[str, ...] = ()
    gluon: bool = False
    main: str = ""
    named: bool = True

    @property
    def name(self) -> str:
        """Triton's full name: module and qualified name."""
        return f"{self.module}.{self.qualname}"

    @property
    def identity(self) -> tuple[str, str, str]:
        return (self.module, self.qualname, self.fingerprint)


class Argument(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """One argument of a variant: its value, and `spec`, the part of the key that it made.

    `spec` is Triton's type and class, such as `*bf16:D` (pointer, multiple of 16), `i32:` (neither 1 nor a multiple
    of 16), `i64` (not specialised), `constexpr`, or those of its items in parentheses. `derivations` are the
    sizes, strides and settings that had the same value, such as `stride(table,0)` or `max_num_seqs`; they are a set,
    kept sorted.
    """

    value: Value
    spec: str = ""
    derivations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.derivations) > 1:
            msgspec.structs.force_setattr(self, "derivations", tuple(sorted(set(self.derivations))))


Option = tuple[str, Value]


class Variant(msgspec.Struct, frozen=True, gc=False):
    """One key of one kernel, with the launch that showed it.

    `digest` is of Triton's key text. `options` keeps the caller's order. `grid` is a tuple of integers, "callable",
    or None where no real launch was seen. `compile_ms` is 0 where it was not measured or was a disk hit.
    `order` is the order of first sight within a process. `real` says that the arguments are a real launch's.
    `keywords` are parameters that are launch options too (such as `launch_pdl`) and were passed by name: Triton then
    takes them for both. `candidate` is the config that an autotuner was timing; only journals have it (see `merge`).
    """

    kernel: Kernel
    digest: str
    args: tuple[Argument, ...]
    options: tuple[Option, ...] = ()
    grid: tuple[int, ...] | str | None = None
    phase: Phase = Phase.NEVER
    real: bool = False
    ranks: tuple[str, ...] = ()
    order: int = 0
    compile_ms: int = 0
    disk_hit: bool = False
    environments: tuple[int, ...] = ()
    harvested: bool = False
    candidate: tuple[Option, ...] | None = None
    keywords: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[tuple[str, str, str], str]:
        return (self.kernel.identity, self.digest)

    def opaque(self) -> tuple[str, Opaque] | None:
        """Return the name and value of the first argument or option that cannot be rebuilt, or None."""
        for param, argument in zip(self.kernel.params, self.args, strict=False):
            if (found := first_opaque(argument.value)) is not None:
                return param.name, found
        for name, value in self.options:
            if (found := first_opaque(value)) is not None:
                return name, found
        return None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """An autotuner's decision: its key, the winning config by value, median times in ms, the device that timed."""

    kernel: Kernel
    key: tuple[Value, ...]
    kwargs: tuple[Option, ...]
    options: tuple[Option, ...] = ()
    timings: tuple[tuple[str, float], ...] = ()
    device: str = ""
    ranks: tuple[str, ...] = ()
    environments: tuple[int, ...] = ()

    @property
    def identity(self) -> tuple[tuple[str, str, str], tuple[Value, ...], str]:
        return (self.kernel.identity, self.key, self.device)


class Manifest(msgspec.Struct):
    """The content of a manifest, in its canonical order (kernels by name, variants by kernel and digest)."""

    environments: tuple[Environment, ...] = ()
    variants: tuple[Variant, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel that has a variant or a choice, in order."""
        distinct = {id(item.kernel): item.kernel for item in (*self.variants, *self.choices)}
        seen = {kernel.identity: kernel for kernel in distinct.values()}
        return tuple(seen[identity] for identity in sorted(seen))
