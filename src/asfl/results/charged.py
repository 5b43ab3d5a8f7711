"""Which network is trained and which one is charged (`model.charged_as`), in plain words."""

from collections.abc import Iterable

from asfl.config import Config

_NAMES = {"vgg19": "VGG-19", "resnet18": "ResNet-18", "resnet50": "ResNet-50", "cnn": "the small CNN"}
_WIDTHS = {0.5: "half", 0.25: "quarter"}


def trained_and_charged(config: Config | None) -> str:
    """Such as "VGG-19 at quarter width trained, charged as vgg19-cifar10"; empty if what is trained is charged."""
    if config is None or not config.model.charged_as or config.model.charged_as == config.model_spec.name:
        return ""
    model = config.model
    width = "" if model.width == 1 else f" at {_WIDTHS.get(model.width, f'{model.width:g} times its')} width"
    return f"{_NAMES.get(model.architecture, model.architecture)}{width} trained, charged as {model.charged_as}"


def said_once(texts: Iterable[str]) -> str:
    """What several runs have to say, each text once."""
    return "; ".join(dict.fromkeys(text for text in texts if text))


def with_note(title: str, note: str) -> str:
    """A title, and in brackets what must be said with it, if anything."""
    return f"{title} ({note})" if note else title
