"""Hears what a recogniser repairs: clicks, holes and steps in speech, blind or at known joints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_plugin.audio import Pcm, to_float32

_NEAR_S = 0.025  # a click towers over everything this near
_CLICK_RATIO = 4.0
_FLOOR = 10 ** (-50 / 20)


@dataclass(frozen=True, slots=True)
class Alarm:
    kind: str
    at_s: float


def alarms(pcm: Pcm, rate: int) -> list[Alarm]:
    """Blind: lone spikes of the curvature, and zeros entered and left at full swing.

    For 16 kHz and more: at 8 kHz the burst of a "t" is as lone and as sharp as a click.
    """
    wave = to_float32(pcm) / max(1e-9, np.abs(to_float32(pcm)).max())
    return _clicks(wave, rate) + _holes(wave, rate)


def joint_excess(pcm: Pcm, joints: list[int], rate: int) -> float:
    """How much rougher the samples are at the joints than at random places of the same recording:
    the share of audible joints whose curvature is above the recording's own 95th percentile, less 0.05."""
    rough = _curvature(to_float32(pcm))
    half = round(0.001 * rate)
    peaks = np.array([rough[max(0, at - half) : at + half + 1].max() for at in joints])
    places = range(half, len(rough) - half, max(1, len(rough) // 4000))
    usual = np.array([rough[at - half : at + half + 1].max() for at in places])
    return float(np.mean(peaks > np.percentile(usual, 95))) - 0.05


def _curvature(wave: NDArray[np.float32]) -> NDArray[np.float64]:
    """Absolute third difference: large where the wave is not smooth, small within any speech sound."""
    return np.abs(np.concatenate(([0.0, 0.0], np.diff(wave.astype(np.float64), n=3), [0.0])))


def _clicks(wave: NDArray[np.float32], rate: int) -> list[Alarm]:
    rough = _curvature(wave)
    near, gap = round(_NEAR_S * rate), round(0.001 * rate)
    found: list[Alarm] = []
    for at in np.flatnonzero(rough > 10 * _FLOOR):
        around = np.concatenate((rough[max(0, at - near) : max(0, at - gap)], rough[at + gap : at + near]))
        lone = around.size > 0 and rough[at] > _CLICK_RATIO * (around.max() + _FLOOR)
        if lone and (not found or at / rate - found[-1].at_s > 0.003):
            found.append(Alarm("click", at / rate))
    return found


def _holes(wave: NDArray[np.float32], rate: int) -> list[Alarm]:
    silent = np.abs(wave) < 10 ** (-66 / 20)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], silent, [False])).astype(int)))
    found = []
    side = round(0.004 * rate)
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        inside = side < start and stop < len(wave) - side
        if inside and 0.003 <= (stop - start) / rate <= 0.3:
            before, after = _rms(wave[start - side : start]), _rms(wave[stop : stop + side])
            if min(before, after) > 0.02:
                found.append(Alarm("hole", start / rate))
    return found


def _rms(part: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(part, dtype=np.float64))))
