"""Work that a run could not do and that is not a failure of the work itself."""

from __future__ import annotations

from dataclasses import dataclass

from raystitch.errors import RaystitchError


@dataclass(frozen=True)
class Left:
    """Work that a failure around it (memory, device) or a failed network leaves pending."""

    what: str
    reason: str


def reason_of(error: BaseException) -> str:
    """The first line of an error, with its kind where it is not one of ours."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return text if isinstance(error, RaystitchError) else f"{type(error).__name__}: {text}"
