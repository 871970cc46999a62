"""Fixtures of all Python tests."""

import pytest
import torch

from monomoe import Group

torch.set_num_threads(1)  # small matrices; the library has threads of its own


@pytest.fixture
def group():
    """One rank."""
    with Group() as made:
        yield made
