"""SplitFed (v1) in the shape most public code of it has, to measure ours against.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, algorithms 1 and 2: every client
trains a copy of the client-side model, the main server a copy of the server-side model for each client, and both kinds
of copies are averaged after the round. Programs that follow it closely copy modules and `state_dict`s, give each client
a `DataLoader` that prepares samples one by one, and start a new optimiser for each client in each round. Nothing here
is slowed down on purpose: accuracies of mini-batches, evaluation per client and prints, which such programs have too,
are left out.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from asfl.data import ImageData
from asfl.models.cuttable import Carry, CuttableModel

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class ClientImages(Dataset[tuple[Tensor, int]]):
    """One client's samples; each is cropped, mirrored and normalised by itself when the loader asks for it."""

    def __init__(self, data: ImageData, samples: NDArray[np.int64], *, augment: bool) -> None:
        self._data, self._samples, self._augment = data, samples, augment
        self._mean = torch.tensor(data.mean).view(-1, 1, 1)
        self._std = torch.tensor(data.std).view(-1, 1, 1)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = self._samples[index]
        pixels = self._data.train_images[sample]
        if self._augment:
            pixels = _mirrored(_cropped(pixels))
        image = torch.from_numpy(np.ascontiguousarray(pixels)).float().div(self._data.scale)
        return (image - self._mean) / self._std, int(self._data.train_labels[sample])


class SplitFedPattern:
    """The global client-side and server-side model; `round` trains every client on one mini-batch."""

    def __init__(
        self, model: CuttableModel, data: ImageData, parts: NDArray[np.int64], make_optimizer: MakeOptimizer, *,
        cut: int, batch_size: int, augment: bool,
    ) -> None:  # fmt: skip
        whole = deepcopy(model)
        self.client_model, self.server_model = whole.client_part(cut), whole.server_part(cut)
        self._make_optimizer, self._batch_size = make_optimizer, batch_size
        self._images = [ClientImages(data, samples, augment=augment) for samples in parts]

    def round(self) -> float:
        """Returns the mean loss."""
        client_states, losses = [], []
        server_copies: list[nn.Module] = [deepcopy(self.server_model) for _ in self._images]
        for images_of_client, server_copy in zip(self._images, server_copies, strict=True):
            client_copy = deepcopy(self.client_model).train()
            optimizer = self._make_optimizer(client_copy.parameters())
            loader = DataLoader(images_of_client, batch_size=self._batch_size, shuffle=True)
            images, labels = next(iter(loader))
            optimizer.zero_grad()
            activations: Carry = client_copy((images,))
            sent = tuple(tensor.clone().detach().requires_grad_() for tensor in activations)
            losses.append(self._train_server(server_copy, sent, labels))
            torch.autograd.backward(activations, [tensor.grad for tensor in sent])
            optimizer.step()
            client_states.append(deepcopy(client_copy.state_dict()))
        self.client_model.load_state_dict(average(client_states))
        self.server_model.load_state_dict(average([deepcopy(copy.state_dict()) for copy in server_copies]))
        return float(np.mean(losses))

    def state_dict(self) -> dict[str, Tensor]:
        """Both sides under the names of the whole model."""
        return {**self.client_model.state_dict(), **self.server_model.state_dict()}

    def _train_server(self, server_copy: nn.Module, sent: Carry, labels: Tensor) -> float:
        """Forward, backward and a step of one client's server-side model; leaves the gradients in `sent`."""
        server_copy.train()
        optimizer = self._make_optimizer(server_copy.parameters())
        optimizer.zero_grad()
        (logits,) = server_copy(sent)
        loss = F.cross_entropy(logits, labels)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.item()


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of `state_dict`s, name by name; all clients hold the same number of samples."""
    mean = deepcopy(states[0])
    for name in mean:
        for state in states[1:]:
            mean[name] += state[name]
        mean[name] = torch.div(mean[name], len(states))
    return mean


def _cropped(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[C, H, W] shifted by up to an eighth of its size, black around, as `Batches` does it."""
    _, height, width = pixels.shape
    margin = max(height // 8, 1)
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin)))
    top, left = torch.randint(0, 2 * margin + 1, (2,)).tolist()
    return padded[:, top : top + height, left : left + width]


def _mirrored(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels[:, :, ::-1] if torch.rand(1) < 0.5 else pixels
