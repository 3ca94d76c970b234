"""A search for wrong answers: random hard problems, each judged against a reference that does not use the library.

    python -m tests.campaign [--minutes 10] [--seed 0] [--probes solve gradient …] [--folder runs/campaign]
    python -m tests.campaign --replay runs/campaign [FILE …]

Case i of a probe depends on the seed and i alone. Each failure is a file with the whole problem in it, which
``--replay`` solves and judges again, without the random numbers it came from.

Probes: ``solve`` (eigenpairs of some fifty families of graphs by every solver, against LAPACK), ``gradient`` (against
finite differences of a dense reference), ``layer`` (adversarial points, every weighting, autocast), ``mesh``,
``directed`` (signed and magnetic Laplacians), ``products`` (of functions and of two factors), ``pencil``.

Goals, of the default solver but for the last rows; named solvers are counted each on its own:

| probe | goal |
|---|---|
| wrong value, said to be converged | 0 of 10⁴ |
| wrong gap, said to be converged | 0 of 10⁴ |
| crash of the default | 0 |
| unconverged | ≤ 1 in 10³, each warned |
| gradient wrong without a warning (first order / float32) | 0 |
| non-finite gradient, adversarial step | 0 where the true one is representable in the input's dtype |
| wrong value, gradient or crash, by products and of pencils | 0 |

What counts as wrong is in the docstrings of `pairs`, `gradients` and `layers`: bounds by residual, gap and precision.
"""
