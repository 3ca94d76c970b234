"""
What float32 is worth
=====================

How far is an answer in single precision from the true one? Every embedding has its
residuals and its gap, and together they bound the angle.
"""

# %%
# The same graphs in both precisions
# ----------------------------------
# A sheet becomes longer and longer, so that its eigenvalues crowd at zero. The library
# solves float32 in float64 and rounds the answer.

import matplotlib.pyplot as plt
import torch

from torch_lapeig import KNN, LaplacianEigenmaps

torch.manual_seed(0)
unit = torch.rand(2000, 2, dtype=torch.float64)
lengths = (1, 4, 16, 64)
rows = []
for length in lengths:
    x = unit * torch.tensor([length, 1.0])
    double = LaplacianEigenmaps(3, KNN(12), scale="orthonormal").embed(x)
    single = LaplacianEigenmaps(3, KNN(12), scale="orthonormal").embed(x.float())
    outside = single.embedding.double() - double.embedding @ (
        double.embedding.mT @ single.embedding.double()
    )
    sine = torch.linalg.matrix_norm(outside, 2)
    rows.append(
        (
            float(double.gap),
            float(double.residuals.max()),
            float(single.residuals.max()),
            float(sine),
        )
    )
    print(
        f"length {length:2d}: gap {double.gap:.1e}, residuals {rows[-1][1]:.0e} "
        f"(float64) and {rows[-1][2]:.0e} (float32), angle {sine:.0e}"
    )

# %%
# The picture
# -----------
# The angle between the two answers, and the bound of Davis and Kahan, residual over
# gap, with the residuals that come with float32. The points themselves were rounded to
# float32 as well, which residuals do not show.

gap, of_double, of_single, sine = torch.tensor(rows).T
figure, axes = plt.subplots(figsize=(8.5, 4), layout="constrained")
axes.loglog(lengths, gap, "k^--", label="gap")
axes.loglog(lengths, of_double, "o-", label="residual, float64")
axes.loglog(lengths, of_single, "o-", label="residual, float32")
axes.loglog(lengths, sine, "s-", label="angle between the answers")
axes.loglog(lengths, of_single / gap, ":", label="residual / gap, float32")
axes.set(
    xlabel="length of the sheet",
    xticks=lengths,
    xticklabels=[str(length) for length in lengths],
)
axes.minorticks_off()
figure.legend(loc="outside right center")
plt.show()
