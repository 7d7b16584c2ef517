"""What a kernel is: its name, its wrappers, its parameters, and a fingerprint of its source.

The fingerprint covers the kernel's own text, the text of all functions it calls and the constants it captures, not
its line or file: a kernel that only moved is the same. Triton's own functions count by name, so that another Triton
does not make it another kernel. Triton's own `cache_key` also holds the line, and freezes
at the first compile (Triton 3.6.0 to 3.9.0, `JITCallable.cache_key`), so it is not used.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
import types
import weakref
from typing import Any

from ..manifest.model import Kernel, Param
from .internals import internals

_MISSING = object()
_cache: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()


def fingerprint(fn: Any) -> str:
    """Return the fingerprint of a JITFunction or constexpr function, as 32 hexadecimal digits."""
    return _fingerprint(fn, ())


def _fingerprint(fn: Any, above: tuple[int, ...]) -> str:
    if id(fn) in above:
        return f"recursion {above.index(id(fn))}"
    source = getattr(fn, "_src", None) or ""
    parts = [source, repr([_flags(param) for param in getattr(fn, "params", ())]), str(getattr(fn, "noinline", None))]
    for name, value in sorted(_references(fn, source).items()):
        parts.append(f"{name}={_describe(value, (*above, id(fn)))}")
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _flags(param: Any) -> tuple[Any, ...]:
    return (param.name, param.annotation, bool(param.do_not_specialize), bool(param.do_not_specialize_on_alignment))


def _references(fn: Any, source: str) -> dict[str, Any]:
    """Return what the source names from outside: dotted names to values. Nothing is called."""
    raw = getattr(fn, "fn", fn)
    scope = dict(getattr(raw, "__globals__", {}))
    for name, cell in zip(raw.__code__.co_freevars, raw.__closure__ or (), strict=False):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            continue
    found: dict[str, Any] = {}
    for dotted in _names(source):
        if dotted[0] not in scope:
            continue
        value = scope[dotted[0]]
        for part in dotted[1:]:
            if not (inspect.ismodule(value) or inspect.isclass(value)):
                break
            value = inspect.getattr_static(value, part, _MISSING)
            value = getattr(value, "__func__", value)
        if value is not _MISSING and not inspect.ismodule(value):
            found[".".join(dotted)] = value
    return found


@functools.lru_cache(4096)
def _names(source: str) -> tuple[tuple[str, ...], ...]:
    """Return the dotted names of a source, each once, as first walked; none where it is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(dict.fromkeys(dotted for node in ast.walk(tree) if (dotted := _dotted(node)) is not None))


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


def _describe(value: Any, above: tuple[int, ...]) -> str:
    """Return a text for a captured value. Only listed kinds are looked into; of others only the type counts."""
    names = internals()
    if isinstance(value, names.JITCallable):
        if value.fn.__module__.partition(".")[0] == "triton":
            return f"{value.fn.__module__}.{value.fn.__qualname__}"
        return _fingerprint(value, above)
    inner = getattr(value, "fn", None)
    if isinstance(value, (names.Autotuner, names.Heuristics)):
        return _describe(inner, above)
    kind = type(value)
    if kind.__name__ == "constexpr" and kind.__module__.startswith("triton."):
        return f"constexpr({_describe(value.value, above)})"
    if kind in (int, bool, str, bytes, float, type(None)):
        return f"{kind.__name__} {value!r}"
    if kind in (tuple, list) and len(value) <= 256:
        return f"{kind.__name__}[{', '.join(_describe(item, above) for item in value)}]"
    if kind.__name__ == "dtype" and kind.__module__.split(".")[0] in ("triton", "torch"):
        return f"dtype {value}"
    if kind is types.FunctionType and value.__module__.partition(".")[0] != "triton":
        return f"function {_text(value)}"  # what a constexpr function calls
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return f"{kind.__module__}.{kind.__qualname__}" + (f" {value.__module__}.{name}" if isinstance(name, str) else "")


def _text(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return f"{function.__module__}.{function.__qualname__}"


def chain(value: Any) -> list[Any]:
    """Return a kernel object and what it wraps, down to the JITFunction; empty when there is none.

    Autotuners, heuristics and third parties' wrappers hold the next one in `fn` (or `__wrapped__`).
    """
    cls, found = internals().JITFunction, []
    for _ in range(16):
        found.append(value)
        if issubclass(type(value), cls):
            return found
        fields = getattr(value, "__dict__", {})
        value = fields.get("fn", fields.get("__wrapped__", _MISSING))
        if value is _MISSING:
            break
    return []


def unwrap(value: Any) -> Any:
    """Return the JITFunction inside a kernel object, or None."""
    found = chain(value)
    return found[-1] if found else None


def kernel(fn: Any) -> Kernel:
    """Return what the manifest says of a JITFunction; its wrappers as its module's own name shows them."""
    python = fn.fn
    main = ""
    if fn.module == "__main__":
        module = sys.modules.get("__main__")
        spec = getattr(module, "__spec__", None)
        main = spec.name if spec is not None else ""
    wrappers, named = _held(fn)
    return Kernel(
        fn.module,
        python.__qualname__,
        cached_fingerprint(fn),
        tuple(
            Param(
                param.name,
                bool(param.is_constexpr),
                bool(param.do_not_specialize),
                bool(param.do_not_specialize_on_alignment),
                param.annotation,
                int(param._param.kind),
            )
            for param in fn.params
        ),
        wrappers,
        bool(fn.is_gluon()),
        main,
        named,
    )


def cached_fingerprint(fn: Any) -> str:
    """Return the fingerprint, computed once for each source text that Triton has hashed."""
    mark = (fn._src, fn.hash)
    # A JITFunction hashes by its cache_key, which would freeze it: so key the cache by the Python function.
    found = _cache.get(fn.fn)
    if found is not None and found[0] == mark:
        return found[1]
    value = fingerprint(fn)
    if fn.hash is not None:
        _cache[fn.fn] = (mark, value)
    return value


def _held(fn: Any) -> tuple[tuple[str, ...], bool]:
    """Return the classes around a kernel as its module's own name shows them, and whether that name leads to it.

    It does not for one that a function made, nor for one of many rewritten from one source. An object of a third party
    that cannot be looked into is taken to.
    """
    if "<locals>" in fn.fn.__qualname__:
        return (), False
    value: Any = sys.modules.get(fn.module, _MISSING)
    for part in fn.fn.__qualname__.split("."):
        value = getattr(value, "__dict__", {}).get(part, _MISSING)
        value = getattr(value, "__func__", value)
    found = chain(value) if value is not _MISSING else []
    if not found:
        return (), value is not _MISSING
    if found[-1] is not fn:
        return (), False
    return tuple(f"{type(item).__module__}.{type(item).__qualname__}" for item in found[:-1]), True
