"""Checks that every rank of a group runs: trainings by Lightning, whose strategy "ddp" averages over all processes."""

import os

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from training import MESHES, Trained, data, of_rank

from problems import ignoring
from torch_lapeig.distributed import Ranks

STEPS, RATE = 3, 0.01


def optimizer(module):
    return torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.5)


def trained_alone(shape):
    """The parameters after steps on one process: the mean over data sets of the whole loss of each."""
    exact = Trained(Ranks.alone())
    steps = optimizer(exact)
    for _ in range(STEPS):
        steps.zero_grad()
        for which in range(shape[0]):
            (exact(data(which), 30) / shape[0]).backward()
        steps.step()
    return exact


def check_lightning_trains_shards_beside_data_parallelism(ranks):
    """The loss is the sum over shards, its gradients are summed over them and averaged over data sets."""
    with ignoring():  # of what Lightning imports, and its advice on data loaders
        import pytorch_lightning as lightning
        from pytorch_lightning.plugins.environments import TorchElasticEnvironment
        from pytorch_lightning.strategies import DDPStrategy

        class Lit(lightning.LightningModule):
            def configure_model(self):
                mesh = init_device_mesh("cpu", self.shape, mesh_dim_names=("data", "shard"))
                self.trained, self.place = Trained(mesh["shard"]), mesh.get_local_rank("data")

            def train_dataloader(self):
                """The rows of this process, the same in each step."""
                own = of_rank(self.place, self.trained.embed.ranks)
                return torch.utils.data.DataLoader([own] * STEPS, batch_size=None)

            def training_step(self, batch, batch_idx):
                share = self.trained(*batch)
                self.log("loss", share.detach(), sync_dist=True, reduce_fx="sum")
                return self.trained.embed.ranks.world * share

            def configure_optimizers(self):
                return optimizer(self)

        for shape in MESHES[ranks.world]:
            model = Lit()
            model.shape = shape
            with pytest.MonkeyPatch.context() as patch:
                for name, value in {"RANK": ranks.rank, "LOCAL_RANK": ranks.rank, "WORLD_SIZE": ranks.world}.items():
                    patch.setitem(os.environ, name, str(value))
                strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=TorchElasticEnvironment())
                quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
                trainer = lightning.Trainer(
                    accelerator="cpu", devices=ranks.world, strategy=strategy, max_epochs=1, logger=False,
                    use_distributed_sampler=False, **quiet,
                )  # fmt: skip
                trainer.fit(model)
            assert trainer.global_step == STEPS
            exact = trained_alone(shape)
            for a, b in zip(model.trained.parameters(), exact.parameters(), strict=True):
                torch.testing.assert_close(a.data, b.data, atol=1e-9, rtol=0)
