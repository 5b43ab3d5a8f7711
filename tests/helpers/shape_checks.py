"""What jaxtyping's import hook checks arguments with: beartype, for which a whole number is a number too."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
