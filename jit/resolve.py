"""Finding what a manifest names: kernels, and the few kinds of classes that values need.

A manifest is data from outside. A module is imported only when its top-level package is allowed, and a walk along
attributes must end in a JITFunction (or in an enum, named tuple or Gluon layout class), else it is refused.
"""

from __future__ import annotations

import enum
import gc
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterable
from typing import Any

from ..manifest.model import Kernel
from .internals import internals
from .source import cached_fingerprint, chain, unwrap

_TRITON_USERS = {"triton", "torch", "pytorch-triton-rocm", "pytorch-triton-xpu"}


class Unresolved(Exception):
    """A name of the manifest that this process cannot or must not resolve; the text is the reason."""


class Absent(Unresolved):
    """A kernel that is not there, but may come: the function that makes it runs later, or the program is its module."""


def triton_packages() -> set[str]:
    """Return the top-level packages of installed distributions that declare a dependency on Triton or torch.

    These are what the commands allow by themselves: importing an installed kernel library is what a user of such a
    command asks for. (Source: `importlib.metadata.packages_distributions` and `requires`.)
    """
    allowed = set()
    for package, names in importlib.metadata.packages_distributions().items():
        for name in set(names):
            try:
                needs = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue
            words = {_requirement(text) for text in needs}
            if words & _TRITON_USERS or name.lower() in _TRITON_USERS:
                allowed.add(package)
    return allowed


def _requirement(text: str) -> str:
    name = text.strip()
    for index, char in enumerate(name):
        if not (char.isalnum() or char in "-_."):
            return name[:index].lower().replace("_", "-")
    return name.lower().replace("_", "-")


class Resolver:
    """Resolves names, importing only allowed packages. `allow` holds top-level packages."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allow = {name.partition(".")[0] for name in allow}
        self._found: dict[tuple[str, str, str], list[Any]] = {}
        self._errors: dict[str, str] = {}
        self._live: dict[tuple[str, str], list[Any]] | None = None

    def module(self, name: str) -> Any:
        """Return a module by name. Raises Unresolved when it is not allowed or cannot be imported."""
        if (loaded := sys.modules.get(name)) is not None:
            return loaded
        if name in self._errors:
            raise Unresolved(self._errors[name])
        if name.rpartition(".")[2] == "__main__":
            raise Unresolved(f"{name} is a program; it is not started to look for its kernels")
        top = name.partition(".")[0]
        try:
            if top not in self._allow and top not in sys.modules:
                raise Unresolved(f"package {top} is not imported and not allowed; allow it by --allow {top}")
            if not all(part.isidentifier() for part in name.split(".")):
                raise Unresolved(f"{name!r} is no module name")
            return importlib.import_module(name)
        except Unresolved as error:
            self._errors[name] = str(error)
            raise
        except ModuleNotFoundError as error:
            self._errors[name] = f"module {name} cannot be imported: {error} (PYTHONPATH may name its folder)"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._errors[name] = f"module {name} cannot be imported: {type(error).__name__}: {_first_line(error)}"
        raise Unresolved(self._errors[name])

    def refresh(self) -> None:
        """Forget what was not found, and which kernels are alive: the program went on."""
        self._live = None
        self._errors.clear()

    def kernel(self, kernel: Kernel) -> Any:
        """Return the live JITFunction of a kernel: by name, else by fingerprint among those that exist.

        The one found by name may have another fingerprint: it is the kernel as it is now. One that a function made, or
        that was rewritten from another, is never found by name alone. Raises Unresolved, Absent where it may yet come.
        """
        return self.kernels(kernel)[0]

    def kernels(self, kernel: Kernel) -> list[Any]:
        """Return the live JITFunctions of a kernel as `kernel` does; several where a function made it several times."""
        found = self._found.get(kernel.identity)
        if found is None:
            found = self._found[kernel.identity] = self._find(kernel, internals().JITFunction, kernel.named)
        return found

    def _find(self, wanted: Kernel, cls: type, named: bool) -> list[Any]:
        reason, changed = "", None
        for name in _modules(wanted):
            try:
                fn = self._by_name(name, wanted.qualname, cls)
            except Unresolved as error:
                reason = reason or str(error)
                continue
            if cached_fingerprint(fn) == wanted.fingerprint:
                return [fn]
            changed = fn if name == wanted.module else changed
        alive = [fn for fn in self._by_gc(wanted) if isinstance(fn, cls)]
        if same := [fn for fn in alive if cached_fingerprint(fn) == wanted.fingerprint]:
            return same
        # Another program's `__main__` is another module: only an equal source makes it the same kernel.
        if wanted.module == "__main__":
            raise Absent("recorded under __main__, and no kernel here has its source: move it into a module")
        if changed is None and len(alive) == 1:
            (changed,) = alive  # held by an object that cannot be looked into
        if named and changed is not None:
            return [changed]
        if changed is not None:
            reason = f"{wanted.name} has another source here, and it was one of many of that name"
        raise (Unresolved if named else Absent)(reason or f"{wanted.name} is not there")

    def _by_name(self, module: str, qualname: str, cls: type) -> Any:
        value = self._walk(module, qualname)
        found = unwrap(value) or value
        if not isinstance(found, cls):
            raise Unresolved(f"{module}.{qualname} is no Triton kernel here, but a {type(value).__name__}")
        return found

    def _walk(self, module: str, qualname: str) -> Any:
        value = self.module(module)
        if "<locals>" in qualname:
            raise Unresolved("made inside a function that has not run here")
        for part in qualname.split("."):
            owner = value
            # Statically: a property or a module's __getattr__ is somebody's code and is not run.
            value = inspect.getattr_static(owner, part, None) if inspect.isclass(owner) else vars(owner).get(part)
            value = getattr(value, "__func__", value)
            if value is None or (part != qualname.rsplit(".", 1)[-1] and not inspect.isclass(value)):
                raise Unresolved(f"{module} has no {qualname} any more")
        return value

    def _by_gc(self, kernel: Kernel) -> list[Any]:
        """Return live kernels of the same qualified name, wherever they are held (closures, rewritten sources)."""
        if self._live is None:
            cls = internals().JITCallable
            self._live = {}
            for thing in gc.get_objects():
                if issubclass(type(thing), cls):  # `isinstance` would ask objects for `__class__`
                    self._live.setdefault((thing.fn.__module__, thing.fn.__qualname__), []).append(thing)
        if kernel.module == "__main__":
            return [fn for (_, name), found in self._live.items() if name == kernel.qualname for fn in found]
        return [fn for module in _modules(kernel) for fn in self._live.get((module, kernel.qualname), [])]

    @staticmethod
    def fingerprint(fn: Any) -> str:
        """Return the fingerprint of a live kernel."""
        return cached_fingerprint(fn)

    def wrappers(self, kernel: Kernel) -> list[Any]:
        """Return the objects around a kernel as its module's own name shows them, outermost first."""
        try:
            return chain(self._walk(kernel.module, kernel.qualname))[:-1]
        except Unresolved:
            return []

    def function(self, kernel: Kernel) -> Any:
        """Return a JITFunction or constexpr function that is passed as a value, as `kernel` does. Raises Unresolved."""
        return self._find(kernel, internals().JITCallable, "<locals>" not in kernel.qualname)[0]

    def cls(self, module: str, qualname: str) -> type:
        """Return an enum, named tuple or Gluon layout class. Raises Unresolved for anything else."""
        value = self._walk(module, qualname)
        if isinstance(value, type) and (
            issubclass(value, enum.Enum)
            or (issubclass(value, tuple) and hasattr(value, "_fields"))
            or module.startswith(("triton.experimental.gluon.", "triton.tools.tensor_descriptor"))
        ):
            return value
        raise Unresolved(f"{module}.{qualname} is no enum, named tuple or layout class")


def _modules(kernel: Kernel) -> list[str]:
    """Return the modules to look in for a kernel: its own, and the one that stands for it where one of both is run."""
    if kernel.module == "__main__":
        return ["__main__", *filter(None, [kernel.main])]
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    # Run by `python -m`, it is there already, and an import would make it a second time.
    return ["__main__"] if spec is not None and spec.name == kernel.module else [kernel.module]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
