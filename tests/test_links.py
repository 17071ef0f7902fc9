"""Notebooks: the name of each estimator leads to a page of ours, and reports are tables."""

import inspect
import typing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skdp
from skdp import DPPCA, DPRidgeClassifier, PrivacyLedger, check_pipeline
from skdp.base import DocLinkMixin
from skdp.model_selection import DPGridSearchCV, IndependentKFold, search_cost
from tools.ways import FACADES, exported

API = (Path(__file__).parents[1] / "docs" / "api" / "index.rst").read_text()


PUBLIC = [*exported([*FACADES, "papers"]).values()]


def test_they_are_found():
    assert {"DPPCA", "RowClipper", "PublicScaler", "DPRecommender"} <= {c.__name__ for c in PUBLIC}


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_the_link_leads_to_a_page(cls):
    """The page of a class is made by its line in the index of the interface."""
    assert issubclass(cls, DocLinkMixin)
    page = cls._get_doc_link(cls.__new__(cls)).rpartition("/")[2].removesuffix(".html")
    assert f"   {page}\n" in API


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_what_users_write_is_hinted(cls):
    """Else a type checker takes the default of a parameter for its type."""
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]
    assert [each.name for each in own if each.annotation is each.empty] == []
    assert inspect.signature(cls.fit).return_annotation in ("Self", typing.Self)


def test_unreleased_code_is_documented_by_the_source_tree():
    assert "dev" in skdp.__version__
    assert "/en/latest/api/skdp.decomposition.DPPCA.html" in DPPCA()._repr_html_()


@cache
def reports():
    pipeline = make_pipeline(StandardScaler(), DPPCA(2, clip_norm=1.0))
    with PrivacyLedger(1.0, 1e-6) as ledger:
        fitted = DPPCA(1, clip_norm=1.0).fit(np.tile(np.eye(4)[:2], (2000, 1)))
    return {
        "plan": fitted.plan(100, 4),
        "check": check_pipeline(pipeline),
        "card": fitted.privacy_report(),
        "ledger": ledger,
        "search": DPGridSearchCV(DPRidgeClassifier(), {"alpha": [1, 2]}).plan(),
        "cost": search_cost(GridSearchCV(DPPCA(), {}, cv=IndependentKFold(2)), n_samples=100),
    }


@pytest.mark.parametrize("name", ["plan", "check", "card", "ledger", "search", "cost"])
def test_reports_are_tables_in_notebooks_and_text_elsewhere(name):
    report = reports()[name]
    if name != "ledger":
        assert repr(report) == str(report)
    html = report._repr_html_()
    assert html.count("<table") == html.count("</table>") >= 1
    assert html.count("<tr>") == html.count("</tr>") > 1


def test_html_is_escaped():
    with pytest.raises(ValueError, match="'epsilon' parameter"):
        DPPCA(epsilon="<b>noise</b>").plan(10, 2)
    pipeline = make_pipeline(StandardScaler(), DPPCA(2, clip_norm=1.0))
    pipeline.steps[0] = ("<script>", pipeline.steps[0][1])
    html = check_pipeline(pipeline)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
