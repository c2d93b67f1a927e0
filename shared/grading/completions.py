r"""What a completion says: its text, the part after the thought, and the last box in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Completion = str | Sequence[dict[str, Any]]

_THOUGHT = re.compile(r"<\s*(/?)\s*(?:think(?:ing)?|thought|reason(?:ing)?)\s*>", re.IGNORECASE)
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

    A prompt may end in `<think>`, so a closing tag needs no opening one. Linear in the text.
    """
    tags = list(_THOUGHT.finditer(text))
    if not tags:
        return text
    return text[tags[-1].end() :] if tags[-1].group(1) else ""


def is_well_formed(text: str) -> bool:
    """Whether the text is `<think>...</think>` and then `<answer>...</answer>`, each once, only space around."""
    tags = list(LAYOUT_TAGS.finditer(text))
    if [tag.group() for tag in tags] != ["<think>", "</think>", "<answer>", "</answer>"]:
        return False
    outside = text[: tags[0].start()], text[tags[1].end() : tags[2].start()], text[tags[3].end() :]
    return not any(part.strip() for part in outside)


def last_boxed(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}`, of the innermost one when boxes are nested; None without one.

    `\{`, `\}` and `\\` do not count as braces, and a box that never closes is ignored. Linear in the text.
    """
    content, content_start = None, -1
    open_braces: list[tuple[int, bool]] = []  # (position after the brace, was it opened by a box?)
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            box = _BOX.match(text, position)
            if box:
                open_braces.append((box.end(), True))
            position = box.end() if box else position + 2
            continue
        if character == "{":
            open_braces.append((position + 1, False))
        elif character == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and start > content_start:  # otherwise the last content lies inside this box: keep the inner one
                content, content_start = text[start:position], start
        position += 1
    return content


def boxed_answer(text: str) -> str | None:
    """Content of the last balanced box after the thought; None without a box or with an empty one."""
    content = last_boxed(after_thought(text))
    return content if content and content.strip() else None
