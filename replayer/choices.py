"""Autotuner choices: putting the recorded winner where the live autotuner looks, so that nothing is benchmarked."""

from __future__ import annotations

from typing import Any

from ..jit import tuner as tuners
from ..jit.encode import encode
from ..jit.rebuild import rebuild
from ..jit.resolve import Absent, Resolver, Unresolved
from ..manifest.model import Choice, Option
from .outcome import ChoiceResult


def restore(choice: Choice, device: str, resolver: Resolver) -> ChoiceResult:
    """Restore one choice in every autotuner of its kernel that there is; `device` is the live device's name.

    The live config object equal by value is used, with its hooks. Not restored, so that Triton tunes as ever: a choice
    of another device model, of a kernel whose source changed, and of a config that is no longer offered. A list that
    changed but still has the winner keeps it, and says so. The function that prunes configs is not asked: where it
    would drop the winner now, the winner is still used, as Triton uses one that it chose earlier in the process.

    Raises Absent where the kernel or its autotuner may yet come.
    """
    try:
        _check_device(choice, device)
        fns, around = resolver.kernels(choice.kernel), resolver.wrappers(choice.kernel)
    except Absent:
        raise
    except Unresolved as reason:
        return ChoiceResult(choice, False, str(reason))
    found, reasons = [], []
    for fn in fns:
        try:
            found.append(_restore(choice, resolver, fn, tuners.find(around, fn)))
        except Unresolved as reason:
            reasons.append(reason)
    if found:
        return found[0]
    if isinstance(reasons[0], Absent):
        raise reasons[0]
    return ChoiceResult(choice, False, str(reasons[0]))


def restore_in(choice: Choice, device: str, resolver: Resolver, tuner: Any) -> ChoiceResult:
    """Restore one choice in an autotuner of a kernel of that name, by the same rules."""
    try:
        _check_device(choice, device)
        return _restore(choice, resolver, tuners.innermost(tuner), tuner)
    except Unresolved as reason:
        return ChoiceResult(choice, False, str(reason))


def may_come_again(choice: Choice, resolver: Resolver) -> bool:
    """Whether a function makes the autotuner, and may do so again: the kernel's own name leads to none."""
    return not any(tuners.is_tuner(each) for each in resolver.wrappers(choice.kernel))


def _check_device(choice: Choice, device: str) -> None:
    if choice.device != device:
        raise Unresolved(f"timed on {choice.device or 'an unnamed device'}, this is {device or 'an unnamed device'}")


def _restore(choice: Choice, resolver: Resolver, fn: Any, tuner: Any) -> ChoiceResult:
    if resolver.fingerprint(fn) != choice.kernel.fingerprint:
        raise Unresolved("the kernel's source changed since it was tuned")
    if tuner is None:
        # Recorded with one around its name, it will get none now; else a function made one.
        raise (Unresolved if choice.kernel.wrappers else Absent)("the kernel has no autotuner here")
    wanted = _by_name((*choice.kwargs, *choice.options))
    live = next((config for config in tuner.configs if _value(config) == wanted), None)
    if live is None:
        raise Unresolved("the recorded winner is no longer among the configs")
    key = tuple(rebuild(value, resolver) for value in choice.key)
    if key in tuner.cache:
        return ChoiceResult(choice, True, "" if tuner.cache[key] is live else "the live choice differs and was kept")
    tuners.restore(tuner, key, live, dict(choice.timings))
    notes = _changes({_bare(name) for name, _ in choice.timings}, tuner)
    if tuners.replaces_run(tuner):
        notes.append(f"{type(tuner).run.__module__} replaced the autotuner's run and may not look for it there")
    return ChoiceResult(choice, True, "; ".join(notes))


def _changes(timed: set[str], tuner: Any) -> list[str]:
    """Return what changed in the list of configs since they were timed, in words. A pruned list is shorter anyway."""
    offered = {_bare(str(config)) for config in tuner.configs}
    if not timed or timed == offered:
        return []
    if timed <= offered:
        grown = [] if tuners.prunes(tuner) else [f"{len(offered - timed)} configs were added"]
        return [f"{text}; the recorded winner stays" for text in grown]
    return ["the list of configs changed; the recorded winner is still in it"]


def _bare(config: str) -> str:
    """Return a config's text as all Tritons write it: from 3.9 on it ends with the override of its IR."""
    return config.removesuffix(", ir_override: None")


def _value(config: Any) -> dict[str, Any]:
    kwargs, options = tuners.parts(config)
    return {name: encode(value) for name, value in {**kwargs, **options}.items()}


def _by_name(pairs: tuple[Option, ...]) -> dict[str, Any]:
    return dict(pairs)
