"""Your own method for ``jaxunlearn audit digits --methods my_unlearner:my_unlearner``, run in this folder."""

import optax

from jaxunlearn.types import TaskInfo, Unlearner
from jaxunlearn.unlearn import base


def my_unlearner(task: TaskInfo) -> Unlearner:
    """Adam on the retain loss minus a tenth of the forget loss, five epochs."""

    def loss(params, batch):
        return task.loss(params, batch.retain) - 0.1 * task.loss(params, batch.forget)

    adam = optax.adam(1e-3)
    return Unlearner((base.from_loss(loss, adam, source="retain", companion="forget", epochs=5, batch_size=64),))
