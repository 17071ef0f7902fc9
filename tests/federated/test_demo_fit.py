"""The demonstration of a decentralised fit over processes: small, and checked end to end."""

import multiprocessing

import numpy as np
import pytest

from skdp.federated import _demo_fit, demo


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that has threads
@pytest.mark.system_entropy
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.deep)])
def test_demo_fit_of_separate_processes(start, monkeypatch):
    """The command line, three client processes: the model is as good as the central fit's."""
    if start not in multiprocessing.get_all_start_methods():
        pytest.skip("processes are started in another way")
    context = multiprocessing.get_context(start)  # a forked one need not import everything again
    monkeypatch.setattr(_demo_fit.multiprocessing, "get_context", lambda method: context)
    lines, kept = [], {}
    run = _demo_fit.run_fit

    def remember(*sizes):
        kept.update(run(*sizes, say=lines.append))

    monkeypatch.setattr(_demo_fit, "run_fit", remember)
    demo.main(["--fit", "--clients", "3", "--rows", "600", "--features", "8", "--dropouts", "0"])
    text = "".join(lines)
    captured = kept["captured"]
    assert captured["these processes"] > 0.9 * captured["central fit"]
    assert captured["these processes"] <= captured["no privacy"]
    assert [(client, epsilon) for client, epsilon, _ in kept["receipts"]] == [
        (0, 1.0), (1, 1.0), (2, 1.0),
    ]  # fmt: skip
    assert all(rounds == len(kept["seconds"]) for _, _, rounds in kept["receipts"])
    assert text.count("3 clients in the sum") == len(kept["seconds"]) > 5
    assert "masked" in text and "chi-square" in text


def test_demo_fit_is_bounded(monkeypatch):
    with pytest.raises(ValueError, match="at most 20"):
        _demo_fit.run_fit(21)
    monkeypatch.setattr(_demo_fit, "_ALL_SECONDS", -1.0)
    late = _demo_fit._TimedRounds(lambda request, size: None, lambda text: None)
    with pytest.raises(TimeoutError, match="more than"):
        late(b"", 1)


def test_rows_of_the_demo_are_the_same_everywhere():
    rows = _demo_fit.rows_of(2, 50, 8)
    assert np.array_equal(rows, _demo_fit.rows_of(2, 50, 8))
    assert not np.array_equal(rows, _demo_fit.rows_of(1, 50, 8))
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0)
