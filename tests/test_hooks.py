"""Recorder, watch and other tools come and go in every order: nothing of theirs is lost, nothing of ours stays."""

import functools
import itertools
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jitreplay
from jitreplay.jit.hook import Hook, live
from jitreplay.jit.internals import Unsupported, internals
from jitreplay.manifest.model import Manifest
from jitreplay.recorder import phase
from jitreplay.recorder.session import start_from_environment
from jitreplay.recorder.watch import Watch
from jitreplay.replayer import prefetch

from .helpers import headless

_numbers = itertools.count(1000)


class Ours:
    """A recorder or a watch, with how many compiles it saw."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.tool: Any = jitreplay.Recorder(folder) if kind == "recorder" else Watch()

    def install(self) -> None:
        self.tool.start()

    def remove(self) -> None:
        self.tool.stop()

    @property
    def seen(self) -> int:
        return self.tool.counts["variants"] if self.kind == "recorder" else sum(self.tool.compiles.values())


def jit_function() -> Any:
    """Return Triton's class, whose methods the tools replace."""
    from triton.runtime.jit import JITFunction

    return JITFunction


class Theirs:
    """Another tool: it wraps what we wrap, chains the listener, and owns both hooks. It is as polite as we are."""

    def __init__(self) -> None:
        self.seen = self.heard = self.asked = self.told = 0
        self.on = False

    def install(self) -> None:
        from triton import knobs

        JITFunction = jit_function()
        self.on = True
        self.original, self.before = JITFunction._do_compile, knobs.compilation.listener

        def _do_compile(fn: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen += self.on
            return self.original(fn, *args, **kwargs)

        def listener(**event: Any) -> None:
            self.heard += self.on
            if self.before is not None:
                self.before(**event)

        def asked(**event: Any) -> None:
            self.asked += 1

        def told(**event: Any) -> None:
            self.told += 1

        _do_compile.theirs = listener.theirs = self  # type: ignore[attr-defined]
        self.wrapper, self.listener = _do_compile, listener
        JITFunction._do_compile = _do_compile
        knobs.compilation.listener = listener
        self.hooks = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = asked, told

    def remove(self) -> None:
        from triton import knobs
        from triton.runtime.jit import JITFunction

        self.on = False
        if JITFunction._do_compile is self.wrapper:
            JITFunction._do_compile = self.original
        if knobs.compilation.listener is self.listener:
            knobs.compilation.listener = self.before
        assert (knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook) == self.hooks
        knobs.runtime.jit_cache_hook = knobs.runtime.jit_post_compile_hook = None


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Triton with an empty compiler that tells its listener, after startup."""
    import triton.compiler
    from kernels import uncompiled
    from triton import knobs

    def compile(src: Any, **options: Any) -> Any:
        if knobs.compilation.listener is not None:
            knobs.compilation.listener(src=src, metadata={}, metadata_group={}, times=None, cache_hit=False)
        return uncompiled.Uncompiled(src)

    with headless(tmp_path) as driver:
        monkeypatch.setattr(triton.compiler, "compile", compile)
        monkeypatch.setattr(phase, "_ready", type(phase._ready)())
        phase.ready()
        yield driver


def launch() -> None:
    from kernels import odd

    odd.constant[(1,)](next(_numbers))


def state() -> tuple[Any, ...]:
    """Return what of Triton any of the tools touches, beneath what was stopped and only passes on."""
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def beneath(function: Any) -> Any:
        while (tool := getattr(live(function), "theirs", None)) is not None and not tool.on:
            function = tool.original
        return live(function)

    wrapped = [
        (JITFunction, "_pack_args"),
        (JITFunction, "_do_compile"),
        (Autotuner, "__init__"),
        (Autotuner, "_bench"),
    ]
    listener: Any = knobs.compilation.listener
    while listener is not None:
        tool = getattr(listener, "theirs", None)
        if tool.on if tool is not None else listener._on:
            break
        listener = tool.before if tool is not None else listener._previous
    hooks = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook
    return (*(beneath(cls.__dict__[name]) for cls, name in wrapped), listener, *hooks)


def test_a_tool_that_copies_our_attributes_stays() -> None:
    class Owner:
        def method(self) -> list[str]:
            return ["own"]

    def put(name: str) -> Hook:
        hook = Hook()

        def wrap(original: Any) -> Any:
            return lambda owner: [name] * hook._on + original(owner)

        hook._put_on((Owner, "method", wrap))
        return hook

    first = put("first")
    before = Owner.method

    @functools.wraps(before)
    def theirs(owner: Any) -> list[str]:
        return ["theirs", *before(owner)]

    Owner.method = theirs  # type: ignore[method-assign]
    first.uninstall()
    second = put("second")
    assert Owner().method() == ["second", "theirs", "own"]
    second.uninstall()
    assert Owner.method is theirs and Owner().method() == ["theirs", "own"]


def test_a_hook_that_lacks_a_method_wraps_nothing() -> None:
    class Owner:
        def method(self) -> None: ...

    found = Owner.method
    with pytest.raises(AttributeError):
        Hook()._put_on((Owner, "method", lambda original: print), (Owner, "other", lambda original: print))
    assert Owner.method is found


@pytest.mark.parametrize("kinds", [("recorder", "watch"), ("recorder", "recorder")], ids=" and ".join)
@pytest.mark.parametrize("comes", list(itertools.permutations(range(3))), ids=str)
def test_tools_may_come_and_go_in_any_order(
    comes: tuple[int, ...], kinds: tuple[str, str], compiler: Any, tmp_path: Path
) -> None:
    found = state()
    for number, goes in enumerate(itertools.permutations(range(3))):
        tools: list[Any] = [Ours(kind, tmp_path / f"{number}-{at}") for at, kind in enumerate(kinds)]
        theirs = Theirs()
        tools.append(theirs)
        there: list[Any] = []
        for step in (*((tools[at], True) for at in comes), *((tools[at], False) for at in goes)):
            tool, is_new = step
            if is_new:
                tool.install()
                there.append(tool)
            else:
                tool.remove()
                there.remove(tool)
            before = {id(each): each.seen for each in tools}
            heard = theirs.heard, theirs.asked, theirs.told
            launch()
            assert [each.seen - before[id(each)] for each in tools] == [int(each in there) for each in tools], goes
            now = int(theirs in there)
            assert (theirs.heard, theirs.asked, theirs.told) == tuple(count + now for count in heard), goes
        assert state() == found, goes
        # Where we stayed under the other tool, an inert wrapper is left: the next of ours to come looks through it.
        settle(found)


def settle(found: tuple[Any, ...]) -> None:
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    JITFunction._pack_args, JITFunction._do_compile, Autotuner.__init__, Autotuner._bench = found[:4]  # type: ignore[method-assign]
    vars(knobs.compilation).pop("listener", None)
    if found[4] is not None:
        knobs.compilation.listener = found[4]


def resolve(dotted: str) -> Any:
    """Return a module, or a class in one. (`triton.runtime.driver` is also a name in its package.)"""
    if dotted in sys.modules:
        return sys.modules[dotted]
    module, _, name = dotted.rpartition(".")
    return getattr(resolve(module), name)


def test_whatever_fails_in_a_prefetch_is_told_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise AttributeError("no such driver\nat all")

    monkeypatch.setattr(prefetch, "begin", begin)
    assert jitreplay.prefetch(Manifest()) is False
    assert caplog.messages == ["nothing is compiled ahead: AttributeError: no such driver"]


class TestMissingInternals:
    """A Triton that lacks a name: one line, and off."""

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            ("triton.runtime.jit", "JITFunction"),
            ("triton.runtime.jit", "JITCallable"),
            ("triton.runtime.jit.JITFunction", "_pack_args"),
            ("triton.runtime.jit.JITFunction", "_do_compile"),
            ("triton.runtime.jit.JITCallable", "cache_key"),
            ("triton.runtime.autotuner", "Autotuner"),
            ("triton.runtime.autotuner", "Heuristics"),
            ("triton.runtime.autotuner.Autotuner", "_bench"),
            ("triton.compiler.compiler", "CompiledKernel"),
            ("triton.compiler.compiler.CompiledKernel", "_init_handles"),
            ("triton.runtime.driver", "driver"),
            ("triton.knobs.compilation_knobs", "listener"),
        ],
    )
    def test_turns_everything_off_with_one_line(
        self,
        owner: str,
        name: str,
        compiler: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setenv("JITREPLAY_RECORD", str(tmp_path / "recording"))
        found = state()
        internals.cache_clear()
        try:
            with monkeypatch.context() as patch:
                patch.delattr(resolve(owner), name)
                with caplog.at_level(logging.INFO, "jitreplay"):
                    assert start_from_environment() is None
                    report = jitreplay.replay(Manifest())
                with pytest.raises(Unsupported) as raised:
                    jitreplay.Recorder(tmp_path / "recording").start()
        finally:
            internals.cache_clear()

        assert [name in record.getMessage() for record in caplog.records] == [True, True]
        assert not any("\n" in record.getMessage() for record in caplog.records)
        assert name in report.error and name in str(raised.value)
        assert state() == found and not (tmp_path / "recording").exists()
        launch()
