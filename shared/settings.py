"""Settings of an experiment as a typed model: every name known, every value checked before anything runs."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_replications.shared.errors import ReplicationError


class Settings(BaseModel):
    """Base of all settings: an unknown name, a missing value or one of another type is refused; nothing can be changed.

    Numbers are taken as they are written: 1 is a float where one is asked for, "1" and true are not. In code an
    instance is always called `settings`, by which the tests know that every field is read somewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    checked_by: ClassVar[str | None] = None
    """`module:function` of a check that needs heavy libraries, called with the settings before the first job."""

    @classmethod
    def parse(cls, values: dict[str, Any], where: str) -> Self:
        """The settings that `values` hold; ReplicationError names `where` they stand, each key, and the known ones."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = "; ".join(_problem(one) for one in error.errors())
            raise ReplicationError(f"{where}: {problems}. Known settings: {', '.join(cls.model_fields)}.") from None

    @classmethod
    def of(cls, settings: Settings, **changes: Any) -> Self:
        """These settings as far as `settings`, of another kind, have them, with `changes` in place of its values."""
        shared = {name: getattr(settings, name) for name in cls.model_fields if name in type(settings).model_fields}
        return cls.model_validate({**shared, **changes})

    def changed(self, **changes: Any) -> Self:
        """The same settings with other values, checked like any."""
        return self.of(self, **changes)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The value of every setting that may be left out."""
        fields = cls.model_fields.items()
        return {name: field.get_default(call_default_factory=True) for name, field in fields if not field.is_required()}

    def check(self) -> None:
        """Raise ReplicationError for what only the libraries know to be wrong, such as the name of a method."""
        if self.checked_by is not None:
            module, _, function = self.checked_by.partition(":")
            getattr(importlib.import_module(module), function)(self)


def _problem(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown setting '{name}'"
    if error["type"] == "missing":
        return f"setting '{name}' is missing"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{name} = {error['input']!r}: {message}" if name else message
