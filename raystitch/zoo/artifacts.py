"""Trained networks as stored: ``weights.safetensors``, then ``card.json``.

The card is written last, so a folder with a card is a finished artifact.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError, StorageError
from raystitch.files import atomic_path, write_text
from raystitch.zoo import weights
from raystitch.zoo.models import Network, digest

WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "card.json"


def save(folder: Path, network: Network, card: ModelCard) -> None:
    """Store the net's state dict and its card in ``folder``, replacing what is there.

    The weights file has the net's own names, so that its library can load it too.
    """
    assert card.digest == digest(network), "the card is of another network"
    # Else a kill between the two would leave new weights under the old card.
    (folder / CARD_FILE).unlink(missing_ok=True)
    state = network.net.state_dict()
    copies = {name: tensor.cpu().clone().contiguous() for name, tensor in state.items()}
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        save_file(copies, temporary)
    write_text(folder / CARD_FILE, card.to_json())


def is_stored(folder: Path) -> bool:
    """Whether ``folder`` holds a finished artifact."""
    return (folder / CARD_FILE).is_file()


def read_card(folder: Path) -> ModelCard:
    """The card alone. Raises `StorageError` when it is missing or damaged."""
    try:
        return ModelCard.read(folder / CARD_FILE)
    except (OSError, ValidationError, UnicodeDecodeError) as fault:
        raise _broken(folder, f"its {CARD_FILE} is missing or damaged") from fault


def load(folder: Path, network: Network) -> ModelCard:
    """Put the stored weights into the network, and return the card.

    Raises `StorageError` when a file is missing, torn or does not fit, or when the weights are not
    those the card was written for (a different digest).
    """
    card = read_card(folder)
    try:
        state = load_file(folder / WEIGHTS_FILE, device=str(network.device))
        weights.load(network.net, state, str(folder))
    except (OSError, SafetensorError) as fault:
        raise _broken(folder, f"its {WEIGHTS_FILE} is missing or torn") from fault
    except RaystitchError as fault:
        raise _broken(folder, f"its weights are not of {network.arch}") from fault
    if digest(network) != card.digest:
        raise _broken(folder, "its weights are not those of its card (another digest)")
    return card


def _broken(folder: Path, why: str) -> StorageError:
    return StorageError(
        f"the stored network {folder} cannot be used: {why}. Move the folder away and run the "
        "sweep again; the network is then made anew."
    )
