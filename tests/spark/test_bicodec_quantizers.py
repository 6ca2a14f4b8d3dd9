"""The quantisers alone, against the reference's: any number of grids, mixed levels, no projection."""

from __future__ import annotations

import pytest
import torch

from tests.spark.codecs import golden, worst
from tts_plugin.engines.spark.bicodec.quantizers import Codebook, ResidualGrid, ScalarGrid
from tts_plugin.engines.spark.bicodec.weights import Stored, Weights

ARRAYS = golden("quantizers.npz")
CPU = torch.device("cpu")
TOLERANCE = 1e-6


def weights(tag: str) -> Weights:
    prefix = f"{tag}/sd/"
    return Weights(Stored({key.removeprefix(prefix): value for key, value in ARRAYS.items()}))


@pytest.mark.parametrize(
    ("tag", "width", "levels", "count"),
    [
        ("fsq4x6", 16, [4] * 6, 1),
        ("fsq4x6_q2", 16, [4] * 6, 2),
        ("fsq_mixed_noproj", 4, [8, 5, 5, 3], 1),
    ],
)
def test_residual_grids(tag: str, width: int, levels: list[int], count: int) -> None:
    grids = ResidualGrid(weights(tag), width, levels, count)
    codes = grids.encode(ARRAYS[f"{tag}/in"].transpose(1, 2))
    assert torch.equal(codes.transpose(1, 2), ARRAYS[f"{tag}/indices"].long())
    back = grids.decode(codes).transpose(1, 2)
    assert worst(back, ARRAYS[f"{tag}/from_indices"]) < TOLERANCE
    assert worst(back, ARRAYS[f"{tag}/zq"]) < TOLERANCE


def test_a_grid_rounds_half_to_even_and_counts_the_first_number_least() -> None:
    grid = ScalarGrid([4] * 6, CPU)
    points = grid.rounded(ARRAYS["fsq_scan/in"])
    assert torch.equal(points, ARRAYS["fsq_scan/codes"])
    assert torch.equal(grid.indices(points), ARRAYS["fsq_scan/indices"].long())


def test_the_grids_own_codebook() -> None:
    grid = ScalarGrid([4] * 6, CPU)
    assert grid.size == 4096
    every = grid.points(torch.arange(grid.size))
    assert torch.equal(every[:64], ARRAYS["fsq_codebook_first64"])
    assert torch.equal(every[-8:], ARRAYS["fsq_codebook_last8"])
    assert torch.equal(grid.indices(every), torch.arange(grid.size))


def test_every_code_of_uneven_levels_comes_back() -> None:
    grid = ScalarGrid([8, 5, 3, 2], CPU)
    every = torch.arange(grid.size)
    assert torch.equal(grid.indices(grid.points(every)), every)


def test_the_codebook() -> None:
    codebook = Codebook(weights("fvq"), 24, 128, 8)
    assert worst(codebook.narrowed(ARRAYS["fvq/in"]), ARRAYS["fvq/in_project"]) < TOLERANCE
    codes = codebook.nearest(ARRAYS["fvq/in"])
    assert torch.equal(codes, ARRAYS["fvq/tokens"])
    assert worst(codebook.look_up(codes), ARRAYS["fvq/detok"]) < TOLERANCE
    assert worst(codebook.look_up(codes), ARRAYS["fvq/zq"]) < TOLERANCE


def test_a_codebook_of_its_own_width_has_no_projection() -> None:
    tensors = {"codebook.weight": torch.eye(8), "cluster_size": torch.zeros(8)}
    codebook = Codebook(Weights(Stored(tensors)), 8, 8, 8)
    codes = torch.tensor([[3, 0, 7]])
    assert torch.equal(codebook.nearest(5 * codebook.look_up(codes)), codes)
