"""The processes that share a graph: their exchanges, agreements and failures.

There are two kinds of messages: sums and maxima of small tensors that all ranks have, and rows that go to the ranks
that need them (`all_to_all_single`). Both are differentiable as one program that all ranks run, whose loss is the sum
of the ranks' losses: the derivative of a sum is a sum, and the derivative of an exchange is the exchange back.

A rank that waits polls the store of the group, where a rank that has failed writes its error; if a rank has died or
does not come, the wait ends with an error. No rank waits longer than ``timeout``.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import pickle
import re
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from torch_lapeig.support import checks
from torch_lapeig.support.precision import FULL_VERSION

POLL = timedelta(seconds=0.5)  # between two checks for failures of other ranks, while this one waits
GRACE = 1.0  # seconds to wait for the error of a lost rank
PARTING = 5.0  # maximum seconds that an ending process waits for gloo's threads to release tensors

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # address of a function or object, which differs between processes
ALONE = object()
Exchange = Callable[[Tensor], Tensor]


class DistributedError(RuntimeError):
    """Error of ranks that do not agree, or of another rank that failed, died or did not come in time.

    >>> issubclass(DistributedError, RuntimeError)
    True
    """


class Ranks:
    """Processes that share one graph, each with its own rows. All of them build the object together.

    Args:
        group: a process group, a `DeviceMesh` of one dimension (``mesh["shard"]``), or None: all processes, or only
            this process if `torch.distributed` is not initialised.
        timeout: maximum seconds that a rank waits for the others.

    Attributes:
        world, rank: the number of processes, and the number of this process.
        sent: bytes sent by this rank. calls: collectives so far.
        messages: blocks of rows sent to another rank. most_rows: maximum rows of one collective.
        same_bits: whether small dense problems have equal results, to the last bit, on all ranks; if not, all use the
            first rank's.

    Raises: DistributedError: the others do not come.

    >>> ranks = Ranks()
    >>> ranks.world, ranks.rank
    (1, 0)
    """

    def __init__(self, group: Any = None, *, timeout: float = 300.0) -> None:
        self.timeout = checks.check_positive(timeout, "timeout")
        self.sent = self.calls = self.messages = self.most_rows = 0
        self._failure: str | None = None
        self._depth = self._failures = 0
        self.group = None if group is ALONE else _group_of(group)
        alone = self.group is None
        self.world = 1 if alone else dist.get_world_size(self.group)
        self.rank = 0 if alone else dist.get_rank(self.group)
        if self.rank < 0:
            raise ValueError("group must contain this process, got a group of other processes")
        self._listens = self.world > 1 and dist.get_backend(self.group) == "gloo"
        self.device = torch.device("cpu")
        if self.world > 1 and not self._listens:
            self.device = torch.device("cuda", torch.cuda.current_device())
        # The store by which the processes were initialised; without it errors of other ranks are not heard.
        store = getattr(dist.distributed_c10d, "_get_default_store", lambda: None)
        self._store: Any = store() if self.world > 1 else None
        self._key = ""
        if self.world > 1:  # a new name for this group of ranks
            token = time.time_ns() % 2**53 if self.rank == 0 else 0
            self._key = f"torch_lapeig/{int(self.sum(torch.tensor(token, device=self.device)))}"
        self.same_bits = self.world == 1 or self._same(_arithmetic(torch.get_num_threads()))

    @classmethod
    def alone(cls) -> Ranks:
        """Return a group of this process only, even if other groups exist."""
        return cls(ALONE)

    def __repr__(self) -> str:
        return f"Ranks(world={self.world}, rank={self.rank})"

    def sum(self, x: Tensor) -> Tensor:
        """Return Σ over ranks, identical to the last bit on all ranks; without gradients."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def maximum(self, x: Tensor) -> Tensor:
        """Return the maximum over ranks, elementwise; without gradients."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def total(self, x: Tensor) -> Tensor:
        """Return Σ over ranks, with derivatives of any order."""
        return x if self.world == 1 else _linear(x, self.sum, self.sum)

    def totals(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return Σ over ranks of tensors of one dtype, in one message, with derivatives of any order."""
        whole = self.total(torch.cat([x.flatten() for x in parts])).split([x.numel() for x in parts])
        return tuple(x.reshape(part.shape) for x, part in zip(whole, parts, strict=True))

    def same_on_all_ranks(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return small tensors of one dtype that every rank has computed from equal numbers, made identical on all."""
        own = tensors if self.rank == 0 else map(torch.zeros_like, tensors)
        return tensors if self.same_bits else self.totals(*own)

    def any(self, flag: Tensor | bool) -> bool:
        """Return whether the flag is true on at least one rank."""
        if self.world == 1:
            return bool(flag)
        return bool(self.maximum(torch.tensor(int(flag), device=self.device)))

    def _reduce(self, x: Tensor, operation: Any) -> Tensor:
        if self.world == 1:
            return x
        out = x.detach().contiguous().clone()
        self.sent += out.numel() * out.element_size()
        return self._call(lambda: dist.all_reduce(_lent(out), operation, group=self.group, async_op=True), out, 0)

    def exchange(self, rows: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Return rows in the order of their source from rows in the order of their destination; without gradients."""
        if self.world == 1:
            return rows
        rows = rows.detach().contiguous()
        out = rows.new_empty((sum(recv), *rows.shape[1:]))
        bytes_of_row = rows[0].numel() * rows.element_size() if len(rows) else 0
        self.sent += (len(rows) - send[self.rank]) * bytes_of_row
        self.messages += sum(count > 0 for to, count in enumerate(send) if to != self.rank)
        arguments = (list(recv), list(send), self.group, True)
        most = max(len(rows), len(out))
        return self._call(lambda: dist.all_to_all_single(_lent(out), _lent(rows), *arguments), out, most)

    def moved(self, rows: Tensor, send: Sequence[int], recv: Sequence[int]) -> Tensor:
        """Return `exchange` with derivatives of any order."""
        if self.world == 1:
            return rows
        there, back = (functools.partial(self.exchange, send=a, recv=b) for a, b in ((send, recv), (recv, send)))
        return _linear(rows, there, back)

    def to_first(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Return the rows of all ranks, ``sizes`` of each, on the first, and none on others; differentiable."""
        nothing = [0] * (self.world - 1)
        return self.moved(rows, [len(rows), *nothing], sizes if self.rank == 0 else [0, *nothing])

    def counts(self, send: Sequence[int]) -> list[int]:
        """Return the number of rows that each rank sends to this rank, given the numbers that this rank sends."""
        if self.world == 1:
            return list(send)
        ones = [1] * self.world
        return self.exchange(torch.tensor(send, dtype=torch.int64, device=self.device), ones, ones).tolist()

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """Return the rows of all ranks in order, on every rank, for small tensors; ``sizes``: their known numbers."""
        if self.world == 1:
            return rows
        sizes = self.sizes(len(rows)) if sizes is None else sizes
        return self.exchange(rows.repeat(self.world, *[1] * (rows.ndim - 1)), [len(rows)] * self.world, sizes)

    def sizes(self, n: int) -> list[int]:
        """Return the numbers ``n`` of all ranks."""
        return self.counts([n] * self.world)

    def agree(self, call: str, check: Callable[[], dict[str, Any] | None]) -> None:
        """Run a check on every rank; raise on all ranks unless all pass, in one call and with equal facts.

        A rank whose own check fails raises the error of the check, the others a `DistributedError` that quotes it. The
        group stays usable. Each public function and method of a sharded object begins with this call.

        ``check`` raises, or returns facts, which are compared as text, modules and options attribute by attribute.
        """
        facts: dict[str, Any] = {}
        failure: Exception | None = None
        try:
            facts = check() or {}
        except Exception as error:
            failure = error
        if self.world > 1:
            words = {"the call": call}
            for name, value in facts.items():
                words |= in_words(name, value)
            if not self._same(json.dumps(words), failure is not None):
                text = f"{type(failure).__name__}: {failure}" if failure else ""
                said = self.said_by_all({"error": text, "facts": words})
                failure = failure or DistributedError(_difference(said))
        if failure is not None:
            raise self.alike(failure)

    def _same(self, text: str, failed: bool = False) -> bool:
        mark = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        seen = torch.tensor([failed, mark, -mark], dtype=torch.int64, device=self.device)
        bad, most, least = self.maximum(seen).tolist()
        return not bad and bool(most == -least)

    def of_first(self, make: Callable[[], Any]) -> Any:
        """Return the first rank's result on all ranks; if it raises, all ranks raise its error."""
        made, failure = None, None
        if self.rank == 0:
            try:
                made = make()
            except Exception as error:
                failure = error
        if self.world > 1:
            made, failure = self.said_by_all((made, failure))[0]
        if failure is not None:
            raise self.alike(failure)
        return made

    def said_by_all(self, words: Any) -> list[Any]:
        """Return the statements of all ranks, on every rank; None is the cheapest to send."""
        raw = [] if words is None else list(pickle.dumps(words))
        sizes = self.sizes(len(raw))
        parts = self.gather(torch.tensor(raw, dtype=torch.uint8, device=self.device), sizes).split(sizes)
        return [pickle.loads(bytes(part.tolist())) if len(part) else None for part in parts]

    def unlike(self, module: nn.Module) -> str | None:
        """Return the name of a parameter that differs on another rank by more than half of its digits, or None."""
        named = {name: p.detach().to(self.device) for name, p in module.named_parameters() if p.is_floating_point()}
        if self.world == 1 or not named:
            return None
        flat = torch.cat([p.double().flatten() for p in named.values()]).nan_to_num(torch.inf, torch.inf, -torch.inf)
        most, least = self.maximum(torch.stack([flat, -flat]))
        eps = torch.cat([flat.new_full((p.numel(),), torch.finfo(p.dtype).eps) for p in named.values()])
        apart = most + least > eps.sqrt() * most.abs().clamp_min(1)
        sizes = [p.numel() for p in named.values()]
        return next((name for name, part in zip(named, apart.split(sizes), strict=True) if part.any()), None)

    def alike(self, error: Exception) -> Exception:
        """Mark an error that all ranks raise at one point, so that the group stays usable."""
        error._is_alike = True  # type: ignore[attr-defined]
        return error

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Send this rank's error to the other ranks, which wait for this rank; the group is unusable afterwards.

        If all ranks fail at one point, the group stays usable. Raises: DistributedError: it has failed before.
        """
        self._check_sound()
        self._depth += 1
        try:
            yield
        except BaseException as error:
            alike = getattr(error, "_is_alike", False) or isinstance(error, checks.ConvergenceError)
            is_lone = self._depth == 1 and self.world > 1 and not alike
            if is_lone and self._failure is None and not self._all_failed():
                self._failure = f"rank {self.rank} failed: {type(error).__name__}: {error}"
                with contextlib.suppress(Exception):  # the store may be gone; the error is raised here in any case
                    self._store.set(self._key, self._failure)
            raise
        finally:
            self._depth -= 1

    def _all_failed(self) -> bool:
        """Return whether all ranks have failed after one collective: then none waits, and the group stays usable."""
        self._failures += 1
        name, deadline = f"{self._key}/{self._failures}/{self.calls}", time.monotonic() + GRACE
        with contextlib.suppress(Exception):
            count = self._store.add(name, 1)
            while count < self.world and time.monotonic() < deadline:
                time.sleep(0.02)
                count = self._store.add(name, 0)
            return bool(count >= self.world)
        return False

    def _call(self, begin: Callable[[], Any], out: Tensor, rows: int) -> Tensor:
        """Return the result ``out`` of a collective, after waiting for its end."""
        self.calls += 1
        self.most_rows = max(self.most_rows, rows)
        self._check_sound()
        try:
            work = begin()
        except RuntimeError as error:
            raise self._lost(error) from error
        self._wait(work)
        return out

    def _wait(self, work: Any) -> None:
        if not self._listens:
            work.wait()
            return
        deadline = time.monotonic() + self.timeout
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(POLL)
                return
            if work.is_completed():  # it has failed, or has arrived since
                break
            self._hear()
            if time.monotonic() > deadline:
                self._failure = f"rank {self.rank} waited longer than {self.timeout:g} s for the others"
                raise DistributedError(
                    f"{self._failure}: one of them is slower, has stopped, or has skipped a call that all ranks must "
                    "make; use a larger timeout if they only need longer"
                )
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _check_sound(self) -> None:
        if self._failure is not None:
            raise DistributedError(f"this group of ranks has failed before ({self._failure}); restart the processes")

    def _hear(self) -> None:
        """Raise the error that another rank has sent, if any."""
        told = ""
        with contextlib.suppress(Exception):
            if self._store.check([self._key]):
                told = self._store.get(self._key).decode()
        if told:
            self._failure = told
            raise DistributedError(told)

    def _lost(self, error: Exception) -> DistributedError:
        """Return the error of a failed connection: the error that the other rank has sent, if there is one."""
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and _is_reachable(self._store):
            try:
                self._hear()
            except DistributedError as told:
                return told
            time.sleep(0.05)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._failure = f"rank {self.rank} has lost another rank, which has stopped or died ({reason})"
        return DistributedError(self._failure)


_LENT: deque[weakref.ref[Tensor]] = deque(maxlen=64)  # tensors given to the last collectives


def _lent(x: Tensor) -> Tensor:
    """Return an alias of the tensor that only the collective references, and that dies when the collective ends."""
    alias = x.detach()
    _LENT.append(weakref.ref(alias))
    return alias


@atexit.register
def _part() -> None:
    # Such a thread releases its tensor shortly after the collective ends, and needs the interpreter to do so. If the
    # interpreter has ended, the process aborts with "terminate called without an active exception".
    deadline = time.monotonic() + PARTING
    while any(alias() is not None for alias in _LENT) and time.monotonic() < deadline:
        time.sleep(0.001)


class _Linear(torch.autograd.Function):
    """Linear exchange and its transpose; each is the derivative of the other."""

    @staticmethod
    def forward(x: Tensor, there: Exchange, back: Exchange) -> Tensor:
        return there(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.there, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _linear(grads[0], ctx.back, ctx.there), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _linear(tangents[0], ctx.there, ctx.back)


def _linear(x: Tensor, there: Exchange, back: Exchange) -> Tensor:
    if not checks.needs_derivatives(x):
        return there(x)
    return _Linear.apply(x, there, back)  # type: ignore[no-any-return]


def _group_of(group: Any) -> Any:
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"group must be a mesh of one dimension, got {group.ndim}; use mesh['name']")
        return group.get_group()
    if group is None:
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if isinstance(group, dist.ProcessGroup):
        return group
    raise TypeError(f"group must be a process group, a DeviceMesh or None, got {checks.describe(group)}")


def _is_reachable(store: Any) -> bool:
    """Return whether the server of a store listens; torch prints a stack trace for each request to a dead server."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "host"):  # files, or nothing
        return store is not None
    try:
        socket.create_connection((store.host, store.port), timeout=GRACE).close()
    except OSError:
        return False
    return True


@functools.cache
def _arithmetic(threads: int) -> str:
    """Return bits of this process's dense algebra: they differ with hardware, threads and libraries."""
    found = [FULL_VERSION, torch.backends.cpu.get_cpu_capability(), str(threads)]
    for n in (5, 14, 29, 43, 120):
        a = torch.arange(n * n, dtype=torch.float64).reshape(n, n).sin()
        parts = (*torch.linalg.eigh(a + a.mT), *torch.linalg.svd(a), *torch.linalg.eigh((a + a.mT).float()))
        found += [hashlib.blake2b(part.contiguous().numpy().tobytes(), digest_size=8).hexdigest() for part in parts]
    return " ".join(found)


def in_words(name: str, value: Any) -> dict[str, str]:
    """Return a fact as text; for a module or an object of options, its class and a fact for each attribute."""
    if isinstance(value, nn.Module):
        given = inspect.signature(type(value)).parameters
        parts = {part: getattr(value, part) for part in ("training", *given) if hasattr(value, part)}
        parts |= dict(value.named_children())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        return {name: ADDRESS.sub("", str(value))}
    words = {name: type(value).__name__}
    for part, inner in parts.items():
        words |= in_words(f"{name}.{part}", inner)
    return words


def _difference(said: list[Any]) -> str:
    """Return a contradiction between the statements of ranks."""
    failed = [f"rank {rank}: {words['error']}" for rank, words in enumerate(said) if words["error"]]
    if failed:
        return f"{len(failed)} of {len(said)} ranks refused their arguments; {'; '.join(failed[:3])}"
    for name in dict.fromkeys(name for words in said for name in words["facts"]):
        given = [words["facts"].get(name, "nothing") for words in said]
        if len(set(given)) > 1:
            each = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(given[:8]))
            return f"{name} must be the same on all ranks, got {each}"
    return "ranks do not agree"
