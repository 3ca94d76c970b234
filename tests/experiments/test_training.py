"""Trainings with Lightning: they resume where they were interrupted, and take the Trainer's flags."""

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.runs import Refusal
from problems import ignoring

with ignoring():  # Lightning's imports warn of what is deprecated elsewhere
    lightning = pytest.importorskip("pytorch_lightning")
    from experiments.training import QUIET, Batches, train

FLAGS = {**QUIET, "accelerator": "cpu", "max_epochs": 5, "log_every_n_steps": 1}
LENGTHS = [
    {"max_epochs": -1, "max_steps": 15},
    {"max_epochs": -1, "max_steps": 14},  # the last epoch is cut short
    {"max_epochs": 5, "max_steps": 100},
    {"max_epochs": 5, "limit_train_batches": 2},
    {"max_epochs": -1, "max_steps": 9, "accumulate_grad_batches": 2},
    {"max_epochs": -1, "max_steps": 15, "reload_dataloaders_every_n_epochs": 2},
]
OF_OTHERS = {"state_dict": nn.Linear(7, 1).state_dict(), "loops": {"fit_loop": {"epoch_progress": {"current": {}}}}}


class Regression(lightning.LightningModule):
    """A linear map, whose training may be interrupted in the middle of an epoch."""

    def __init__(self, interrupted_in=None):
        super().__init__()
        torch.manual_seed(0)
        self.map, self.interrupted_in = nn.Linear(3, 1), interrupted_in

    def training_step(self, batch, batch_idx):
        if (self.current_epoch, batch_idx) == (self.interrupted_in, 1):
            raise InterruptedError
        x, y = batch
        loss = (self.map(x) - y).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        tensors = (torch.randn(50, d, generator=generator) for d in (3, 1))
        return DataLoader(TensorDataset(*tensors), sampler=Batches(50, 16, 0), batch_size=None)


class Drawing(Regression):
    """Notes for each step the step, the epoch, the batch and a number of the global random generator."""

    def __init__(self, interrupted_in=None):
        super().__init__(interrupted_in)
        self.noted = {}

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.noted[self.global_step] = (self.current_epoch, batch_idx, batch[0].sum().item(), torch.rand(()).item())
        return loss


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_resumed_training_has_the_same_steps_batches_and_random_numbers(lengths, tmp_path):
    flags = {**FLAGS, **lengths}
    whole = Drawing()
    trainer = train(tmp_path / "whole", whole, Data(), flags, seed=0)
    ends = trainer.global_step, trainer.current_epoch, torch.rand(3).tolist()
    with pytest.raises(InterruptedError):
        train(tmp_path / "parts", Drawing(interrupted_in=3), Data(), flags, seed=0)
    for again in range(2):  # the second time it is finished already
        resumed = Drawing()
        trainer = train(tmp_path / "parts", resumed, Data(), flags, seed=0)
        assert (trainer.global_step, trainer.current_epoch, torch.rand(3).tolist()) == ends
        assert resumed.noted == ({} if again else {n: of for n, of in whole.noted.items() if of[0] >= 3})
        torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("content", [{"state_dict": Regression().state_dict()}, [1, 2], OF_OTHERS])
def test_other_checkpoint_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(Refusal, match=r"last\.ckpt is no checkpoint of .* this training: delete it"):
        train(tmp_path, Regression(), Data(), FLAGS, seed=0)


def test_checkpoint_loads_no_code(tmp_path):
    class Deed:
        def __reduce__(self):
            return (tmp_path / "done").touch, ()

    torch.save({"state_dict": Deed()}, tmp_path / "last.ckpt")
    with pytest.raises(Refusal, match="is damaged"):
        train(tmp_path, Regression(), Data(), FLAGS, seed=0)
    assert not (tmp_path / "done").exists()


def test_batches_cover_each_epoch_in_another_order():
    batches = Batches(10, 3, seed=1)
    epochs = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        assert [len(batch) for batch in batches] == [3, 3, 3] == [3] * len(batches)
        epochs.append([*chain(*batches)])
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]
    batches.set_epoch(0)
    assert [*chain(*batches)] == epochs[0]
    assert [*chain(*Batches(10, 3, seed=2))] != epochs[0]
