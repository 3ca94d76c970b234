"""Compiled loops: `loops` calls them from Python, `sparse` those of sparse factors; the C files hold the loops."""

from torch_lapeig.native.loops import LINE as LINE
from torch_lapeig.native.loops import Rows as Rows
from torch_lapeig.native.loops import Spectrum as Spectrum
from torch_lapeig.native.loops import System as System
from torch_lapeig.native.loops import csr_supported as csr_supported
from torch_lapeig.native.loops import edge_dot_or_sqdist as edge_dot_or_sqdist
from torch_lapeig.native.loops import edges_among as edges_among
from torch_lapeig.native.loops import eigh as eigh
from torch_lapeig.native.loops import finds_nearest as finds_nearest
from torch_lapeig.native.loops import is_for_one_thread as is_for_one_thread
from torch_lapeig.native.loops import least_pivot as least_pivot
from torch_lapeig.native.loops import library as library
from torch_lapeig.native.loops import memory_supported as memory_supported
from torch_lapeig.native.loops import nearest as nearest
from torch_lapeig.native.loops import pair_squares as pair_squares
from torch_lapeig.native.loops import product as product
from torch_lapeig.native.loops import subspace as subspace
from torch_lapeig.native.loops import tension as tension
