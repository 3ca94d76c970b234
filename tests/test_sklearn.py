import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch_lapeig.sklearn import SpectralClustering, SpectralEmbedding


@pytest.mark.filterwarnings("ignore:the neighbourhood graph has")
@parametrize_with_checks(
    [
        SpectralEmbedding(),
        SpectralClustering(),
        SpectralEmbedding(gamma=0, components="separate"),
        SpectralClustering(variant="shi_malik", gamma=1.0),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)
