"""How an operator is called: backward as well, without gradients, or where it takes CPU tensors for a GPU's."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch


def both(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], None]:
    """Return a run of an operator forward, then backward from the sum of what it gave."""

    def run() -> None:
        found = call(*args, **kwargs)
        outputs = [o for o in (found if isinstance(found, tuple) else (found,)) if isinstance(o, torch.Tensor)]
        outputs = [o for o in outputs if o.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])

    return run


def forward(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], object]:
    """Return a run without gradients: decoding, and operators that have no backward pass."""
    detached = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
    return partial(torch.no_grad()(call), *detached, **kwargs)


def replaced(run: Callable[[], object], owner: Any, name: str, value: object) -> Callable[[], object]:
    """Return the run with an attribute replaced: what asks for another GPU, or cannot be asked of a CPU tensor."""

    def replacing() -> None:
        with patch.object(owner, name, value):
            run()

    return replacing


def on_gpu(run: Callable[[], object]) -> Callable[[], object]:
    """Return the run with tensors that say that they are on a GPU, for operators that refuse others."""
    return replaced(run, torch.Tensor, "is_cuda", True)


def written(run: Callable[[], object]) -> Callable[[], object]:
    """Return the run with ones where memory would be left as found, for operators that size tensors by results."""
    return replaced(run, torch, "empty", torch.ones)
