"""The thread that makes batches ahead takes one core and no thread from the training itself."""

import pytest
import torch

from mha_apps.training.feed import Feed


@pytest.fixture
def two_threads():
    count = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(count)


def test_batches_are_made_by_one_thread_while_training_keeps_its_own(two_threads):
    counts = []

    def make(indices, epoch):
        counts.append(torch.get_num_threads())
        return indices

    feed = Feed(make, examples=8, batch_size=4, accumulate=1, seed=0)
    with feed.from_step(0) as batches:
        seen = torch.cat([next(batches)[0] for _ in range(2)])
        assert torch.get_num_threads() == 2
    assert set(counts) == {1}
    assert seen.sort().values.tolist() == list(range(8))
    assert torch.get_num_threads() == 2
