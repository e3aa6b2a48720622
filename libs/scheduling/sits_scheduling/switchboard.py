"""Which strategy is in force for which model, and how it is switched while work waits."""

import random
from collections.abc import Mapping

from sits_scheduling.strategies import STRATEGIES, Factory, Strategy, factory


class Switchboard:
    """A default and exceptions by model. Switching replaces a name, so that it takes no time
    and loses nothing; queues re-sort what waits with `WorkQueue.set_order`.

    Every model has its own instance of a strategy, so that turns are taken by model. Not
    thread-safe.
    """

    def __init__(
        self, default: str, rng: random.Random, custom: Mapping[str, Factory] | None = None
    ) -> None:
        self._rng, self._custom = rng, custom or {}
        self.default = default
        self.by_model: dict[str, str] = {}
        self._made: dict[tuple[str, str], Strategy] = {}

    def __repr__(self) -> str:
        return f"<Switchboard {self.default}, {self.by_model or 'no exceptions'}>"

    def names(self) -> list[str]:
        return sorted({*STRATEGIES, *self._custom})

    def knows(self, name: str) -> bool:
        return factory(name, self._custom) is not None

    def switch(self, name: str, model: str = "") -> str:
        """Use `name`, which must be known, from the next decision on, for one model or by
        default (""). Returns the previous one."""
        if model:
            previous = self.by_model.get(model, self.default)
            self.by_model[model] = name
        else:
            previous, self.default = self.default, name
        return previous

    def strategy(self, model: str) -> Strategy:
        """In force for `model`. `name/version` follows an exception for `name`."""
        name = self.by_model.get(model) or self.by_model.get(model.rpartition("/")[0])
        return self._instance(name or self.default, model)

    def another(self, name: str) -> Strategy:
        """A fresh instance with state of its own, for a shadow. The name must be known."""
        return self._make(name)

    def _instance(self, name: str, model: str) -> Strategy:
        made = self._made.get((name, model))
        if made is None:
            made = self._made[name, model] = self._make(name)
        return made

    def _make(self, name: str) -> Strategy:
        made = factory(name, self._custom)
        if made is None:
            raise KeyError(f"unknown strategy '{name}', expected one of {', '.join(self.names())}")
        return made(self._rng)
