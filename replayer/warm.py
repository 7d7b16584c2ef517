"""One form of one variant in the live process: bind it, compile it where that is still to do, judge it, load it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from ..jit import disk, launcher
from ..jit.bind import Bound
from ..jit.encode import encode
from ..jit.listener import Listener
from ..jit.load import load as load_kernel
from ..jit.resolve import Resolver, Unresolved
from ..manifest import alike
from ..manifest.model import Argument, Manifest, Variant, digest
from . import rebuild
from .live import Form
from .outcome import Outcome, Result, said
from .plan import Planned
from .wire import Answer, State


class Warmer:
    """Warms forms. `stage` times what it does under a name, `load` says whether binaries are loaded too, `launchers`
    whether launchers are built that are not loaded.

    `files` are the files of the disk cache that warm kernels came from.
    """

    def __init__(
        self,
        manifest: Manifest,
        resolver: Resolver,
        listener: Listener,
        stage: Callable[[str], AbstractContextManager[None]],
        load: bool,
        launchers: bool = False,
    ) -> None:
        self._manifest, self._resolver, self._listener = manifest, resolver, listener
        self._stage, self._load, self._launchers = stage, load, launchers
        self.files: set[str] = set()
        self._builds, self._built_ahead = launcher.Builds(), 0

    @property
    def built(self) -> int:
        """How many launchers were built, here and by a helper."""
        return self._builds.count + self._built_ahead

    def fingerprint(self, planned: Planned) -> str:
        """Return the fingerprint of a planned variant's kernel in this process."""
        return self._resolver.fingerprint(planned.fn)

    def probe(self, planned: Planned, form: Form) -> Bound:
        """Bind a form without compiling: its kernel is one in memory, or a `disk.Entry`.

        Raises Unresolved, and what Triton raises.
        """
        return rebuild.bind(planned, form, self._resolver, disk.probe)

    def warm(self, planned: Planned, form: Form, answer: Answer | None = None) -> Result:
        """Make a form warm; every failure is an outcome. `answer` is what a compile helper made of it."""
        try:
            with self._stage("compile"):
                bound, found = self._compile(planned, form)
        except Unresolved as reason:
            return Result(planned.variant, Outcome.SKIPPED, str(reason))
        except Exception as error:
            return Result(planned.variant, Outcome.FAILED, said(error))
        if bound.kernel is None:
            return Result(planned.variant, Outcome.CANCELLED, "a jit_cache_hook of another tool cancelled the compile")
        note = ""
        if answer is not None:
            found, note = self._credit(planned, found, answer)
        outcome, reason = self._judge(planned, form, bound, found)
        reason = reason or note
        if self._load:
            try:
                with self._stage("load"), self._builds:
                    load_kernel(bound.kernel)
            except Exception as error:
                text = f"{found.value}, but it cannot be loaded: {said(error)}"
                return Result(planned.variant, Outcome.FAILED, text)
        elif self._launchers:
            try:
                with self._builds:
                    launcher.build(bound.kernel)
            except Exception as error:
                text = f"{found.value}, but the C compiler did not build its launcher: {said(error)}"
                return Result(planned.variant, Outcome.FAILED, text)
        self._note_files(bound)
        return Result(planned.variant, outcome, reason, loaded=self._load)

    def check(self, planned: Planned, form: Form) -> Result:
        """Say whether a form is whole in the disk cache; compile and write nothing."""
        try:
            with self._stage("compile"):
                bound = self.probe(planned, form)
        except Unresolved as reason:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {reason}")
        except Exception as error:
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"cannot be checked: {said(error)}")
        _, reason = self._judge(planned, form, bound, Outcome.WARM)
        if fault := getattr(bound.kernel, "fault", ""):
            return Result(planned.variant, Outcome.WOULD_COMPILE, f"{fault}; {reason}" if reason else fault)
        return Result(planned.variant, Outcome.WARM, reason)

    def _compile(self, planned: Planned, form: Form) -> tuple[Bound, Outcome]:
        """Bind a form. An entry of the disk cache that is cut is dropped first, and compiled anew."""
        self._listener.take()
        try:
            bound = rebuild.bind(planned, form, self._resolver)
        except (KeyError, ValueError, TypeError, AttributeError, StopIteration, OSError):
            if not self._drop_entry(planned, form):
                raise
            bound = rebuild.bind(planned, form, self._resolver)
        hit = self._listener.take()
        if hit and not bound.in_memory and not disk.sound(bound.kernel):
            disk.forget(planned.fn, bound.key)  # first: a key in memory is not looked up on disk
            self._drop_entry(planned, form)
            bound = rebuild.bind(planned, form, self._resolver)
            hit = self._listener.take()
        return bound, Outcome.WARM if bound.in_memory else Outcome.CACHED if hit else Outcome.COMPILED

    def _drop_entry(self, planned: Planned, form: Form) -> bool:
        """Drop a form's entry of the disk cache if it is there and cut; return whether it was."""
        entry = self.probe(planned, form).kernel
        return isinstance(entry, disk.Entry) and disk.drop(entry)

    def _credit(self, planned: Planned, found: Outcome, answer: Answer) -> tuple[Outcome, str]:
        """Return what was found once a helper's part in it is known, and what is to be said about that."""
        self._built_ahead += answer.launcher
        if answer.state not in (State.COMPILED, State.CACHED):
            return found, ""
        if answer.fingerprint != self._resolver.fingerprint(planned.fn):
            return Outcome.DIFFERS_HEADLESS, "the helper's source of this kernel is another"
        if found is Outcome.COMPILED:
            return Outcome.DIFFERS_HEADLESS, "the helper's binary is not the one that this process looks for"
        if found is Outcome.CACHED and answer.state is State.COMPILED:
            return Outcome.COMPILED, f"no launcher was built: {answer.trouble}" if answer.trouble else ""
        return found, ""

    def _judge(self, planned: Planned, form: Form, bound: Bound, found: Outcome) -> tuple[Outcome, str]:
        if planned.changed:
            return (
                Outcome.CHANGED,
                f"the kernel's source changed since it was recorded; {found.value} from the present one",
            )
        if rebuild.is_recorded(bound, planned.variant):
            return found, ""
        if bound.in_memory and (other := self._by_digest(planned.variant, digest(bound.key))) is not None:
            return Outcome.DRIFTED, alike.sentence(other, planned.variant)
        environments = planned.variant.environments
        injected = self._manifest.environments[environments[0]].injected if environments else {}
        told = form.replaced or rebuild.differences(bound, planned.variant, injected)
        return Outcome.DRIFTED, f"{found.value} with another key: " + "; ".join(told)

    def _by_digest(self, variant: Variant, mark: str) -> Variant | None:
        """Return the variant of the same kernel that has this key, or None."""
        for other in self._manifest.variants:
            if other.digest == mark and other.kernel.identity == variant.kernel.identity:
                return other
        return None

    def _note_files(self, bound: Bound) -> None:
        self.files.update(disk.needed(bound.kernel))


def as_variant(planned: Planned, form: Form) -> Variant:
    """Return a form as a variant that another process can rebuild: live tensors become their descriptions."""
    args = tuple(
        Argument(encode(form.tensors[index]), argument.spec) if index in form.tensors else argument
        for index, argument in enumerate(form.args)
    )
    return msgspec.structs.replace(planned.variant, args=args)
