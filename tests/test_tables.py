"""What is found under a runner: its tensors by name, and the numbers that belong to them."""

from types import SimpleNamespace
from typing import NamedTuple

import torch

from jitreplay.engines.runner import tables


class Meta(NamedTuple):
    addresses: torch.Tensor
    page: int


def test_tensors_are_named_by_their_path_and_weights_are_left_alone() -> None:
    shared = torch.zeros(4)
    runner = SimpleNamespace(
        positions=shared,
        again=[shared],
        groups=[SimpleNamespace(block_table=torch.zeros(3, 8, dtype=torch.int32))],
        model=torch.nn.Linear(2, 2),
        other="text",
    )
    found = tables(runner, ("types",))
    assert set(found.buffers) == {"positions", "groups[0].block_table"} or set(found.buffers) == {
        "again[0]",
        "groups[0].block_table",
    }
    assert found.settings == {"groups[0].block_table.stride(0)": 8}


def test_a_number_in_a_tuple_with_a_tensor_is_a_setting_and_no_other() -> None:
    runner = SimpleNamespace(
        zeroer=SimpleNamespace(_meta=(torch.zeros(2), 16384, 1024, True, 0.5)),
        named=Meta(torch.zeros(1), 544),
        numbers=(1, 2, 3),
        listed=[torch.zeros(1), 7],
        plain=9,
    )
    assert tables(runner, ("types", __name__.partition(".")[0])).settings == {
        "zeroer._meta[1]": 16384,
        "zeroer._meta[2]": 1024,
        "named.page": 544,
    }
