"""`like` in profiles: which experiments a profile has, and the whole table of each, from what is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import ReplicationError

LIKE, WITHOUT = "like", "without"
Place = tuple[str, ...]  # (profile,) or (profile, experiment)


@dataclass(frozen=True)
class Inheritance:
    """A document of profiles, as it is written in the file `path`."""

    document: dict[str, dict[str, Any]]
    path: Path

    def experiments(self, profile: str, seen: tuple[Place, ...] = ()) -> list[str]:
        """Names of a profile's experiments in the order in which they run: those written as they are written.

        One that is not written here comes after the experiment that it follows in the profile that this one is like.
        Raises ReplicationError for a profile that does not exist, one that is like itself by a detour, and an
        experiment left out that is not there.
        """
        table = self.document[profile]
        parent = self._parent(profile, seen)
        inherited = self.experiments(parent, (*seen, (profile,))) if parent else []
        left_out = [key for key, value in table.items() if value is False]
        for key in left_out:
            if key not in inherited:
                raise self._error((profile,), f"{key} = false leaves out an experiment that is not there")
        names = [key for key, value in table.items() if isinstance(value, dict)]
        kept = [key for key in inherited if key not in left_out]
        for before, key in zip([None, *kept], kept):
            if key not in names:
                names.insert(0 if before is None else names.index(before) + 1, key)
        return names

    def table(self, profile: str, experiment: str, seen: tuple[Place, ...] = ()) -> dict[str, Any]:
        """The whole table of an experiment: what it is like, with what is written in its place.

        Raises ReplicationError for a `like` that names nothing, a circle, and a key of `without` that is not there.
        """
        place = (profile, experiment)
        if place in seen:
            raise self._error(place, f"{LIKE} leads back to it: {' -> '.join('.'.join(one) for one in (*seen, place))}")
        own = dict(self.document[profile].get(experiment, {}))
        like, without = own.pop(LIKE, None), own.pop(WITHOUT, [])
        if like is not None:
            base = self.table(*self._experiment(place, like), (*seen, place))
        else:
            parent = self._parent(profile, ())
            inherits = parent is not None and experiment in self.experiments(parent)
            base = dict(self.table(parent, experiment, (*seen, place))) if inherits else {}
        absent = [key for key in without if key not in base] if isinstance(without, list) else [without]
        if absent:
            raise self._error(place, f"{WITHOUT} names {absent[0]!r}, which is not there to be left out")
        return {key: value for key, value in base.items() if key not in without} | own

    def _parent(self, profile: str, seen: tuple[Place, ...]) -> str | None:
        parent = self.document[profile].get(LIKE)
        if parent is None:
            return None
        if not isinstance(parent, str) or parent not in self.document:
            raise self._error((profile,), f"{LIKE} = {parent!r} is no profile; there are: {', '.join(self.document)}")
        if (profile,) in seen:
            names = [one[0] for one in seen]
            raise self._error((profile,), f"{LIKE} leads back to it: {' -> '.join((*names, profile))}")
        return parent

    def _experiment(self, place: Place, like: Any) -> tuple[str, str]:
        """The place that an experiment's `like` names: a sibling, or `profile.experiment`."""
        profile, _, experiment = like.rpartition(".") if isinstance(like, str) else ("", "", "")
        profile = profile or place[0]
        if profile not in self.document or experiment not in self.experiments(profile):
            known = ", ".join(self.experiments(profile if profile in self.document else place[0]))
            raise self._error(place, f"{LIKE} = {like!r} is no experiment; there are: {known}")
        return profile, experiment

    def _error(self, place: Place, problem: str) -> ReplicationError:
        return ReplicationError(f"{self.path}, [{'.'.join(place)}]: {problem}.")
