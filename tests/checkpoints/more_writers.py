"""Run as a program: Lightning and Keras save a tiny model in two steps each.

    python tests/checkpoints/more_writers.py FOLDER [FRAMEWORK]

writes <folder>/<framework>/<checkpoint>. The packages are in no environment of the project:
`make frameworks` installs them beside it.
"""

# pyright: reportMissingImports=false

import os
import sys
from collections.abc import Callable
from pathlib import Path


def lightning(folder: Path) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Tiny(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    saver = ModelCheckpoint(folder, save_top_k=-1, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.rand(4, 2)))


def keras(folder: Path) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras as k
    import numpy

    net = k.Sequential([k.layers.Input((2,)), k.layers.Dense(1)])
    net.compile(optimizer="adam", loss="mse")
    names = ("weights.{epoch:02d}-{loss:.2f}.keras", "model-{epoch}.weights.h5")
    savers = [
        k.callbacks.ModelCheckpoint(str(folder / name), save_weights_only=name.endswith(".h5"))
        for name in names
    ]
    net.fit(numpy.ones((4, 2)), numpy.ones((4, 1)), epochs=2, verbose=0, callbacks=savers)


WRITERS: dict[str, Callable[[Path], None]] = {"lightning": lightning, "keras": keras}


if __name__ == "__main__":
    root, *chosen = sys.argv[1:]
    for name in chosen or WRITERS:
        WRITERS[name](Path(root, name))
