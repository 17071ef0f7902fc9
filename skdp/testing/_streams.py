"""Streams in a transcript: one ledger line pays for many openings."""

import math
from dataclasses import replace

import numpy as np


def record_sums(recorder):
    """Record each noisy sum of a stream; in a replay, hand out that of the first data set."""

    def make(original):
        def noised(stream, exact, node):
            grant = stream._grant
            opening = recorder._opening(grant)
            del recorder._pending[grant]
            opening.exact, index = np.array(exact), len(recorder.transcript)
            total = original(stream, exact, node)
            if recorder.script is not None:
                if index >= len(recorder.script) or recorder.script[index].bound != opening.bound:
                    raise AssertionError("the sequence of releases depends on private data")
                total = recorder.script[index].total.copy()
            opening.total, opening.value = total, grant.decoded(total).value
            opening.stream = grant
            recorder.transcript.openings.append(opening)
            return total

        return noised

    return make


def merge_streams(steps, transcript):
    """Put the audited openings of a stream together: their changes are one vector."""
    lines = {}
    for i, (step, opening) in enumerate(zip(steps, transcript, strict=False)):
        key = i if opening.stream is None else opening.stream
        before = lines[key].realised if key in lines else 0.0
        lines[key] = replace(step, realised=math.hypot(before, step.realised))
    return tuple(lines.values())


def record_flips(recorder):
    """Record an array that was flipped: its noise is not added, so there is no total."""

    def make(original):
        def hooked(grant, total):
            answer = original(grant, total)
            return answer._replace(value=recorder._close(grant, None, answer.value))

        return hooked

    return make
