"""What is found under a runner: its tensors by name, and the numbers that belong to them."""

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from jitreplay.engines.runner import tables
from jitreplay.manifest.values import Tensor, View
from jitreplay.replayer.live import view

from .helpers import goods, program, save


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


@pytest.mark.parametrize("blocks", [0, 1, 64])
def test_a_view_fits_a_cache_of_any_number_of_blocks(blocks: int) -> None:
    cache = torch.zeros(blocks, 2, 16, 8, dtype=torch.float16)
    whole = Tensor("float16", (64, 2, 16, 8), (256, 128, 8, 1), view=View(0, (-1,) * 4, (-1,) * 4))
    some = Tensor("float16", (2, 2, 16, 8), (256, 128, 8, 1), view=View(512, (2, 2, 16, 8), (256, 128, 8, 1)))
    other = Tensor("float16", (4, 8), (256, 1), view=View(256, (4, 8), (256, 1)))
    for tensor in (whole, some, other):
        found = view(tensor, cache)
        assert found is not None and found.dtype is cache.dtype
        assert found.stride() == tensor.strides
        assert found.numel() <= cache.numel()


def test_a_variant_whose_arguments_cannot_be_made_costs_itself_alone(tmp_path: Path) -> None:
    code = """
    import jitreplay.replayer.session as session
    from kernels import faults
    whole = session.forms
    def forms(variant, *rest):
        if variant.order == 0:
            raise RuntimeError("out of bounds")
        return whole(variant, *rest)
    session.forms = forms
    report = jitreplay.replay("kernels.jitreplay", allow=("kernels",))
    answer([[r.outcome.value, r.reason] for r in report.results])
    """
    save(goods(tmp_path, 2), tmp_path / "kernels.jitreplay")
    (first, second) = sorted(program(tmp_path, code))
    assert first[0] == "cached" and second[0] == "failed" and "out of bounds" in second[1]
