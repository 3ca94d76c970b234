"""Attributes that are computed once for each object."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """Attribute computed at its first use and kept with the object, without a lock, as in Python 3.12.

        Before 3.12, `functools.cached_property` holds one lock for an attribute of all objects of a class: a process
        that is forked while another thread computes one, such as a worker of a `torch.utils.data.DataLoader`, waits for
        ever. Threads that ask for it at once may all compute it, and get the result of the first that is done.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return the attribute; Python calls this only if the object does not have it yet."""
            if instance is None:
                return self
            return vars(instance).setdefault(self.attrname, self.func(instance))
