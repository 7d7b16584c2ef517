"""Autotuned kernels, made anew by each call, and a clock that lets a chosen config win."""

from typing import Any

import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

CALLS: list[str] = []
"""What hooks were called, in order."""


class Clock:
    """A benchmark by table: each call takes the next time, over and over. `calls` counts them."""

    def __init__(self, *times: float) -> None:
        self.times, self.calls = times, 0

    def __call__(self, call: Any, quantiles: Any = None) -> list[float]:
        call()
        self.calls += 1
        return [self.times[(self.calls - 1) % len(self.times)]] * 3


def noting(name: str) -> Any:
    """Return a pre-hook that notes its name."""

    def hook(arguments: Any) -> None:
        CALLS.append(name)

    return hook


def config(block: int, warps: int = 4, hook: Any = None) -> triton.Config:
    return triton.Config({"C": block}, num_warps=warps, pre_hook=hook)


CONFIGS = (16, 32, 64)


@triton.jit
def kernel(x, n, C: tl.constexpr):
    pass


def tuner(clock: Clock, configs: Any = None, cls: Any = None, fn: Any = kernel, **options: Any) -> Any:
    """Return an autotuner over `kernel`. Its configs are those of CONFIGS unless others are given."""
    made = cls or Autotuner
    given = [config(block) for block in CONFIGS] if configs is None else configs
    return made(fn, fn.arg_names, given, ["n"], *_hooks(options), do_bench=clock, **options)


def bare(step: int = 1) -> Any:
    """Return a kernel that is made here."""
    add = tl.constexpr(step)

    @triton.jit
    def inner(x, n, C: tl.constexpr, EVEN: tl.constexpr):
        tl.store(x, n + add)

    return inner


def made(clock: Clock, step: int = 1) -> Any:
    """Return an autotuner over such a kernel, above heuristics."""
    even = {"EVEN": lambda arguments: arguments["n"] % 2 == 0}
    return tuner(clock, fn=triton.heuristics(even)(bare(step)))


class Database:
    """A cache of choices that is no dict, as FlagGems' tuners have. `asked` are the keys of its own choices."""

    def __init__(self) -> None:
        self._rows: dict[Any, Any] = {}

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def __getitem__(self, key: Any) -> Any:
        return self._rows[key]

    def __setitem__(self, key: Any, config: Any) -> None:
        self._rows[key] = config

    def rows(self) -> int:
        return len(self._rows)


class Kept(Autotuner):
    """A subclass that keeps its choices in a database."""

    shared: dict[str, Database] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cache = self.shared.setdefault("database", Database())  # type: ignore[assignment]


def _hooks(options: dict[str, Any]) -> tuple[Any, Any]:
    return options.pop("reset_to_zero", None), options.pop("restore_value", None)


class Counted(Autotuner):
    """A subclass that keeps its choices in a dict of its own, made after Triton's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cache = Choices()


class Choices(dict[Any, Any]):
    """A subclass's own kind of dict."""
