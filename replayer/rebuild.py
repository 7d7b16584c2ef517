"""One variant: rebuild its arguments, let the live Triton derive the key, check it, and say what differs."""

from __future__ import annotations

from typing import Any

from ..jit import bind as binding
from ..jit.encode import encode, spec
from ..jit.options import names
from ..jit.rebuild import rebuild
from ..jit.resolve import Resolver
from ..manifest import words
from ..manifest.model import Argument, Variant, digest
from .live import Form
from .plan import Planned

OPTION_NAMES = names()
KEYWORD_ONLY, VAR_POSITIONAL = 3, 2


def bind(planned: Planned, form: Form, resolver: Resolver, probe: Any = None) -> binding.Bound:
    """Bind one form of a planned variant to its kernel; with `probe`, compile nothing (see `jit.bind`).

    Live tensors stand where the form has them, else what is rebuilt from the recording.

    Raises Unresolved for an argument that cannot be made here, and what Triton raises.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for index, (param, argument) in enumerate(zip(planned.fn.params, form.args, strict=True)):
        value = form.tensors[index] if index in form.tensors else rebuild(argument.value, resolver)
        kind = int(param._param.kind)
        named = param.name in planned.variant.keywords
        if kind == KEYWORD_ONLY or named or kwargs:
            # One that may be a launch option too, and was left to its default, must not be given by name.
            default = param.has_default and encode(param.default) == argument.value
            if named or param.name not in OPTION_NAMES or not default:
                kwargs[param.name] = value
        elif kind == VAR_POSITIONAL:
            args.extend(value)
        else:
            args.append(value)
    options = {name: rebuild(value, resolver) for name, value in planned.variant.options}
    return binding.bind(planned.fn, args, kwargs, options, probe)


def is_recorded(bound: binding.Bound, variant: Variant) -> bool:
    """Whether the key that the live Triton derived is the recorded one."""
    return digest(bound.key) == variant.digest


def differences(bound: binding.Bound, variant: Variant, injected: dict[str, str]) -> list[str]:
    """Return in words how the live key differs from the recorded one.

    `injected` are the options that Triton itself added when the variant was recorded, by their text.
    """
    found = []
    live = [spec(*item) for item in bound.specialization[: len(variant.args)] if len(item) == 2]
    for param, argument, now in zip(variant.kernel.params, variant.args, live, strict=False):
        if argument.spec != now:
            found.append(words.sentence(param.name, argument, Argument(argument.value, now)))
    given = dict(variant.options)
    for name, value in bound.options.items():
        if name in given:
            continue
        if name not in injected:
            found.append(f"option {name}: not there -> {words.text(encode(value))}")
        elif injected[name] != str(value):
            found.append(f"option {name}: {injected[name]} -> {value}")
    found.extend(f"option {name}: {was} -> not there" for name, was in injected.items() if name not in bound.options)
    return found or ["the text of the key differs (another Triton, or a function that it names has moved)"]
