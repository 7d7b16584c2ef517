"""Recording what was compiled before the recorder came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..jit.harvest import harvest
from ..manifest.journal import VariantEvent
from ..manifest.model import Phase, digest

if TYPE_CHECKING:
    from .session import Recorder


def harvest_into(recorder: Recorder) -> None:
    """Write an event, marked as harvested, for each key that the live kernels hold.

    What a key does not tell (shapes, values, buffers), the next real launch of each kernel does.
    """
    try:
        for found in harvest():
            mark = digest(found.key)
            if recorder.is_known(found.fn, mark, real=False) or recorder.is_full:
                continue
            with recorder.open(found.fn) as (writer, kernel):
                phase = Phase.STARTUP if found.launched else Phase.NEVER
                event = VariantEvent(
                    *(kernel, mark, found.args, found.options, None, phase, False),
                    rank=recorder.rank,
                    order=recorder.counts["variants"],
                    harvested=True,
                    candidate=found.candidate,
                )
                writer.write(b"V", event)
                recorder.counts["variants"] += 1
            names = tuple(param.name for param in found.fn.params)
            specs = tuple(argument.spec for argument in found.args)
            recorder.look(found.kernel, found.fn, mark, names, specs, found.options, False)
    except Exception as error:
        recorder.trouble(error)
