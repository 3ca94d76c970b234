"""Trainings with Lightning: they resume where they were interrupted, and take the Trainer's flags."""

import csv
import warnings
from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from experiments.runs import Refusal

with warnings.catch_warnings():  # Lightning's imports warn of what is deprecated elsewhere
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from experiments.training import QUIET, Batches, train

FLAGS = {**QUIET, "accelerator": "cpu", "max_epochs": 5, "log_every_n_steps": 1}


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


def test_interrupted_training_ends_like_any_other(tmp_path):
    whole, parts = Regression(), Regression(interrupted_in=3)
    train(tmp_path / "whole", whole, Data(), FLAGS, seed=0)
    with pytest.raises(InterruptedError):
        train(tmp_path / "parts", parts, Data(), FLAGS, seed=0)
    resumed = Regression()
    trainer = train(tmp_path / "parts", resumed, Data(), FLAGS, seed=0)
    assert trainer.global_step == 15
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
    for version, epochs in enumerate([{"0", "1", "2", "3"}, {"3", "4"}]):
        log = tmp_path / "parts" / "logs" / f"version_{version}"
        with (log / "metrics.csv").open() as file:
            assert {row["epoch"] for row in csv.DictReader(file)} == epochs
        assert len(list(log.glob("events.out.tfevents*"))) == 1


def test_finished_training_is_not_repeated(tmp_path):
    first, second = Regression(), Regression(interrupted_in=0)
    train(tmp_path, first, Data(), FLAGS, seed=0)
    train(tmp_path, second, Data(), FLAGS, seed=0)
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "flag",
    [
        {"max_epoch": 5},
        {"precision": "64-true"},
        {"accelerator": "abacus"},
        {"gradient_clip_algorithm": "scissors"},
        {"devices": 2},
    ],
)
def test_wrong_flags_are_refused(flag, tmp_path):
    with pytest.raises(Refusal, match=r"--trainer"):
        train(tmp_path, Regression(), Data(), {**FLAGS, **flag}, seed=0)


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


def test_epochs_may_have_any_number_of_batches():
    batches = list(Batches(10, 4, seed=0, count=5))
    assert len(batches) == len(Batches(10, 4, seed=0, count=5)) == 5
    for first, second in (batches[:2], batches[2:4]):
        assert len({*first, *second}) == 8


def test_batches_are_not_larger_than_the_data():
    with pytest.raises(Refusal, match="--batch must be positive and at most the number of examples, 3, got 4"):
        Batches(3, 4, seed=0)


def test_ctrl_c_is_no_silent_exit(tmp_path):
    class Impatient(Regression):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Impatient(), Data(), FLAGS, seed=0)
    assert (tmp_path / "last.ckpt").exists()


@pytest.mark.parametrize("accelerator", ["cpu", *(["gpu"] if torch.cuda.is_available() else [])])
def test_module_is_left_on_the_cpu_in_evaluation_mode(accelerator, tmp_path):
    module = Regression()
    train(tmp_path, module, Data(), {**FLAGS, "accelerator": accelerator}, seed=0)
    assert module.map.weight.device.type == "cpu"
    assert not module.training
