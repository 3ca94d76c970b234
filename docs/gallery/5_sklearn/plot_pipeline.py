"""
In a Pipeline, under GridSearchCV
=================================

With ``transform``, the embedding can be a step of a pipeline, which scikit-learn's own
``SpectralEmbedding`` cannot. Its parameters, and those of a weighting, are searched
with the rest.
"""

# %%
# Digits: scale, embed, classify
# ------------------------------
# The pipeline is fitted on the training folds only; held-out digits are placed by
# Nyström's formula.

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from torch_lapeig import DensityCorrected, HeatKernel
from torch_lapeig.plots import plot_embedding
from torch_lapeig.sklearn import SpectralEmbedding

x, y = load_digits(return_X_y=True)
train, test, y_train, y_test = train_test_split(
    x, y, test_size=0.3, random_state=0, stratify=y
)
pipeline = make_pipeline(
    MinMaxScaler(), SpectralEmbedding(n_neighbors=11), KNeighborsClassifier(5)
)
grid = {
    "spectralembedding__n_components": [2, 5, 10],
    "spectralembedding__weights": [None, HeatKernel(), DensityCorrected()],
}
search = GridSearchCV(pipeline, grid, cv=2).fit(train, y_train)
for name, value in search.best_params_.items():
    print(f"best {name}: {value}")
print(
    f"cross-validated accuracy {search.best_score_:.3f}, of held-out digits "
    f"{search.score(test, y_test):.3f}"
)

# %%
# The picture
# -----------
# Left: all settings. Right: held-out digits in the first two columns of the best
# pipeline.

results = search.cv_results_
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for weights in grid["spectralembedding__weights"]:
    chosen = [
        i
        for i, params in enumerate(results["params"])
        if params["spectralembedding__weights"] is weights
    ]
    dimensions = [
        results["params"][i]["spectralembedding__n_components"] for i in chosen
    ]
    scores = results["mean_test_score"][chosen]
    name = type(weights).__name__ if weights is not None else "scikit-learn's weights"
    left.plot(dimensions, scores, "o-", label=name)
    print(f"{name:24s}", dict(zip(dimensions, scores.round(3).tolist(), strict=True)))
left.set(xlabel="columns", ylabel="cross-validated accuracy")
left.legend()
columns = search.best_estimator_[:-1].transform(test)
plot_embedding(columns, y_test, axes=right, name="digit").set_title("held-out digits")
plt.show()
