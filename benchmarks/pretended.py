"""A pretended accelerator on a machine without one: what would mix devices, wait for the host, or be refused there.

    with pretended.device() as seen:
        x = torch.randn(100, 3).to("pretended")
        ...
    seen.launches, seen.waits

Tensors of the device ``pretended:0`` (torch's backend for Python) keep their numbers on the CPU, so that code runs that
depends on data. What mixes them with tensors of the CPU raises as CUDA would, and so do what CUDA refuses under
`torch.use_deterministic_algorithms` and rounds through NumPy that nobody has given a reason for. Launches and waits are
counted as those of the CUDA implementations. Errors inside CUDA kernels and libraries are not seen.
"""

import collections
import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import SkipTest, mock

import torch
import torch._dynamo  # before torch.Generator is another
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from torch_lapeig.support import precision

NAME = "pretended"
CPU = torch.device("cpu")
NAMES: dict[Any, str] = {}

# Functions of this library that may take tensors of a device through NumPy or SciPy, and why.
ROUND_TRIPS = {
    "pattern.bandwidth_reducing_order": "reverse Cuthill–McKee by SciPy, where the user asks for it",
    "algebra.geodesic_distances": "Dijkstra by SciPy: its queue is no work for a device",
    "lle._warn_of_zeros": "strongly connected components by SciPy: no work for a device",
    "graph.to_scipy": "the user asks for SciPy's matrix",
    "clustering._partition": "k-means by scikit-learn, of N × k numbers",
    "base.as_numpy": "the estimators for scikit-learn give NumPy's arrays",
}

# No kernel is launched for these.
VIEWS = frozenset(
    """view _unsafe_view reshape _reshape_alias expand slice select as_strided t transpose permute
unsqueeze squeeze diagonal detach alias split split_with_sizes unbind unfold narrow values
crow_indices col_indices lift_fresh empty empty_like new_empty empty_strided new_empty_strided
is_same_size _local_scalar_dense resolve_conj resolve_neg view_as mT is_pinned resize_ set_ lift""".split()  # noqa: SIM905
)
# Waits of the host in the CUDA implementations, beside copies across and boolean indices.
WAITS = {"_local_scalar_dense": 1, "nonzero": 1, "masked_select": 1, "equal": 1, "unique_consecutive": 1, "_unique2": 1}
WAITS |= {"unique_dim": 1, "bincount": 2, "_linalg_eigh": 1, "_linalg_svd": 1, "linalg_cholesky": 1}
WAITS |= {"_linalg_check_errors": 1}
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
MAY_MIX = ("copy_", "_to_copy", *INDEXING)
# What CUDA refuses under `torch.use_deterministic_algorithms`, and what gives other bits from run to run without it.
REFUSED = ("put_", "histc", "kthvalue", "median.dim", "nanmedian.dim", "cumsum", "cumprod")
UNSTABLE = ("index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
# Conjugates and negatives are bits of a tensor, which operations called from here do not see.
PHYSICAL = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "addbmm")
_csr: Any = torch.sparse_csr_tensor
_tensor, _as_tensor, _Generator = torch.tensor, torch.as_tensor, torch.Generator
_to, _numpy = Tensor.to, Tensor.numpy


class Seen(TorchDispatchMode):
    """Runs the operations of the device, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.lacks_float64 = False
        self.reset()

    def reset(self) -> None:
        self.copying: set[str] = set()  # functions of this library that take tensors to the host
        self.kernels, self.waits_by_kind = collections.Counter[str](), collections.Counter[str]()
        # Operands that some versions of cuSPARSE do not take (strided values, pointers off 16 bytes), sums whose order
        # changes from run to run, and products of float32 that the settings of torch let round their operands.
        self.shaky, self.unstable, self.rounded = (collections.Counter[str]() for _ in range(3))

    @property
    def launches(self) -> int:
        return self.kernels.total()

    @property
    def waits(self) -> int:
        """Return how often the host has waited for the device."""
        return self.waits_by_kind.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on the numbers of its operands."""
        func = PHYSICAL.get(func, func)
        name = NAMES.get(func) or NAMES.setdefault(func, str(func).partition(".")[2])
        short = name.partition(".")[0]
        flat: list[Any] = []
        of_cpu, options = _bare(args, flat), {key: _bare(value, flat) for key, value in kwargs.items()}
        ours = [a for a in flat if isinstance(a, Pretended)]
        plain = [a for a in flat if isinstance(a, Tensor) and not isinstance(a, Pretended)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        on_device = bool(ours) if target is None else target == NAME
        if not ours and not on_device:
            return func(*args, **kwargs)
        self._count(short, name, flat, kwargs, bool(ours), bool(plain), target)
        if ours and any(p.ndim > 0 for p in plain) and short not in MAY_MIX:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME}:0 and cpu! ({func} at {site()})"
            )
        if target == NAME:
            options["device"] = CPU
        if short == "_to_copy":  # of a sparse tensor, too
            options.pop("layout", None)
        out = func(*of_cpu, **options)
        return _of_device(out, {id(a.elem): a for a in ours}) if on_device else out

    def _count(
        self, short: str, name: str, flat: Any, kwargs: Any, ours: bool, plain: bool, target: str | None
    ) -> None:
        floating = any(isinstance(a, Pretended) and a.is_floating_point() for a in flat)
        if torch.are_deterministic_algorithms_enabled() and floating and (short in REFUSED or name in REFUSED):
            raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA (at {site()})")
        if short in UNSTABLE and floating and not any(a in ("amax", "amin") for a in flat if isinstance(a, str)):
            self.unstable[f"{short}, {site()}"] += 1
        if short in PRODUCTS and torch._C._get_fp32_precision_getter("cuda", "matmul") not in ("ieee", "none"):
            self.rounded[f"{short}, {site()}"] += any(
                isinstance(a, Pretended) and a.dtype == torch.float32 for a in flat
            )
        if short not in VIEWS:
            self.kernels[short] += 1
        self.waits_by_kind[short] += WAITS.get(short, 0)
        if short in INDEXING:
            self.waits_by_kind[short] += sum(isinstance(a, Tensor) and a.dtype == torch.bool for a in flat[1:])
        if name == "repeat_interleave.Tensor" and not any(isinstance(a, int) for a in flat[1:]):
            self.waits_by_kind[short] += 1
        if short == "_to_copy" and target == "cpu" and ours:
            self.waits_by_kind["device to host"] += 1
            self.copying.add(".".join(next(_frames(), ("", "", 0))[:2]))
        if short == "_to_copy" and target == NAME and plain:
            self.waits_by_kind["host to device"] += not kwargs.get("non_blocking")
        if short == "copy_" and ours and plain:
            self.waits_by_kind["copy_ across devices"] += not (isinstance(flat[0], Pretended) and True in flat[2:])
        if short in ("mm", "addmm", "addmv", "mv") and any(_is_csr(a) for a in flat):
            for a in flat:
                if isinstance(a, Pretended) and not _is_csr(a) and a.elem.numel() and a.elem.data_ptr() % 16:
                    self.shaky[f"{short}: dense operand at {a.elem.data_ptr() % 16} of 16 bytes, {site()}"] += 1


def _bare(value: Any, flat: list[Any]) -> Any:
    """Return tensors of the device as their numbers, other values unchanged; all are added to ``flat``."""
    if type(value) in (tuple, list):
        return type(value)([_bare(part, flat) for part in value])
    flat.append(value)
    return value.elem if type(value) is Pretended else value


def _of_device(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_of_device(part, known) for part in value)
    return (known.get(id(value)) if id(value) in known else Pretended(value)) if isinstance(value, Tensor) else value


def _is_csr(value: Any) -> bool:
    return isinstance(value, Pretended) and value.elem.layout == torch.sparse_csr


def site() -> str:
    """Return the innermost file and line of this library that runs."""
    for file, _, line in _frames():
        return f"{file}:{line}"
    return "?"


def _frames() -> Iterator[tuple[str, str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if "/torch_lapeig/" in file and not file.endswith("support/precision.py"):
            yield file.rpartition("/")[2].removesuffix(".py"), frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


class Pretended(Tensor):
    """A tensor that says it is on the device; its numbers are in ``elem``."""

    elem: Tensor

    @staticmethod
    def __new__(cls, elem: Tensor) -> "Pretended":
        if SEEN.lacks_float64 and (elem.dtype in precision.WIDE or elem.layout == torch.sparse_csr):
            raise TypeError(f"{NAME} has neither {elem.dtype} nor {elem.layout}, as MPS (at {site()})")
        strided = elem.layout == torch.strided
        where: dict[str, Any] = {"strides": elem.stride(), "storage_offset": elem.storage_offset()} if strided else {}
        made = Tensor._make_wrapper_subclass(cls, elem.size(), **where, dtype=elem.dtype, device=_where())
        made.elem = elem
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.elem})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SPECIAL:
            return SPECIAL[func](*args, **(kwargs or {}))
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(_tensor(i).to(_where()) if isinstance(i, list) else i for i in index), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return SEEN.run(func, args, kwargs or {})


def _where() -> torch.device:
    return torch.device(NAME, 0)


def _refused(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy (at {site()})")


def _to_dense(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.elem.layout == torch.strided:
        with torch._C.DisableTorchFunctionSubclass():
            return Tensor.to_dense(self, *args, **kwargs)
    SEEN.kernels["to_dense"] += 1
    return Pretended(self.elem.to_dense())


def _layout(self: Any) -> torch.layout:
    with torch._C.DisableTorchFunctionSubclass():
        return self.elem.layout  # type: ignore[no-any-return]


SPECIAL: dict[Any, Any] = {
    Tensor.to_dense: _to_dense,
    Tensor.__format__: lambda self, form: self.item().__format__(form) if self.ndim == 0 else repr(self),
    Tensor.tolist: lambda self: self.cpu().tolist(),
    # As CUDA: made on the host, copied, waited for.
    Tensor.new_tensor: lambda self, data, **options: _tensor(data, **{"dtype": self.dtype, **options}).to(_where()),
    Tensor.backward: lambda self, gradient=None, *args, **kw: torch.autograd.backward(self, gradient, *args, **kw),
    Tensor.numpy: _refused,
    Tensor.__array__: _refused,
    Tensor.data_ptr: lambda self: int(self.elem.data_ptr()),
    Tensor.layout.__get__: _layout,  # type: ignore[attr-defined]
}


def _sparse_csr_tensor(crow: Any, col: Any, values: Any, size: Any = None, **options: Any) -> Any:
    parts = (crow, col, values)
    if not any(isinstance(p, Pretended) for p in parts):
        return _csr(crow, col, values, size, **options)
    if not all(isinstance(p, Pretended) for p in parts):
        raise RuntimeError(f"sparse_csr_tensor: parts on different devices at {site()}")
    for part, name in zip(parts, ("crow", "col", "values"), strict=True):
        if not part.elem.is_contiguous():
            SEEN.shaky[f"csr: {name} with strides {part.elem.stride()}, {site()}"] += 1
        elif part.elem.numel() and part.elem.data_ptr() % 16:
            SEEN.shaky[f"csr: {name} at {part.elem.data_ptr() % 16} of 16 bytes, {site()}"] += 1
    return Pretended(_csr(*(p.elem for p in parts), size, **options))


class _AnyGenerator(_Generator):  # type: ignore[misc, valid-type]
    def __new__(cls, device: Any = "cpu") -> Any:
        return _Generator()


def _made(maker: Any) -> Any:
    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if isinstance(data, Pretended):
            return data if device is None else data.to(device)
        made = maker(data, *args, **kwargs)
        return made if device is None else made.to(device)

    return make


def _to_indexed(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    def indexed(value: Any) -> Any:
        return _where() if isinstance(value, str | torch.device) and str(value) == NAME else value

    return _to(self, *map(indexed, args), **{name: indexed(value) for name, value in kwargs.items()})


def _seen_numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    file, function, line = next(_frames(), ("", "", 0))
    if file and (name := f"{file}.{function}") in SEEN.copying and name not in ROUND_TRIPS:
        raise AssertionError(f"a round through NumPy without a reason: {name}, line {line}")
    return _numpy(self, *args, **kwargs)


SEEN = Seen()
AUTOCAST = torch.library.Library("_", "IMPL")


@contextlib.contextmanager
def device(*, lacks_float64: bool = False) -> Iterator[Seen]:
    """Make ``"pretended"`` a device of torch, with or without float64; raise `SkipTest` before torch 2.11."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        raise SkipTest(f"the pretended device needs torch 2.11, this is {torch.__version__}")
    if torch._C._get_privateuse1_backend_name() != NAME:
        backend_registration._setup_privateuseone_for_python_backend(NAME)
        AUTOCAST.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        getattr(torch, NAME).get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
        # Torch keeps the name for good. Nothing shall take it for an accelerator outside, as checkpoints do.
        getattr(torch, NAME).is_available = lambda: False
    SEEN.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(getattr(torch, NAME), "is_available", return_value=True))
        replaced = (("tensor", _made(_tensor)), ("as_tensor", _made(_as_tensor)), ("Generator", _AnyGenerator))
        for name, value in (*replaced, ("sparse_csr_tensor", _sparse_csr_tensor)):
            stack.enter_context(mock.patch.object(torch, name, value))
        stack.enter_context(mock.patch.object(Tensor, "to", _to_indexed))
        stack.enter_context(mock.patch.object(Tensor, "numpy", _seen_numpy))
        # What runs in a backward is to be seen as what runs in a forward.
        stack.enter_context(mock.patch.object(torch.autograd, "has_torch_function", return_value=False))
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        if lacks_float64:
            stack.enter_context(mock.patch.object(SEEN, "lacks_float64", True))
            stack.enter_context(mock.patch.object(precision, "LACKS_FLOAT64", {NAME}))
        stack.enter_context(SEEN)
        yield SEEN
