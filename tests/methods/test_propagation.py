"""Semi-supervised methods: the contract of the other methods, components without labels, wild weights, gradients."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torch_lapeig as tl
from problems import edge_parameters, on_every_device, points, polygon, random_affinity, stored, surface

METHODS = {
    "LabelSpreading": lambda *a, **o: tl.LabelSpreading(*a, alpha=0.9, **o),
    "HarmonicFunction": partial(tl.HarmonicFunction, class_prior=None),
    "EigenmapsRegression": lambda *a, **o: tl.EigenmapsRegression(3, *a, **o),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
GIVEN = tl.Precomputed("affinity")
SOLVED = {"LabelSpreading": METHODS["LabelSpreading"], "HarmonicFunction": METHODS["HarmonicFunction"]}
PRIORS = {"uniform": "uniform", "labels": "labels", "given": (0.2, 0.5, 0.3)}


def some_labels(n, classes=3, count=7, seed=0):
    labels = torch.full((n,), -1)
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count]
    labels[chosen] = torch.arange(count) % classes
    return labels


def one_hot(labels, classes=3):
    return torch.nn.functional.one_hot(labels.clamp_min(0), classes).double() * (labels >= 0)[:, None]


X, NEW, LABELS = surface(60), surface(9, seed=1), some_labels(60)


@every_method
@on_every_device
def test_shapes_dtypes_and_labels(make, device):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x, labels = X.to(device, dtype), LABELS.to(device)
        model = make(tl.KNN(6))
        scores = model(x, labels)
        assert (scores.shape, scores.dtype, scores.device) == ((60, 3), dtype, x.device)
        assert model.fit(x, labels) is model
        torch.testing.assert_close(model.scores_.to(dtype), scores)
        assert torch.equal(model.predict(), model.scores_.argmax(1))
        assert model.predict(NEW.to(device, dtype)).shape == (9,)
        assert model.transform(NEW.to(device, dtype)).dtype == dtype
        assert torch.equal(model.predict()[labels >= 0], labels[labels >= 0]) or make is METHODS["EigenmapsRegression"]
    assert make(tl.KNN(6), n_classes=5)(X, LABELS).shape == (60, 5)
    torch.testing.assert_close(make(tl.KNN(6))(X, LABELS.int()), make(tl.KNN(6))(X, one_hot(LABELS)))


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
@every_method
def test_a_batch_equals_its_items_whatever_the_padding(make):
    """Beside items of two points, one and none, with labels and without."""
    sizes = torch.tensor([40, 25, 12, 2, 1, 1, 0])
    mask = torch.arange(40) < sizes[:, None]
    x = torch.stack([surface(40, seed=s) for s in range(7)]).masked_fill(~mask[..., None], torch.nan).requires_grad_()
    labels = torch.stack([some_labels(40, seed=s) for s in range(7)])
    labels[:3, :3], labels[3:] = torch.arange(3), -1
    labels[3, 0], labels[4, 0] = 1, 2
    labels[~mask] = 77  # of padding, whatever they are
    model, news = make(tl.KNN(5)), NEW.expand(7, -1, -1)
    scores = model(x, labels, mask=mask)
    again, new = model.out_of_sample(x, labels, news, mask=mask)
    torch.testing.assert_close(again, scores, atol=1e-8, rtol=0)
    assert not scores[~mask].any()
    assert not scores[5:].any()
    assert not new[4:].any()
    for b, size in enumerate(sizes[:3]):
        alone = model.fit(x[b, :size].detach(), labels[b, :size])
        torch.testing.assert_close(scores[b, :size], alone.scores_, atol=1e-8, rtol=0)
        torch.testing.assert_close(new[b], alone.transform(NEW), atol=1e-8, rtol=0)
    (scores.square().sum() + scores.sum() + new.square().sum() + new.sum()).backward()
    assert not x.grad[~mask].any()
    assert x.grad.isfinite().all()


@every_method
def test_gradients_to_weights_labels_points_and_bandwidth(make):
    """The loss is on all scores; labels of others are constant zeros."""
    weight, of_weight = edge_parameters(tl.HeatKernel()(X[:14], tl.KNN(4)(X[:14])).to_dense())
    labels = some_labels(14, classes=2, count=5)
    soft = (one_hot(labels, 2)[labels >= 0] + 0.3).requires_grad_()
    places = (labels >= 0).nonzero().flatten()
    model = make(GIVEN)

    def scores(weight, soft):
        return model(of_weight(weight), soft.new_zeros(14, 2).index_copy(0, places, soft))

    assert gradcheck(scores, (weight, soft), atol=1e-6, fast_mode=True)
    assert gradgradcheck(scores, (weight, soft), atol=1e-4, rtol=1e-3, fast_mode=True)
    kernel = tl.HeatKernel(1.0, learnable=True).double()
    of_points = make(tl.KNN(4), kernel)

    def both(x, new, factor):
        kernel.log_factor.data.copy_(factor.detach())
        return torch.cat(of_points.out_of_sample(x, labels, new))

    x, new = X[:14].clone().requires_grad_(), NEW[:3].clone().requires_grad_()
    assert gradcheck(lambda x, new: both(x, new, torch.zeros(())), (x, new), atol=1e-6, fast_mode=True)
    slope = torch.autograd.grad(both(x, new, torch.zeros(())).square().sum(), kernel.log_factor)[0]
    up, down = (both(x, new, torch.tensor(step)).square().sum() for step in (1e-5, -1e-5))
    torch.testing.assert_close(slope, ((up - down) / 2e-5).detach(), atol=1e-6, rtol=1e-5)


def dense_solve(name, affinity, targets, known, alpha=0.9):
    """Return the numbers that the dense system of a method has, ``(N, m)``."""
    targets = torch.where(known[:, None], targets, 0)
    degrees = affinity.sum(1)
    if name == "LabelSpreading":
        root = degrees.sqrt()
        matrix = torch.eye(len(root)) - alpha * affinity / root / root[:, None]
        return torch.linalg.solve(matrix, (1 - alpha) * targets)
    free = (~known).nonzero()[:, 0]
    solved = torch.linalg.solve((torch.diag(degrees) - affinity)[free][:, free], affinity[free] @ targets)
    return targets.index_copy(0, free, solved)


@pytest.mark.parametrize("name", SOLVED)
def test_numbers_are_carried_by_the_same_systems(name):
    """Of any sign, zeros too; the shape is that of the targets; new points, states and batches are those of labels."""
    y, known = points(60, 2, seed=3), torch.arange(60) % 4 == 0
    y[0], y[~known] = 0, torch.nan
    affinity = tl.HeatKernel()(X, tl.KNN(6)(X)).to_dense()
    expected, model = dense_solve(name, affinity, y, known), SOLVED[name](tl.KNN(6))
    for given in ({"targets": y}, {"targets": y.nan_to_num(7.0), "known": known}):
        torch.testing.assert_close(model(X, **given), expected)
        torch.testing.assert_close(model(X, targets=given["targets"][:, 0], known=given.get("known")), expected[:, 0])
    single = model(X.float(), targets=y.float())
    torch.testing.assert_close(single, expected.float(), atol=1e-4, rtol=1e-3)
    assert model(X.bfloat16(), targets=y.bfloat16()).dtype == torch.bfloat16
    for targets in (y, y[:, 0]):
        assert model.fit(X, targets=targets).scores_.shape == targets.reshape(60, -1).shape
        rows, new = model.out_of_sample(X, None, NEW, targets=targets)
        torch.testing.assert_close(rows, expected[:, 0] if targets.ndim == 1 else expected)
        torch.testing.assert_close([model.transform(NEW), model.predict(NEW)], [new, new])
        torch.testing.assert_close([model.transform(X), model.predict()], [rows, rows])
        again = SOLVED[name](tl.KNN(6))
        again.load_state_dict(model.state_dict())
        torch.testing.assert_close(again.predict(NEW), new)
        assert new.shape == (9, *targets.shape[1:])
        again.load_state_dict(SOLVED[name](tl.KNN(6)).fit(X, LABELS).state_dict())  # which has no axes of targets
        assert torch.equal(again.predict(NEW), again.transform(NEW).argmax(1))
    mask = torch.arange(60) < torch.tensor([[60], [44]])
    sets = torch.stack([X, X]).masked_fill(~mask[..., None], torch.nan)
    in_batch = model(sets, mask=mask, targets=torch.stack([y, y]), known=known.expand(2, -1))
    alone = model(X[:44], targets=y[:44])
    torch.testing.assert_close(in_batch, torch.stack([expected, torch.cat([alone, torch.zeros(16, 2)])]))
    rows, new = model.out_of_sample(sets, None, NEW.expand(2, -1, -1), mask=mask, targets=torch.stack([y, y])[..., 0])
    torch.testing.assert_close(rows, in_batch[..., 0])
    torch.testing.assert_close(new[1], model.fit(X[:44], targets=y[:44, 0]).transform(NEW))


@pytest.mark.parametrize("name", SOLVED)
def test_gradients_to_numbers_weights_and_bandwidth(name):
    affinity, of_weight = edge_parameters(tl.HeatKernel()(X[:14], tl.KNN(4)(X[:14])).to_dense())
    known, y, model = torch.arange(14) % 3 == 0, points(14, 2, seed=5).requires_grad_(), SOLVED[name](GIVEN)
    loss = points(14, 2, seed=6)

    def carried(weight, y):
        return model(of_weight(weight), targets=y, known=known)

    assert gradgradcheck(carried, (affinity, y), atol=1e-4, rtol=1e-3, fast_mode=True)
    dense = of_weight(affinity) if isinstance(of_weight(affinity), torch.Tensor) else of_weight(affinity).to_dense()
    exact = torch.autograd.grad((dense_solve(name, dense, y, known) * loss).sum(), (affinity, y))
    torch.testing.assert_close(torch.autograd.grad((carried(affinity, y) * loss).sum(), (affinity, y)), exact)
    assert not exact[1][~known].any()
    kernel = tl.HeatKernel(1.0, learnable=True).double()
    of_points, x = SOLVED[name](tl.KNN(4), kernel), X[:14].clone().requires_grad_()
    found = of_points(x, targets=y, known=known)
    affinity = kernel(x, tl.KNN(4)(x)).to_dense()
    given = (x, kernel.log_factor)
    exact = torch.autograd.grad((dense_solve(name, affinity, y, known) * loss).sum(), given)
    torch.testing.assert_close(torch.autograd.grad((found * loss).sum(), given), exact)


def test_numbers_that_cancel_and_numbers_of_the_nearest_point():
    path, ends = torch.arange(41.0, dtype=torch.float64)[:, None], torch.full((41,), torch.nan, dtype=torch.float64)
    ends[0], ends[-1] = -1, 1
    for make in SOLVED.values():
        found = make(tl.Radius(1.0), tl.SimpleWeights())(path, targets=ends)
        torch.testing.assert_close(found, -found.flip(0), atol=1e-13, rtol=0)
        assert (found.diff() > 0).all()
        small = make(tl.Radius(1.0), tl.SimpleWeights())(path.float(), targets=1e-35 * ends.float())
        torch.testing.assert_close(1e35 * small, found.float(), atol=1e-5, rtol=1e-3)
        assert not make(tl.Radius(1.0), tl.SimpleWeights())(path, targets=0 * ends).any()
        model = make(tl.Radius(1.0), tl.SimpleWeights(), unreached="nearest")
        rows = model.fit(torch.cat([path, path + 90]), targets=torch.cat([ends, ends * torch.nan])).predict()
        torch.testing.assert_close(rows[:41], found)
        assert (rows[41:] == 1).all()
        assert (model.predict(torch.tensor([[95.5]]).double()) - 1).abs() < 0.2  # the share α of 1 by spreading


@every_method
def test_a_component_without_labels_has_zeros_and_minus_one_and_others_have_shares(make):
    x = torch.cat([X, X + 100.0])
    labels = torch.cat([LABELS, torch.full((60,), -1)])
    with pytest.warns(tl.GraphWarning, match="60 of 120 nodes lie in components of the graph without any label"):
        model = make(tl.KNN(6)).fit(x, labels)
    assert not model.scores_[60:].any()
    assert (model.predict()[60:] == -1).all()
    if make is not METHODS["EigenmapsRegression"]:  # whose columns the components share
        assert torch.equal(model.predict()[:60], make(tl.KNN(6)).fit(X, LABELS).predict())
    assert (model.predict(NEW + 100.0) == -1).all()
    assert (model.predict(NEW) >= 0).all()
    scores, shares = model.scores_.clamp_min(0), model.predict_proba()
    torch.testing.assert_close(shares * scores.sum(1, keepdim=True), scores)
    torch.testing.assert_close(shares.sum(1), (torch.arange(120) < 60).double())
    torch.testing.assert_close(model.predict_proba(x[:5]), shares[:5])


@every_method
def test_points_that_no_label_reaches_have_the_nearest_label_if_asked_for(make):
    """The reached points are as without the option; new points of other components have it, too, and fits are kept."""
    x = torch.cat([X, X + 50, X + 90])
    labels = torch.cat([some_labels(60), torch.full((120,), -1)])
    labels[179] = 1
    with pytest.warns(tl.GraphWarning):
        plain = make(tl.KNN(5))(x, labels)
    model = make(tl.KNN(5), unreached="nearest").fit(x, labels)
    known = (labels >= 0).nonzero()[:, 0]
    nearest = labels[known[torch.cdist(x, x[known]).argmin(1)]]
    expected = torch.where((plain == 0).all(1)[:, None], one_hot(nearest), plain)
    assert not plain.any(1).all()
    torch.testing.assert_close(model.scores_, expected)
    torch.testing.assert_close(model(x, labels), expected)
    torch.testing.assert_close(model.transform(x), expected)
    assert model.predict(x[60:120] + 1e-3).tolist() == nearest[60:120].tolist()
    again = make(tl.KNN(5), unreached="nearest")
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.transform(x), expected)
    # In a batch with padding; an item without any label has no answer.
    sets, mask = torch.stack([x, x, x]), torch.ones(3, 180, dtype=torch.bool)
    sets[1, 100:], mask[1, 100:] = torch.nan, False
    none = torch.full((180,), -1)
    with pytest.warns(tl.GraphWarning, match="180 of 460 nodes"):
        in_batch = make(tl.KNN(5), unreached="nearest")(sets, torch.stack([labels, labels, none]), mask=mask)
    torch.testing.assert_close(in_batch[0], expected)
    assert in_batch[1, 60:100].any(1).all()
    assert not in_batch[1, 100:].any()
    assert not in_batch[2].any()


@pytest.mark.parametrize("name", ["LabelSpreading", "HarmonicFunction"])
def test_isolated_nodes_keep_their_label(name):
    affinity = torch.zeros(5, 5, dtype=torch.float64)
    affinity[0, 1] = affinity[1, 0] = 1
    labels = torch.tensor([1, -1, 0, -1, -1])
    with pytest.warns(tl.GraphWarning, match="2 of 5 nodes"):
        model = METHODS[name](GIVEN).fit(affinity, labels)
    assert model.predict().tolist() == [1, 1, 0, -1, -1]
    assert model.scores_.isfinite().all()


@pytest.mark.filterwarnings("ignore::torch_lapeig.GraphWarning")
@every_method
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_gradients_beside_isolated_nodes_and_padding_are_finite(make, sparse):
    affinity = torch.zeros(2, 8, 8, dtype=torch.float64)
    affinity[0, :6, :6], affinity[1, :5, :5] = random_affinity(6), random_affinity(5, seed=1)
    mask = torch.arange(8) < torch.tensor([[8], [5]])
    labels = torch.tensor([[0, 1, -1, -1, -1, -1, 1, -1], [2, -1, -1, 0, -1, 5, 5, 5]])
    leaf = affinity.requires_grad_()
    scores = make(GIVEN, n_classes=3)(stored(leaf, sparse, mask), labels)
    scores.square().sum().backward()
    assert scores.isfinite().all()
    assert leaf.grad.isfinite().all()
    assert leaf.grad[:, :5, :5].abs().max() > 0


def test_training_points_keep_their_scores_at_an_eigenvalue_of_1():
    """The leaves of a star have λ = 1, by which Nyström's formula divides a new point's row of 1 − λ."""
    x = torch.cat([torch.zeros(1, 2), polygon(5)])
    labels = torch.tensor([0, 1, 0, -1, -1, 1])
    model = tl.EigenmapsRegression(3, tl.Radius(1.1), tl.SimpleWeights()).fit(x, labels)
    torch.testing.assert_close(model.transform(x), model.scores_)


def test_scores_of_far_nodes_are_right_to_some_digits():
    """Along a path each is a share r of the one before, r² − 2 r/α + 1 = 0: down to 1e-160, and the nearest decides."""
    x, labels, alpha = torch.arange(1601.0, dtype=torch.float64)[:, None], torch.full((1601,), -1), 0.9
    labels[0], labels[-1] = 0, 1
    model = tl.LabelSpreading(tl.Radius(1.0), tl.SimpleWeights(), alpha=alpha)
    scores = model(x, labels)[1:-1, 0]
    share = torch.full((789,), (1 - (1 - alpha**2) ** 0.5) / alpha).double()
    torch.testing.assert_close(scores[1:790] / scores[:789], share, rtol=1e-3, atol=0)
    predicted = model.fit(x, labels).predict()
    assert not predicted[:800].any()
    assert predicted[801:].all()


def test_gradients_of_far_scores():
    """Compare scores of 1e-30 with an elimination without differences, to a relative accuracy."""
    weight = torch.linspace(1, 2, 29, dtype=torch.float64).requires_grad_()
    affinity = torch.diag(weight, 1) + torch.diag(weight, -1)
    labels = torch.full((30,), -1)
    labels[0] = 0
    scores = tl.LabelSpreading(tl.Precomputed("affinity"), alpha=0.2)(affinity, labels)[:, 0]
    expected = dense_solve("LabelSpreading", affinity, torch.eye(30).double()[:, :1], labels >= 0, alpha=0.2)[:, 0]
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=0)
    assert max(scores[-1], expected[-1]) < 1e-28
    gradient, exact = (torch.autograd.grad(f[-1] * 1e28, weight, retain_graph=True)[0] for f in (scores, expected))
    torch.testing.assert_close(gradient, exact, rtol=1e-5, atol=1e-8 * float(exact.abs().max()))


def met_first(affinity, labels):
    """Return the harmonic functions of a dense graph by an elimination in which no number is subtracted."""
    rest, known = (labels < 0).nonzero()[:, 0], (labels >= 0).nonzero()[:, 0]
    order, m = torch.cat([rest, known]), len(rest)
    w = affinity[order][:, order]
    shares = []
    for _ in range(m):
        row = w[0, 1:]
        shares.append(row / row.sum() if row.sum() > 0 else row)
        w = w[1:, 1:] + row[:, None] * shares[-1] * ~torch.eye(len(row), dtype=torch.bool)
    rows = list(torch.nn.functional.one_hot(labels[known]).double())
    for share in reversed(shares):
        rows.insert(0, share @ torch.stack(rows))
    return torch.empty(len(labels), len(rows[0]), dtype=torch.float64).index_put((order,), torch.stack(rows))


def clusters(weak, n=20):
    """Return four random graphs as one, which edges of about ``weak`` join, and a label at both ends."""
    noise = torch.rand(4 * n, 4 * n, generator=torch.Generator().manual_seed(3)).double()
    affinity = noise * (noise < 0.3) * torch.eye(4).double().repeat_interleave(n, 0).repeat_interleave(n, 1)
    for place, (i, j, size) in enumerate([(0, 1, 1.0), (1, 2, 2.0), (2, 3, 1.0), (0, 2, 0.7), (0, 3, 0.5)]):
        affinity[i * n + place, j * n + place] = weak * size
    labels = torch.full((4 * n,), -1)
    labels[n - 1], labels[-1] = 0, 1
    return affinity.triu(1) + affinity.triu(1).mT, labels


def chain(order, n=18, shortcut=0.0):
    """Return a path whose weights fall by a factor towards both labelled ends, down to 1e-290."""
    power = -torch.arange(min(n, 290 // order)).double() * order
    weight = 10 ** torch.cat([power.flip(0), power])
    affinity = torch.diag(weight, 1) + torch.diag(weight, -1)
    affinity[0, len(power)] = affinity[len(power), 0] = shortcut
    labels = torch.full((len(affinity),), -1)
    labels[0], labels[-1] = 0, 1
    return affinity, labels


def heavy_tails(degrees_of_freedom, n=150, seed=0):
    """Return the affinities of points that follow a t distribution, and three classes of labels."""
    x = torch.tensor(np.random.default_rng(seed).standard_t(degrees_of_freedom, (n, 2)))
    affinity = tl.HeatKernel()(x, tl.KNN(5)(x)).to_dense()
    return affinity * (affinity > 1e-290), some_labels(n, count=9)  # smaller products of the reference have few digits


WILD = {f"clusters {weak}": partial(clusters, weak) for weak in (1e-12, 1e-20, 1e-100, 1e-300)}
WILD |= {f"chain {order}": partial(chain, order) for order in (1, 3, 9, 16)}
WILD |= {f"shortcut {order}": partial(chain, order, shortcut=1e-200) for order in (3, 9)}
WILD |= {f"t {df}": partial(heavy_tails, df) for df in (0.3, 0.5, 1, 2)}


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("problem", WILD.values(), ids=WILD.keys())
@pytest.mark.filterwarnings("ignore:.*without any label:torch_lapeig.GraphWarning")
def test_harmonic_functions_of_wild_weights_equal_an_elimination(problem, sparse):
    affinity, labels = problem()
    graph = stored(affinity, sparse)
    found = tl.HarmonicFunction(GIVEN, class_prior=None)(graph, labels)
    torch.testing.assert_close(found, met_first(affinity, labels), atol=2e-8, rtol=0)
    both = torch.stack([affinity, affinity.flip(0, 1)]), torch.stack([labels, labels.flip(0)])
    in_batch = tl.HarmonicFunction(GIVEN, class_prior=None)(*both)
    torch.testing.assert_close(in_batch, torch.stack([found, found.flip(0)]), atol=2e-8, rtol=0)


@pytest.mark.parametrize("problem", [partial(clusters, 1e-20, 6), partial(chain, 3, 5), partial(heavy_tails, 1, 40, 1)])
@pytest.mark.filterwarnings("ignore:.*without any label:torch_lapeig.GraphWarning")
def test_gradients_of_harmonic_functions_of_wild_weights(problem):
    """Differentiate by the logarithms of the weights, as the gradients of weights are as large as these are small."""
    affinity, labels = problem()
    row, col = affinity.triu().nonzero(as_tuple=True)
    logarithm = affinity[row, col].log().requires_grad_()
    dense = torch.zeros_like(affinity).index_put((row, col), logarithm.exp())
    loss = points(len(labels), int(labels.max()) + 1, seed=2)
    harmonic = tl.HarmonicFunction(GIVEN, class_prior=None)
    found, exact = (
        torch.autograd.grad((scores * loss).sum(), logarithm, retain_graph=True)[0]
        for scores in (harmonic(tl.Graph.from_dense(dense + dense.mT), labels), met_first(dense + dense.mT, labels))
    )
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS.keys())
@pytest.mark.parametrize("make", list(METHODS.values())[:2], ids=list(METHODS)[:2])
def test_a_class_prior_is_the_share_of_each_class_in_the_scores(make, prior):
    """Each column is multiplied by one number: what a fit keeps for new points, too."""
    x, labels = torch.cat([X, X[:5] + 100]), torch.cat([LABELS, torch.full((5,), -1)])
    shares = {"uniform": torch.ones(3) / 3, "labels": (torch.bincount(LABELS[LABELS >= 0]) + 1) / 10}
    share = shares.get(prior, torch.tensor(PRIORS["given"])).double()
    with pytest.warns(tl.GraphWarning, match="without any label"):
        plain, model = (make(tl.KNN(4), class_prior=p).fit(x, labels) for p in (None, prior))
    torch.testing.assert_close(model.scores_.sum(0), 60 * share, atol=1e-6, rtol=1e-6)
    factor = model.scores_.sum(0) / plain.scores_.sum(0)
    torch.testing.assert_close(model.scores_, plain.scores_ * factor)
    torch.testing.assert_close(model.transform(NEW), plain.transform(NEW) * factor)
    torch.testing.assert_close(model.transform(x), model.scores_, atol=1e-7, rtol=0)
    assert (model.predict()[60:] == -1).all()
    assert torch.equal(model.predict()[:60][LABELS >= 0], LABELS[LABELS >= 0])
    with pytest.raises(RuntimeError, match="class_prior is"), warnings.catch_warnings():
        make(tl.KNN(4)).load_state_dict(model.state_dict())


def test_a_class_prior_takes_nodes_back_from_a_class_whose_label_lies_well():
    """Two equal clusters that touch, the label of one in its middle, that of the other at its far end."""
    x = torch.cat([torch.linspace(0, 1, 30), torch.linspace(1.06, 2.06, 30)]).double()[:, None]
    labels, truth = torch.full((60,), -1), torch.arange(60) // 30
    labels[20], labels[59] = 0, 1
    plain, balanced = (tl.HarmonicFunction(tl.KNN(4), class_prior=p).fit(x, labels) for p in (None, "labels"))
    assert (balanced.predict() == truth).sum() > (plain.predict() == truth).sum() + 5
    torch.testing.assert_close(tl.HarmonicFunction(tl.KNN(4)).fit(x, labels).scores_, balanced.scores_)


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
@pytest.mark.parametrize("method", [tl.HarmonicFunction, tl.LabelSpreading])
def test_new_points_that_no_known_number_reaches_have_the_nearest_one(method, metric):
    x = torch.tensor([[0.0], [0.1], [0.2], [10.0], [10.1], [10.2]], dtype=torch.float64)
    known = torch.tensor([5.0, torch.nan, 0, torch.nan, torch.nan, torch.nan], dtype=torch.float64)
    model = method(tl.Radius(0.3, metric), unreached="nearest").fit(x, targets=known)
    assert model.predict()[3:].tolist() == [0, 0, 0]  # a known 0 is a number as others
    with pytest.warns(tl.GraphWarning):
        new = model.predict(torch.cat([x, torch.tensor([[10.05], [50.0], [-9.0]], dtype=torch.float64)]))
    assert new[3:].tolist() == [0, 0, 0, 0, 0, 5]
    torch.testing.assert_close(new[:3], model.predict()[:3])
