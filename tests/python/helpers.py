"""Shared by all Python tests: one oracle run a case, and runs of the library."""

import functools

import torch

from monomoe import Group, reference, testing
from monomoe.testing import Case

ALL_RANKS = (1, 2, 3, 5, 8)


@functools.lru_cache(maxsize=4)
def oracle(case: Case):
    """(inputs, exact results, twin results) of a case."""
    inputs = testing.make_inputs(case)
    exact = testing.run_reference(inputs, case, reference.EXACT)
    twin = testing.run_reference(inputs, case, reference.TWIN)
    return inputs, exact, twin


def run(case: Case, ranks: int = 1, config=None, inputs=None) -> dict[str, torch.Tensor]:
    """Results of the library with that many local ranks."""
    with Group.local(ranks, timeout_s=60) as made:
        return testing.run_layer(inputs or testing.make_inputs(case), made, case, config)


def check(case: Case, ranks=ALL_RANKS) -> None:
    """The error rule for every number of ranks, and the same bits in all of them."""
    inputs, exact, twin = oracle(case)
    first = None
    for num_ranks in ranks:
        got = run(case, num_ranks, inputs=inputs)
        testing.assert_close(got, twin, exact, rerun=f"pytest -k '{case.name}' (R={num_ranks})")
        first = first or got
        testing.assert_same_bits(got, first, testing.RANK_INVARIANT)


def case_id(value):
    """Parameters read as shapes."""
    return value.name if isinstance(value, Case) else None
