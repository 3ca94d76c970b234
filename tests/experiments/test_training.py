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
    lightning = pytest.importorskip("pytorch_lightning")
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


class Drawing(Regression):
    """Notes for each step the step, the epoch, the batch and a number of the global random generator."""

    def __init__(self, interrupted_in=None):
        super().__init__(interrupted_in)
        self.noted = {}

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.noted[self.global_step] = (self.current_epoch, batch_idx, batch[0].sum().item(), torch.rand(()).item())
        return loss


LENGTHS = [
    {"max_epochs": -1, "max_steps": 15},
    {"max_epochs": -1, "max_steps": 14},  # the last epoch is cut short
    {"max_epochs": 5, "max_steps": 100},
    {"max_epochs": 5, "limit_train_batches": 2},
    {"max_epochs": -1, "max_steps": 9, "accumulate_grad_batches": 2},
    {"max_epochs": -1, "max_steps": 15, "reload_dataloaders_every_n_epochs": 2},
]


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


def test_logs_of_both_parts_equal_those_of_the_whole(tmp_path):
    with pytest.raises(InterruptedError):
        train(tmp_path, Regression(interrupted_in=3), Data(), FLAGS | {"max_steps": 15}, seed=0)
    train(tmp_path, Regression(), Data(), FLAGS | {"max_steps": 15}, seed=0)
    steps = []
    for log in sorted(tmp_path.glob("logs/version_*/metrics.csv")):
        with log.open() as file:
            steps.append([int(row["step"]) for row in csv.DictReader(file)])
    assert steps == [[*range(10)], [*range(9, 15)]]  # one step after the last checkpoint was lost


def damage(path, how):
    content = bytearray(path.read_bytes())
    place = content.index(torch.load(path)["state_dict"]["map.bias"].numpy().tobytes())
    if how == "a bit":
        content[place] ^= 1
    elif how == "cut short":
        del content[place:]
    elif how == "other file":
        content = bytearray(b"loss 0.3")
    elif how == "empty":
        content = bytearray()
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["a bit", "cut short", "other file", "empty"])
def test_damaged_checkpoint_is_refused(how, tmp_path):
    train(tmp_path, Regression(), Data(), FLAGS, seed=0)
    damage(tmp_path / "last.ckpt", how)
    with pytest.raises(Refusal, match=r"last\.ckpt is damaged \(.+\): delete it to begin .* or pass --fresh true"):
        train(tmp_path, Regression(), Data(), FLAGS, seed=0)
    (tmp_path / "last.ckpt").unlink()
    assert train(tmp_path, Regression(), Data(), FLAGS, seed=0).global_step == 15


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": Regression().state_dict()},
        [1, 2],
        {"state_dict": nn.Linear(7, 1).state_dict(), "loops": {"fit_loop": {"epoch_progress": {"current": {}}}}},
    ],
)
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


def test_interrupted_writing_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    save, written = torch.save, []

    def half(content, path):
        save(content, path)
        written.append(path)
        if len(written) == 3:
            path.write_bytes(path.read_bytes()[:1000])
            raise InterruptedError

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(InterruptedError):
        train(tmp_path, Regression(), Data(), FLAGS, seed=0)
    monkeypatch.undo()
    assert torch.load(tmp_path / "last.ckpt")["global_step"] == 6
    assert {path.parent for path in written} == {tmp_path}  # of one file system, where replacing is one deed


def test_class_of_a_flag_is_made_for_each_training(tmp_path):
    profiler = {"class_path": "pytorch_lightning.profilers.SimpleProfiler", "init_args": {"extended": False}}
    trainer = train(tmp_path, Regression(), Data(), {**FLAGS, "profiler": profiler}, seed=0)
    assert type(trainer.profiler) is lightning.profilers.SimpleProfiler
    assert trainer.profiler.extended is False
    with pytest.raises(Refusal, match=r"--trainer\.profiler cannot be made"):
        train(tmp_path, Regression(), Data(), {**FLAGS, "profiler": {"class_path": "fractions.Fraction"}}, seed=0)


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
