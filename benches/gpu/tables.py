"""The tables of benches/GPU.md, from what was measured and what was simulated.

    python3 benches/gpu/tables.py --real RESULTS.json [MORE.json ...] --simulated SIM.json > tables.md

Repeats of a mode at a level, in whichever file, count together; where files have the same seed, the first of them counts. Modes are
compared over the seeds that both have.
"""

import argparse
import json
import math
import statistics

FIGURES = [
    ("ttft_p50_ms", "TTFT p50 ms", 0), ("ttft_p95_ms", "TTFT p95 ms", 0), ("turn_1", "turn 1 p50", 0),
    ("turn_1_p95", "turn 1 p95", 0), ("ttft_again_p50_ms", "turn 2+ p50", 0), ("ttft_again_p95_ms", "turn 2+ p95", 0),
    ("turn_2", "turn 2+ p50, mean of turns", 0), ("turn_2_p95", "turn 2+ p95, mean of turns", 0),
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
    """With the quantiles of turns; those of later turns are averaged by their requests."""
    found = dict(cell["figures"])
    for name, of in (("turn_1", lambda turn: turn == 1), ("turn_2", lambda turn: turn > 1)):
        turns = [turn for turn in cell["by_turn"] if of(turn["turn"])]
        for suffix, key in (("", "ttft_p50_ms"), ("_p95", "ttft_p95_ms")):
            known = [(turn["requests"], turn[key]) for turn in turns if turn["requests"] and turn.get(key) is not None]
            count = sum(requests for requests, _ in known)
            found[name + suffix] = sum(requests * value for requests, value in known) / count if count else None
    return found


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


def shown(numbers, digits, seeds):
    """With the interval where every seed has it; two of three, say, are told as what they are."""
    middle, half = interval(numbers)
    if middle is None:
        return NONE
    if len(numbers) < seeds:
        return " and ".join(f"{number:.{digits}f}" for number in numbers)
    return f"{middle:.{digits}f}" + (f" ± {half:.{digits}f}" if half is not None else "")


def measured(by, modes, levels):
    for level in levels:
        print(f"\n**{level} conversations at a time**\n")
        head(["", *modes])
        row(["seeds", *(str(len(by.get((mode, level), {}))) for mode in modes)])
        for key, title, digits in FIGURES:
            seeds = [len(by.get((mode, level), {})) for mode in modes]
            row([title, *(shown(values(by, mode, level, key), digits, of) for mode, of in zip(modes, seeds))])


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


def ranking(real, simulated, modes, levels):
    """Pairs of modes whose real intervals do not touch: does the simulation put them in the same order?"""
    told = agreed = 0
    wrong, pairs = [], {}
    for level in levels:
        for key, title in COMPARED:
            for at, one in enumerate(modes):
                for other in modes[at + 1 :]:
                    (a, half_a), (b, half_b) = (interval(values(real, mode, level, key)) for mode in (one, other))
                    c, d = (mean(simulated, mode, level, key) for mode in (one, other))
                    if None in (half_a, half_b, c, d) or abs(a - b) <= half_a + half_b:
                        continue
                    told += 1
                    pairs[f"{one} and {other} at {level}"] = pairs.get(f"{one} and {other} at {level}", 0) + 1
                    if (a < b) == (c < d):
                        agreed += 1
                    else:
                        wrong.append(f"{title} at {level}: {one} {a:.1f}, {other} {b:.1f}; simulated {c:.1f}, {d:.1f}")
    print(f"In {told} comparisons the real intervals do not touch; the simulation has {agreed} of them in the same order.\n")
    for name, count in pairs.items():
        print(f"- {name}: {count} of {len(COMPARED)} figures")
    for line in wrong:
        print(f"- {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", nargs="+", required=True)
    parser.add_argument("--simulated", required=True)
    given = parser.parse_args()
    real, simulated = grouped(given.real), grouped([given.simulated])
    modes = [mode for mode in ("round_robin", "session", "dynamo", "kvlane") if any(key[0] == mode for key in real)]
    levels = sorted({level for _, level in real})
    print("### Real\n")
    gains(real, modes, levels)
    measured(real, modes, levels)
    print("\n### Simulated beside real\n")
    errors(real, simulated, modes, levels)
    print()
    ranking(real, simulated, modes, levels)
    print()
    head(["real / simulated", *(title for _, title in COMPARED)])
    for mode in modes:
        for level in levels:
            pair = lambda key: [mean(by, mode, level, key) for by in (real, simulated)]
            told = lambda pair: " / ".join(NONE if number is None else f"{number:.1f}" for number in pair)
            row([f"{mode} at {level}", *(told(pair(key)) for key, _ in COMPARED)])


if __name__ == "__main__":
    main()
