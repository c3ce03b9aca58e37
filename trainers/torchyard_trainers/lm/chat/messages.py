"""Conversations of records: the formats of OpenAI and ShareGPT, with what files of columns do to them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_trainers.core.data.rows import BadRecordError, Row, kind_of
from torchyard_trainers.core.json_text import parse_json

Message = Mapping[str, Any]
ASSISTANT = "assistant"
# Messages of ShareGPT say `from` and `value` in place of `role` and `content`.
SPEAKERS = {"human": "user", **dict.fromkeys(("gpt", "model", "chatgpt"), ASSISTANT)}
SPEAKERS |= {role: role for role in ("user", ASSISTANT, "system", "tool")}
# Objects whose keys the user chooses: without any they are empty, not missing.
_OPEN_OBJECTS = ("arguments", "parameters", "properties")


def conversation(value: Any, name: str, *, images: bool = False) -> list[Message]:
    """Return the messages in a field of a record; with images, contents that have some are lists of parts.

    Raises:
        BadRecordError: it is not a list of messages with `role` and `content`, or with `from` and `value`.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        raise BadRecordError(name, "is text, expected a list of messages; write the list itself, not its JSON as text")
    if not isinstance(value, list) or not value:
        raise BadRecordError(name, f"is {kind_of(value) if value != [] else 'empty'}, expected a list of messages")
    for number, each in enumerate(value, 1):
        where = f"has a message {number} "
        if not isinstance(each, Mapping):
            raise BadRecordError(name, f"{where}that is {type(each).__name__}, expected role and content")
        if "role" not in each and isinstance(each.get("from"), str) and each["from"] not in SPEAKERS:
            raise BadRecordError(name, f"{where}from {each['from'][:40]!r}, expected {', '.join(SPEAKERS)}")
        if not isinstance(_spoken(each).get("role"), str):
            raise BadRecordError(name, f"{where}without a role; it has {', '.join(map(repr, sorted(each)[:8]))}")
        if _spoken(each).get("content") is None and not each.get("tool_calls"):
            raise BadRecordError(name, f"{where}without content; it has {', '.join(map(repr, sorted(each)[:8]))}")
    return [_message(_spoken(each), name, number, images=images) for number, each in enumerate(value, 1)]


def tools_of(row: Row) -> list[Any] | None:
    """Return the descriptions of functions in a record; files of several tools often hold them as JSON text.

    Raises:
        BadRecordError: they are something else, of which a template would write each character, or each name.
    """
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = parse_json(tools) if tools.strip() else None
        except ValueError as error:
            raise BadRecordError("tools", f"is text, and cannot be read as JSON: {error}") from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(each, Mapping) for each in tools):
        raise BadRecordError("tools", f"is {kind_of(tools)}, expected a list of descriptions of functions")
    return [_without_nulls(each) for each in tools]


def arguments_of(call: Message) -> Any:
    """Return the arguments of a call as they are in the record: an object, its JSON as text, or None."""
    function = call["function"] if isinstance(call.get("function"), Mapping) else call
    return function.get("arguments")


def with_arguments(call: Message, arguments: Any) -> Message:
    """Return a call with other arguments."""
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": {**call["function"], "arguments": arguments}}
    return {**call, "arguments": arguments}


def _message(message: Message, name: str, number: int, *, images: bool) -> Message:
    # Parquet fills fields that other messages have with null.
    parts = {key: part for key, part in message.items() if part is not None}
    if "content" in parts:
        parts["content"] = _content(parts["content"], name, number, images=images)
    if calls := parts.pop("tool_calls", None):
        parts["tool_calls"] = _calls(calls, name, number)
    return parts


def _calls(calls: Any, name: str, number: int) -> list[Message]:
    """Return calls of functions without the arguments of other functions.

    Raises:
        BadRecordError: they are not calls, or their arguments are not an object.
    """
    where = f"has a message {number} whose tool_calls "
    if isinstance(calls, str):
        try:
            calls = parse_json(calls)
        except ValueError as error:
            raise BadRecordError(name, f"{where}are text, and cannot be read as JSON: {error}") from error
    if not isinstance(calls, list):
        raise BadRecordError(name, f"{where}are {kind_of(calls)}, expected a list of calls")
    checked = []
    for each in calls:
        if not isinstance(each, Mapping) or not isinstance((each.get("function") or each), Mapping):
            raise BadRecordError(name, f"{where}have {kind_of(each)}, expected an object with function")
        call = _without_nulls(each)
        function = call.get("function", call)
        if not isinstance(function.get("name"), str):
            raise BadRecordError(name, f"{where}have a call without the name of a function")
        arguments = parsed_arguments(function.get("arguments"), f"{where}call {function['name']!r} with", name)
        checked.append(call if isinstance(arguments_of(call), str) else with_arguments(call, arguments))
    return checked


def parsed_arguments(arguments: Any, where: str = "", name: str = "messages") -> dict[str, Any]:
    """Return the arguments of a call as an object; APIs write them as JSON text, and nothing as an empty text.

    Raises:
        BadRecordError: they are not an object.
    """
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise BadRecordError(name, f"{where} arguments that cannot be read as JSON: {error}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise BadRecordError(name, f"{where} arguments that are {kind_of(arguments)}, expected an object")
    return dict(arguments)


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that a file of columns fills with null, since other values have them."""
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    parts = {key: (_without_nulls(each), each) for key, each in value.items() if each is not None}
    # An object of nulls only is a field of other values, too.
    return {key: part for key, (part, each) in parts.items() if part != {} or each == {} or key in _OPEN_OBJECTS}


def _spoken(message: Message) -> Message:
    """Return a message with `role` and `content`, also one of ShareGPT."""
    if "role" in message or "from" not in message:
        return message
    rest = {key: each for key, each in message.items() if key not in ("from", "value")}
    return {"role": SPEAKERS.get(str(message["from"])), "content": message.get("value"), **rest}


def _content(content: Any, name: str, number: int, *, images: bool) -> str | list[Message]:
    """Return the content of a message as text; if there may be images, and are some, its parts.

    An image is `{type: image}`, with `image` if it is in the message.

    Raises:
        BadRecordError: it is something else.
    """
    if not images or not isinstance(content, list):
        return _text(content, name, number)
    parts = [_part(each, name, number) for each in content]
    if any(each["type"] == "image" for each in parts):
        return parts
    return "".join(each["text"] for each in parts)


def _part(part: Any, name: str, number: int) -> Message:
    """Return a part of a message as `{type: text, text: ...}` or `{type: image, image: ...}`."""
    given = {key: each for key, each in part.items() if each is not None} if isinstance(part, Mapping) else {}
    kind = given.get("type", "text" if "text" in given else "image" if "image" in given else None)
    if kind == "text" and isinstance(given.get("text"), str):
        return {"type": "text", "text": given["text"]}
    if kind == "image_url":
        source = given.get("image_url")
        return {"type": "image", "image": source.get("url") if isinstance(source, Mapping) else source}
    if kind == "image":
        source = next((given[each] for each in ("image", "path", "url") if each in given), None)
        return {"type": "image"} if source is None else {"type": "image", "image": source}
    what = repr(kind) if kind is not None else kind_of(part)
    raise BadRecordError(
        name, f"has a message {number} whose content has a part that is {what}, expected text or image"
    )


def _text(content: Any, name: str, number: int) -> str:
    """Return the content of a message, whose parts may be listed one by one: templates of text write them as they are.

    Raises:
        BadRecordError: it is not text.
    """
    if isinstance(content, str):
        return content
    where = f"has a message {number} whose content "
    if not isinstance(content, list):
        raise BadRecordError(name, f"{where}is {kind_of(content)}, expected text")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            what = repr(part.get("type")) if isinstance(part, Mapping) else kind_of(part)
            raise BadRecordError(
                name, f"{where}has a part that is {what}, expected text; only models such as Qwen2-VL read images"
            )
    return "".join(part["text"] for part in content)


def is_silent(message: Message) -> bool:
    """Return whether a turn says nothing: the model would learn to end its answer at once."""
    parts: Sequence[Any] = [each for name, each in message.items() if name not in ("role", "weight")]
    return not any(each.strip() if isinstance(each, str) else each for each in parts)
