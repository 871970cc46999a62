"""The helpers that judge everything else must notice what is wrong."""

import math

import pytest
import torch

from helpers import oracle, run
from monomoe import testing
from monomoe.testing import Case

CASE = Case(33, 64, 40, 5, 2)


def test_error_rule_notices_one_wrong_value():
    _, exact, twin = oracle(CASE)
    got = {name: t.clone() for name, t in twin.items()}
    testing.assert_close(got, twin, exact)
    got["dx"][7, 3] += 0.25
    with pytest.raises(AssertionError, match=r"^dx: relative error .*, allowed .*; dx\[7, 3\]: "):
        testing.assert_close(got, twin, exact)


def test_error_rule_notices_a_small_error_everywhere():
    _, exact, twin = oracle(CASE)
    got = {name: t.clone() for name, t in twin.items()}
    got["ddown"] = (exact["ddown"] * (1 + 2**-7)).bfloat16()
    with pytest.raises(AssertionError, match="^ddown: "):
        testing.assert_close(got, twin, exact)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_error_rule_notices_what_is_not_finite(value):
    _, exact, twin = oracle(CASE)
    got = {name: t.clone() for name, t in twin.items()}
    got["y"][2, 5] = value
    with pytest.raises(AssertionError, match=r"y\[2, 5\]"):
        testing.assert_close(got, twin, exact)


def test_error_rule_wants_exact_zeros_where_the_reference_is_zero():
    zeros = torch.zeros(2, 8)
    assert testing.judge("y", zeros, zeros, zeros.double()).passed
    assert not testing.judge("y", zeros + 1e-30, zeros, zeros.double()).passed


def test_error_rule_notices_a_missing_tensor_and_a_wrong_dtype():
    _, exact, twin = oracle(CASE)
    with pytest.raises(AssertionError, match="^results: "):
        testing.assert_close({"y": twin["y"]}, twin, exact)
    with pytest.raises(AssertionError, match="^y: torch.bfloat16"):
        testing.assert_close({**twin, "y": twin["y"].float()}, twin, exact)


def test_bit_comparison_names_coordinate_values_and_patterns():
    wanted = {"y": torch.zeros(2, 3, dtype=torch.bfloat16)}
    got = {"y": wanted["y"].clone()}
    got["y"][1, 2] = -0.0
    text = r"^y: 1 of 6 values differ; y\[1, 2\]: 0 \(0x0000\) wanted, -0 \(0x8000\) given$"
    with pytest.raises(AssertionError, match=text):
        testing.assert_same_bits(got, wanted)


def test_hash_sees_bits_shape_and_dtype():
    zero = torch.zeros(4)
    hashes = {testing.hash_bits(t) for t in (zero, -zero, zero.view(2, 2), zero.to(torch.bfloat16))}
    assert len(hashes) == 4
    assert testing.hash_bits(zero) == testing.hash_bits([zero.clone()])


def test_inputs_follow_from_the_case_alone():
    first, second = testing.make_inputs(CASE), testing.make_inputs(CASE)
    assert torch.equal(first.x, second.x) and torch.equal(first.topk_ids, second.topk_ids)
    testing.assert_same_bits(run(CASE), run(CASE))


def test_ragged_split_covers_all_tokens_and_leaves_a_rank_empty():
    split = Case(33, 8, 8, 1, 1, split="ragged").tokens_per_rank(8)
    assert sum(split) == 33 and split[0] == 0 and len(set(split)) > 3
