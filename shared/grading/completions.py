r"""What a completion says: its text, the part after the thought, and the last box in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Completion = str | Sequence[dict[str, Any]]

_THOUGHT = re.compile(  # each run of space is matched in one place only, to stay linear
    r"<\s*(/\s*)?(?:think(?:ing)?|thought|reason(?:ing)?|analysis)\s*>|\[\s*(/\s*)?think(?:ing)?\s*\]"
    r"|<\|\s*(?:begin|(end))_of_thought\s*\|>",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s*")
_BOX = re.compile(r"\\boxed\s*\{")
LAYOUT_TAGS = re.compile(r"</?(?:think|answer)>")


def completion_text(completion: Completion) -> str:
    """Text of a completion, plain or as a list of chat messages (those of the assistant, joined by newlines).

    A message without a role counts as the assistant's; those of users, tools and the system are not the model's words.
    A content is a string or a list of parts, of which those of type "text" count. Raises TypeError for anything else.
    """
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, dict) for message in completion):
        raise TypeError(f"a completion must be a string or a list of chat messages, not {type(completion).__name__}")
    own = [message for message in completion if message.get("role", "assistant") == "assistant"]
    return "\n".join(_content_text(message.get("content")) for message in own)


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if part.get("type") == "text")
    return str(content or "")


def after_thought(text: str) -> str:
    """What follows the last `</think>`; all of a text without such tags; nothing when a thought was left unfinished.

    Tags of other names count as well: `<thinking>`, `<reasoning>`, `<analysis>`, `[THINK]`, `<|begin_of_thought|>`.

    A prompt may end in `<think>`, so a closing tag needs no opening one. Linear in the text.
    """
    tags = list(_THOUGHT.finditer(text))
    if not tags:
        return text
    return text[tags[-1].end() :] if any(tags[-1].groups()) else ""


def is_well_formed(text: str) -> bool:
    """Whether the text is `<think>...</think>` and then `<answer>...</answer>`, each once, only space around."""
    if not has_tags_in_order(text):
        return False
    tags = list(LAYOUT_TAGS.finditer(text))
    outside = text[: tags[0].start()], text[tags[1].end() : tags[2].start()], text[tags[3].end() :]
    return not any(part.strip() for part in outside)


def has_tags_in_order(text: str) -> bool:
    """Whether the four tags of `is_well_formed` stand in their order, each once, whatever stands around them."""
    return [tag.group() for tag in LAYOUT_TAGS.finditer(text)] == ["<think>", "</think>", "<answer>", "</answer>"]


def last_boxed(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}`; None without one.

    Of boxes with nothing but a box in them it is the innermost content, otherwise that of the outer one, in full.
    `\{`, `\}` and `\\` do not count as braces, and a box that never closes is ignored. Linear in the text.
    """
    content: tuple[int, int] | None = None
    last_box = (-1, -1)  # from the backslash to after the brace
    open_braces: list[tuple[int, int]] = []  # (position after the brace, where its box began or -1)
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            box = _BOX.match(text, position)
            if box:
                open_braces.append((box.end(), position))
            position = box.end() if box else position + 2
            continue
        if character == "{":
            open_braces.append((position + 1, -1))
        elif character == "}" and open_braces:
            start, box_start = open_braces.pop()
            if box_start >= 0:
                inner_start, inner_end = last_box
                alone = inner_start >= start and _SPACE.match(text, start).end() == inner_start  # type: ignore[union-attr]
                if not (alone and _SPACE.match(text, inner_end).end() == position):  # type: ignore[union-attr]
                    content = (start, position)
                last_box = (box_start, position + 1)
        position += 1
    return text[slice(*content)] if content else None


def first_box(text: str) -> str | None:
    r"""The first `\boxed{...}` of a text, braces included; None without one or while it is open.

    Every brace counts, escaped ones too: the rule of lambda-GRPO's authors, whose samples end there.
    """
    start = text.find("\\boxed{")
    if start < 0:
        return None
    open_braces = 0
    for position in range(start + len("\\boxed"), len(text)):
        open_braces += {"{": 1, "}": -1}.get(text[position], 0)
        if open_braces == 0:
            return text[start : position + 1]
    return None


def boxed_answer(text: str) -> str | None:
    """Content of the last balanced box after the thought; None without a box or with an empty one."""
    content = last_boxed(after_thought(text))
    return content if content and content.strip() else None
