"""Arguments of chat templates that a job sets for all conversations."""

import re
from collections.abc import Mapping
from typing import Any

from torchyard_trainers.core.exits import ConfigError

# Arguments that many templates have; and those of `render_jinja_template`, and of rendering itself.
USUAL = ("enable_thinking", "thinking", "reasoning_effort", "preserve_thinking", "date_string", "model_identity")
_OWN = (
    *("messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize"),
    *("continue_final_message", "return_assistant_tokens_mask"),
)


def check_arguments(arguments: Mapping[str, Any], tokenizer: Any) -> None:
    """Check that the chat template of a tokenizer uses arguments; one that it does not use would change nothing.

    Raises:
        ConfigError: naming one that it does not use, or that is set for each conversation.
    """
    at = "trainer.params.templateArguments"
    templates = tokenizer.chat_template or ""
    text = "\n".join(templates.values()) if isinstance(templates, Mapping) else templates
    for name in arguments:
        if name in _OWN or name in tokenizer.special_tokens_map:
            raise ConfigError(f"{at}: {name!r} is set for each conversation; remove it")
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            used = ", ".join(each for each in USUAL if re.search(rf"\b{each}\b", text)) or "none of the usual ones"
            raise ConfigError(f"{at}: the chat template does not use {name!r} (it uses {used}); remove it")
