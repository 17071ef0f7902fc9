"""Transformers hand on data frames, of pandas and of polars."""

import numpy as np
import pytest

from skdp import DPPCA, DPIncrementalPCA, DPTruncatedSVD
from skdp.decomposition import LocalRowRandomizer
from skdp.preprocessing import DPStandardScaler, PublicScaler, RowClipper

NAMES = ["a", "b", "c"]
X = np.random.default_rng(0).normal(0, 0.3, (200, 3))
TRANSFORMERS = [
    DPPCA(2, clip_norm=1.0), DPIncrementalPCA(2, clip_norm=1.0), DPTruncatedSVD(2, clip_norm=1.0),
    DPStandardScaler(bounds=(-1.0, 1.0)), PublicScaler(bounds=(-1, 1)), RowClipper(),
    LocalRowRandomizer(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::skdp.exceptions.UtilityWarning")
@pytest.mark.thorough
@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("transformer", TRANSFORMERS, ids=lambda each: type(each).__name__)
def test_frames_come_in_and_go_out(transformer, library):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame(dict(zip(NAMES, X.T, strict=True)))
    transformer.set_output(transform=library)
    found = transformer.fit(frame).transform(frame)
    assert isinstance(found, frames.DataFrame)
    assert list(transformer.feature_names_in_) == NAMES
    assert list(found.columns) == list(transformer.get_feature_names_out())
    plain = transformer.set_output(transform="default").transform(frame)
    assert found.shape == plain.shape == (200, len(found.columns))
    if not isinstance(transformer, LocalRowRandomizer):  # which draws new noise
        assert np.array_equal(found.to_numpy(), plain)
