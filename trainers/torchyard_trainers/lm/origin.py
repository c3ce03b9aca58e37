"""Where model and tokenizer of an `lm` run come from: a folder, or a geometry with random weights."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torchyard_trainers.core.pretrained import Pretrained
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.lm.checks import check_reads_images, check_reads_text
from torchyard_trainers.lm.data.datasets import Datasets, tokenizer_fingerprint, within_positions
from torchyard_trainers.lm.data.images import Images
from torchyard_trainers.lm.folder import (
    check_files,
    empty_model,
    image_token,
    limits_in,
    processor_files,
    read_tokenizer,
    tokenizer_files,
    with_tokens,
)
from torchyard_trainers.lm.models import LanguageModel, build_model, limits_of
from torchyard_trainers.lm.settings import Settings
from torchyard_trainers.lm.tokens import character_tokenizer, saved


class Origin:
    """What the parameters of a run name as its model and its tokenizer."""

    def __init__(self, settings: Settings) -> None:
        """Take the parameters of a run.

        Raises:
            ConfigError: the model reads images and the method does not, or parameters of images are set in vain.
        """
        self._settings = settings
        self._folder = Path(settings.pretrained) if settings.pretrained is not None else None
        self.images = self._images()

    @property
    def pretrained(self) -> Pretrained | None:
        """The folder with the weights; None: they are random."""
        if self._folder is None:
            return None
        return Pretrained(self._folder, prefix="lm.", converts=True, added=self._added)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        if self._tokens_folder is None:
            return character_tokenizer()
        named = self._settings.tokenizer is not None
        tokenizer = read_tokenizer(self._tokens_folder, f"trainer.params.{'tokenizer' if named else 'pretrained'}")
        with_tokens(tokenizer, self._settings.add_tokens)
        return tokenizer

    def model(self) -> LanguageModel:
        """Build the model, without memory or with random weights."""
        settings, value_head = self._settings, self._settings.method == "ppo"
        if self._folder is not None:
            return empty_model(self._folder, self.tokenizer, value_head=value_head, added=self._added)
        seed = stream_key(settings.seed, "weights") % 2**63
        return build_model(settings.model, self.tokenizer, seed=seed, value_head=value_head)

    def fitted(self, settings: Settings) -> tuple[Settings, str]:
        """Return settings of records whose samples suit the positions of the model, and a note of what was changed."""
        name, (_, positions) = self._name, self._limits
        fitted = within_positions(settings, name, positions)
        if fitted == settings:
            return settings, ""
        return fitted, (
            f"trainer.params.maxLength: is not set, and {name} has {positions} positions: samples have at most "
            f"{fitted.max_length} tokens, not {settings.max_length}"
        )

    def opened(self, settings: Settings) -> Datasets:
        """Open the files of `data` and `validation`.

        Args:
            settings: of `fitted`.
        """
        tokens = self._tokens_folder
        if tokens is not None:
            check_files(tokens)  # before a hash reads them whole
        files = [] if tokens is None else [each for each in tokenizer_files(tokens).values() if isinstance(each, Path)]
        tokens_of = tokenizer_fingerprint(files, settings.add_tokens) if files else "characters"
        vocabulary = max(self._limits[0], self._added.stop)
        return Datasets(settings, self.tokenizer, vocabulary, tokens_of=tokens_of, images=self.images)

    def assets(self) -> Mapping[str, Path | str]:
        """Return the files of the tokenizer, with its chat template, and of what reads images."""
        folder = self._tokens_folder
        tokens = saved(self.tokenizer) if folder is None or self._settings.add_tokens else tokenizer_files(folder)
        pictures = processor_files(self._folder) if self.images is not None and self._folder is not None else {}
        return {**tokens, **pictures}

    def _images(self) -> Images | None:
        """Return what reads images, of a model that does."""
        settings, folder = self._settings, self._folder
        token = image_token(folder) if folder is not None else None
        if folder is None or token is None:
            check_reads_text(settings)
            return None
        check_reads_images(settings, folder)
        return Images(folder, token, root=settings.image_folder, max_pixels=settings.image_max_pixels)

    @property
    def _name(self) -> str:
        return self._settings.model if self._folder is None else str(self._folder)

    @cached_property
    def _limits(self) -> tuple[int, int | None]:
        """The tokens that the model knows, and its positions if they are limited."""
        if self._folder is None:
            return limits_of(self._settings.model, self.tokenizer)
        return limits_in(self._folder)

    @cached_property
    def _added(self) -> range:
        """The tokens that the model has no weights for."""
        count = len(self._settings.add_tokens)
        return range(len(self.tokenizer) - count, len(self.tokenizer)) if count else range(0)

    @property
    def _tokens_folder(self) -> Path | None:
        """The folder with the tokenizer; None: it is made of characters."""
        folder = self._settings.tokenizer or self._settings.pretrained
        return Path(folder) if folder is not None else None
