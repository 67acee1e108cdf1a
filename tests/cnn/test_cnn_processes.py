"""Plugged networks under several processes: the gradients are those of one process on the whole batch."""

import copy
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mha_apps.cnn.models import CifarResNet
from mha_apps.cnn.surgery import GATES, gate_parameters, plug

WORLD = 2


def network(gate: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = plug(CifarResNet(8), gate, start="standard").eval()  # batch statistics are each process's own
    generator = torch.Generator().manual_seed(1)
    for parameter in gate_parameters(model):
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def work(rank: int, gate: str, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    model = torch.nn.parallel.DistributedDataParallel(network(gate))
    model(images()[rank::WORLD]).square().mean().backward()
    if rank == 0:
        torch.save([parameter.grad for parameter in model.module.parameters()], f"{folder}/gradients.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
def test_two_processes_train_gates_as_one_does(gate, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(work, args=(gate, port, str(tmp_path)), nprocs=WORLD, start_method="fork")
    model = copy.deepcopy(network(gate))
    model(images()).square().mean().backward()
    for expected, found in zip(model.parameters(), torch.load(tmp_path / "gradients.pt"), strict=True):
        torch.testing.assert_close(found, expected.grad, atol=1e-6, rtol=1e-4)
