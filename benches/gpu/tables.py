"""The tables of benches/GPU.md, from what was measured and what was simulated.

    python3 benches/gpu/tables.py --real RESULTS.json [MORE.json ...] --simulated SIM.json [MORE.json ...] [--levels 12,36]

Repeats of a mode at a level, in whichever file, count together; where files have the same seed, the first of them counts. Modes are
compared over the seeds that both have.
"""

import argparse
import itertools
import json
import math
import statistics

FIGURES = [
    ("ttft_p50_ms", "TTFT p50 ms", 0), ("ttft_p95_ms", "TTFT p95 ms", 0), ("turn_1", "turn 1 p50", 0),
    ("turn_1_p95", "turn 1 p95", 0), ("ttft_again_p50_ms", "turn 2+ p50", 0), ("ttft_again_p95_ms", "turn 2+ p95", 0),
    ("itl_p50_ms", "ITL p50 ms", 1), ("itl_p95_ms", "ITL p95", 1), ("e2e_p50_s", "E2E p50 s", 1), ("e2e_p95_s", "E2E p95", 1),
    ("tops", "tokens/s", 0), ("hit_pct", "cached %", 1), ("expected_off_pct", "expected off %", 2),
    ("inflight_spread_p95", "spread p95", 1), ("router_cpu_ms", "router CPU ms", 1), ("requests", "requests", 0),
]  # fmt: skip
COMPARED = [
    ("ttft_p50_ms", "TTFT p50"), ("ttft_p95_ms", "TTFT p95"), ("ttft_again_p50_ms", "turn 2+ p50"), ("itl_p50_ms", "ITL p50"),
    ("itl_p95_ms", "ITL p95"), ("tops", "tokens/s"), ("hit_pct", "cached"),
]  # fmt: skip
NONE = "–"
# Of Student's t, both sides together 5 %, by degrees of freedom.
T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}


def cells(paths):
    for path in paths:
        with open(path) as file:
            for a_set in json.load(file)["sets"]:
                yield from (cell for cell in a_set["cells"] if cell.get("figures") and not cell.get("invalid"))


def figures(cell):
    """With the quantiles of the first turn."""
    first = next((turn for turn in cell["by_turn"] if turn["turn"] == 1), {})
    return {**cell["figures"], "turn_1": first.get("ttft_p50_ms"), "turn_1_p95": first.get("ttft_p95_ms")}


def grouped(paths):
    by = {}
    for cell in cells(paths):
        by.setdefault((cell["mode"], cell["level"]), {}).setdefault(cell["repeat"], figures(cell))
    return by


def values(by, mode, level, key):
    return [one[key] for one in by.get((mode, level), {}).values() if one.get(key) is not None]


def mean(by, mode, level, key):
    """None where nothing was measured."""
    numbers = values(by, mode, level, key)
    return statistics.fmean(numbers) if numbers else None


def common(by, level, modes):
    """Seeds that all of them have."""
    return set.intersection(*(set(by.get((mode, level), {})) for mode in modes))


def interval(numbers):
    """Mean and half of the 95 % interval; none for a single one, neither where there is nothing."""
    if not numbers:
        return None, None
    if len(numbers) < 2:
        return numbers[0], None
    half = T[min(len(numbers) - 1, max(T))] * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return statistics.fmean(numbers), half


def row(parts):
    print("| " + " | ".join(parts) + " |")


def head(parts):
    row(parts)
    row(["---"] + ["---:"] * (len(parts) - 1))


def shown(numbers, digits):
    """Three and more with their interval, fewer as what they are."""
    if not numbers:
        return NONE
    if len(numbers) < 3:
        return " and ".join(f"{number:.{digits}f}" for number in numbers)
    middle, half = interval(numbers)
    return f"{middle:.{digits}f} ± {half:.{digits}f}"


def measured(by, modes, levels):
    for level in levels:
        print(f"\n**{level} conversations at a time**\n")
        head(["", *modes])
        row(["seeds", *(str(len(by.get((mode, level), {}))) for mode in modes)])
        for key, title, digits in FIGURES:
            row([title, *(shown(values(by, mode, level, key), digits) for mode in modes)])


def ratio(by, mode, base, level, key):
    """Of the same seeds, as a geometric mean, with the 95 % interval where there are three or more; of two, both."""
    pairs = [(by[mode, level][seed].get(key), by[base, level][seed].get(key)) for seed in common(by, level, (mode, base))]
    logs = [math.log(one / other) for one, other in pairs if one and other]
    if len(logs) < 3:
        return "× " + " and ".join(f"{math.exp(log):.2f}" for log in logs) if logs else NONE
    middle, half = interval(logs)
    return f"× {math.exp(middle):.2f} ({math.exp(middle - half):.2f} to {math.exp(middle + half):.2f})"


def gains(by, modes, levels, base="round_robin"):
    keys = [("ttft_p50_ms", "TTFT p50"), ("ttft_p95_ms", "TTFT p95"), ("ttft_again_p50_ms", "turn 2+ p50"), ("tops", "tokens/s")]
    head(["over round robin, same seeds", *(str(level) for level in levels)])
    for mode in modes:
        for key, title in keys if mode != base else []:
            row([f"{mode}: {title}", *(ratio(by, mode, base, level, key) for level in levels)])


def errors(real, simulated, modes, levels):
    head(["simulated against real, mean of all levels", *(title for _, title in COMPARED)])
    for mode in [*modes, "all"]:
        off = []
        for key, _ in COMPARED:
            each = []
            for one in modes if mode == "all" else [mode]:
                for level in levels:
                    is_, said = (mean(by, one, level, key) for by in (real, simulated))
                    if is_ and said is not None:
                        each.append(abs(said - is_) if key == "hit_pct" else 100 * abs(said / is_ - 1))
            unit = "points" if key == "hit_pct" else "%"
            off.append(f"{statistics.fmean(each):.1f} {unit}" if each else NONE)
        row([mode, *off])


def apart(by, one, other, level, key):
    """Whether the intervals of two modes do not touch."""
    (a, half_a), (b, half_b) = (interval(values(by, mode, level, key)) for mode in (one, other))
    return None not in (half_a, half_b) and abs(a - b) > half_a + half_b


def apart_by_seed(by, one, other, level, key):
    """Whether the interval of their differences, seed by seed, leaves out 0: finer, as seeds differ more than modes."""
    pairs = [(by[one, level][seed].get(key), by[other, level][seed].get(key)) for seed in common(by, level, (one, other))]
    middle, half = interval([a - b for a, b in pairs if None not in (a, b)])
    return half is not None and abs(middle) > half


def ranking(real, simulated, modes, levels):
    """Of pairs of modes that the real runs tell apart: does the simulation put them in the same order?"""
    pairs = [(one, other) for at, one in enumerate(modes) for other in modes[at + 1 :]]
    for told, telling in (("the real intervals do not touch", apart), ("they differ seed by seed", apart_by_seed)):
        found, wrong = {}, []
        for level, (key, title), (one, other) in itertools.product(levels, COMPARED, pairs):
            (a, b), (c, d) = ([mean(by, mode, level, key) for mode in (one, other)] for by in (real, simulated))
            if None in (c, d) or not telling(real, one, other, level, key):
                continue
            found.setdefault(f"{one} and {other} at {level}", []).append(title)
            if (a < b) != (c < d):
                wrong.append(f"{title} at {level}: {one} {a:.1f}, {other} {b:.1f}; simulated {c:.1f}, {d:.1f}")
        count = sum(map(len, found.values()))
        print(f"In {count} comparisons {told}; the simulation has {count - len(wrong)} of them in the same order.\n")
        for name, titles in found.items():
            print(f"- {name}: {len(titles)} of {len(COMPARED)} figures")
        print("".join(f"- otherwise: {line}\n" for line in wrong))


def numbers(text):
    try:
        return [int(level) for level in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected numbers with commas between them") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs="+", required=True)
    parser.add_argument("--simulated", nargs="+", required=True)
    parser.add_argument("--levels", type=numbers, help="only these, such as 12,36")
    given = parser.parse_args()
    real, simulated = grouped(given.real), grouped(given.simulated)
    modes = [mode for mode in ("round_robin", "session", "dynamo", "kvlane") if any(key[0] == mode for key in real)]
    levels = sorted({level for _, level in real if given.levels is None or level in given.levels})
    print("### Real\n")
    gains(real, modes, levels)
    measured(real, modes, levels)
    print("\n### Simulated beside real\n")
    errors(real, simulated, modes, levels)
    print()
    ranking(real, simulated, modes, levels)
    head(["real / simulated", *(title for _, title in COMPARED)])
    for mode in modes:
        for level in levels:
            pair = lambda key: [mean(by, mode, level, key) for by in (real, simulated)]
            told = lambda pair: " / ".join(NONE if number is None else f"{number:.1f}" for number in pair)
            row([f"{mode} at {level}", *(told(pair(key)) for key, _ in COMPARED)])


if __name__ == "__main__":
    main()
