"""Trainings with Lightning: flags of the Trainer, logs, checkpoints that an interrupted training goes on from."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentError, ArgumentParser
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch.utils.data import Sampler

from experiments.runs import Refusal, load_tensors, replacing

Flags = dict[str, Any]

# Flags of the Trainer that are not to be chosen: those that `train` sets; those of several devices, each of which would
# run the whole experiment; and those that leave the batches or the end of a training to something else than the seed.
OURS = {
    *("logger", "callbacks", "default_root_dir", "enable_checkpointing", "plugins"),
    *("devices", "num_nodes", "strategy"),
    *("overfit_batches", "max_time"),
}
PRECISIONS = (None, 32, "32", "32-true", 16, "16", "16-mixed", "bf16", "bf16-mixed")  # parameters are float32
QUIET: Flags = {"accelerator": "auto", "enable_progress_bar": False, "enable_model_summary": False}


def add_trainer_flags(parser: ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """Add typed options ``--trainer.max_epochs`` and so on, with Lightning's help and the experiment's defaults."""
    parser.add_class_arguments(Trainer, "trainer", skip=set(OURS), instantiate=False)
    parser.set_defaults({f"trainer.{name}": value for name, value in defaults.items()})


def train(folder: Path, module: LightningModule, data: LightningDataModule, flags: Flags, seed: int) -> Trainer:
    """Fit a module to data, or go on with it where the folder holds the checkpoint of an interrupted training.

    Args:
        folder: for last.ckpt, written after every epoch, and logs/version_*, CSV and TensorBoard, one for each call.
        module, data: what is fitted, on what. Batches depend on the epoch and the seed only (see `Batches`), and the
            global random generators are seeded by both at the beginning of each epoch, so that a training that was
            interrupted ends like any other. The module is left on the CPU, in evaluation mode.
        flags: of the Trainer.
        seed: of everything random, also of what follows the training.

    Returns:
        The Trainer, for its ``global_step`` and ``current_epoch``.

    Raises:
        Refusal: flags the Trainer does not take, or a damaged checkpoint. KeyboardInterrupt: as always, which Lightning
            makes a silent exit.
    """
    if (precision := flags.get("precision")) not in PRECISIONS:
        raise Refusal(f"--trainer.precision must be 32-true, 16-mixed or bf16-mixed, got {precision}")
    seed_everything(seed, workers=True, verbose=False)
    last = folder / "last.ckpt"
    with _quiet():
        try:
            trainer = _trainer(folder, module, _with_instances(flags), seed)
        except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
            raise Refusal(f"Lightning's Trainer does not take --trainer.*: {error}") from error
        try:
            trainer.fit(module, data, ckpt_path=last if last.exists() else None)
        except MisconfigurationException as error:
            raise Refusal(f"Lightning's Trainer does not take --trainer.*: {error}") from error
        except SystemExit:
            raise KeyboardInterrupt from None
    module.cpu().eval()
    seed_everything(seed, workers=True, verbose=False)
    return trainer


def _trainer(folder: Path, module: LightningModule, flags: Flags, seed: int) -> Trainer:
    """Return a Trainer with the checkpoints and logs that `train` describes."""
    logger = CSVLogger(folder, name="logs", version=_attempt(folder))
    checkpoint = ModelCheckpoint(folder, filename="last", enable_version_counter=False, save_on_train_epoch_end=True)
    return Trainer(
        **flags,
        devices=1,
        logger=[logger, TensorBoardLogger(folder, name="logs", version=logger.version)],
        callbacks=[_WholeEpochs(seed), checkpoint],
        plugins=[_WholeCheckpoints(module)],
        default_root_dir=folder,
    )


def _with_instances(flags: Flags) -> Flags:
    """Return flags with an object for each that names a class by ``class_path``, such as a profiler."""
    named = {name: value for name, value in flags.items() if isinstance(value, dict) and "class_path" in value}
    if not named:
        return flags
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Trainer, "trainer", skip=set(OURS), instantiate=False)
    try:
        made = parser.instantiate(parser.parse_object({"trainer": named}))["trainer"]
    except ArgumentError as error:
        raise Refusal(f"--trainer.{', --trainer.'.join(named)} cannot be made: {error}") from error
    return {**flags, **{name: made[name] for name in named}}


class _WholeEpochs(Callback):
    """Lets an epoch depend on nothing but its number, the seed, and what the one before it left in the checkpoint."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a new epoch: where ``max_steps`` is set Lightning would make a step more in the one that has ended."""
        for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop):
            loop.on_iteration_done()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the global random generators, whose state before it is not that of an uninterrupted training."""
        seed_everything(hash((self.seed, trainer.current_epoch)) % 2**32, workers=True, verbose=False)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Flags) -> None:
        """Write the logs first: a resumed training goes on with its own from here."""
        for logger in trainer.loggers:
            logger.save()


class _WholeCheckpoints(TorchCheckpointIO):
    """Checkpoints of a module, written whole or not at all, and read if they are whole and of a finished epoch."""

    def __init__(self, module: LightningModule) -> None:
        self.shapes = _shapes(module.state_dict())

    def save_checkpoint(self, checkpoint: Flags, path: Any, storage_options: Any = None) -> None:
        """Write aside, then replace: Lightning's own way copies from another file system, which may be cut short."""
        with replacing(Path(path)) as part:
            torch.save(checkpoint, part)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> Flags:
        """Read, on the CPU."""
        way_out = "delete it to begin this training anew, or pass --fresh true to start all anew"
        checkpoint: Flags = load_tensors(Path(path), way_out)
        try:
            epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]
            fits = all(count["ready"] == count["processed"] for count in epochs.values())
            fits = fits and _shapes(checkpoint["state_dict"]) == self.shapes
        except (LookupError, TypeError, AttributeError):
            fits = False
        if not fits:
            raise Refusal(f"{path} is no checkpoint of a finished epoch of this training: {way_out}")
        for count in epochs.values():  # checkpoints are written just before Lightning counts the epoch as completed
            count["completed"] = count["processed"]
        return checkpoint


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Lightning prints of every training, and warnings that do not apply."""
    log = logging.getLogger("pytorch_lightning")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers")  # the data are tensors in memory
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning's own use of torch
            warnings.filterwarnings("ignore", "The number of training batches")  # steps are counted over epochs
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists")  # that of the interrupted training
            yield
    finally:
        log.setLevel(level)


def _attempt(folder: Path) -> int:
    """Return number of calls before this one that left logs."""
    return len(list((folder / "logs").glob("version_*")))


class Batches(Sampler[list[int]]):
    """Batches of indices in random order, which depends on ``seed`` and the epoch only.

    So a training goes on after an interruption with the batches it would have had. No index comes again before all have
    been drawn, but for those left over when the others make no whole batch. Use it as ``sampler`` of a DataLoader with
    ``batch_size=None``, whose dataset takes lists of indices.

    Args:
        n: number of examples.
        size: of a batch.
        seed: of the orders.
        count: of batches in an epoch; default: as many as ``n`` examples make.

    Raises:
        Refusal: fewer examples than a batch has.
    """

    def __init__(self, n: int, size: int, seed: int, count: int | None = None) -> None:
        if not 0 < size <= n:
            raise Refusal(f"--batch must be positive and at most the number of examples, {n}, got {size}")
        self.n, self.size, self.seed, self.epoch = n, size, seed, 0
        self.count = n // size if count is None else count

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Lightning calls it before each."""
        self.epoch = epoch

    def generator(self) -> torch.Generator:
        """Return the random generator of this epoch."""
        return torch.Generator().manual_seed(hash((self.seed, self.epoch)))

    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator()
        in_order = self.n // self.size
        for i in range(self.count):
            if i % in_order == 0:
                order = torch.randperm(self.n, generator=generator).split(self.size)
            yield order[i % in_order].tolist()
