"""The exceptions of this package. A denial raises one only from `require` or a `with` statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import Decision


class Error(Exception):
    """The base of all exceptions of this package."""


class PolicyError(Error, ValueError):
    """The text or a parameter of a policy is invalid."""


class OperationError(Error, ValueError):
    """The policy does not support the operation, or an argument of it is invalid."""


class InvalidKey(OperationError):
    """A key is empty, or longer than 65 536 bytes. No store was asked."""


class SettingsError(Error, ValueError):
    """A setting is invalid, such as the URL of a store."""


class StoreError(Error):
    """The store made no decision."""


class StoreUnavailable(StoreError, ConnectionError):
    """The store cannot be reached, or refuses."""


class StoreTimeout(StoreError, TimeoutError):
    """The store has not answered in time."""


class CorruptState(StoreError):
    """The key holds a value that Sluicegate did not write, or that is damaged."""


class Denied(Error):
    """Units that `require` or a `with` statement needs are not available."""

    def __init__(self, decision: Decision, cost: int | None = None) -> None:
        super().__init__(decision)
        self.decision, self.cost = decision, cost

    def __str__(self) -> str:
        # Results of task queues keep a text instead of the decision.
        if isinstance(self.decision, str):
            return self.decision
        if self.decision.never:
            cost = "the cost" if self.cost is None else f"the cost of {self.cost}"
            return f"denied: {cost} is more than the limit of {self.decision.limit} ever admits"
        return f"denied: retry after {self.decision.retry_after}"
