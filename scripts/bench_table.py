"""Prints the table of a bench.sh run: the worst round of each ratio beside its target. Exit status 1 if one is missed."""

import json
import pathlib
import re
import sys

out = pathlib.Path(sys.argv[1])


def lines(name):
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines() if line.startswith("{")]


def worst(name, figure, higher_is_better):
    """Ratio Katomic ÷ peer of the worst round, and both sides' median figures."""
    rows = lines(name)
    low, _, high = next(row for row in rows if "vs" in row)["ratios_min_median_max"][figure]
    sides = {}
    for row in rows:
        if "metrics" in row:
            sides.setdefault(row["target"], []).append(row["metrics"][figure])
    middle = {side: sorted(values)[len(values) // 2] for side, values in sides.items()}
    return (low if higher_is_better else high), middle


def counter(name, **labels):
    total = 0.0
    for line in (out / "metrics.txt").read_text().splitlines():
        match = re.match(rf"{name}(\{{.*\}})? (\S+)$", line)
        if match and all(f'{key}="{value}"' in (match.group(1) or "") for key, value in labels.items()):
            total += float(match.group(2))
    return total


failed = False
print(f"{'figure':34} {'katomic':>10} {'peer':>10} {'worst ratio':>12} {'target':>10}")


def row(title, name, figure, target, higher_is_better=False, must=True):
    global failed
    ratio, middle = worst(name, figure, higher_is_better)
    peer = next(value for side, value in middle.items() if side != "katomic")
    good = ratio >= target if higher_is_better else ratio <= target
    failed |= must and not good
    sign = ">=" if higher_is_better else "<="
    verdict = "ok" if good else ("MISSED" if must else "goal missed")
    print(f"{title:34} {middle['katomic']:10.3f} {peer:10.3f} {ratio:12.3f} {sign + str(target):>10} {verdict}")


row("serial commit p50 ms, vs Kafka", "serial", "commit_p50_ms", 0.6)
row("serial commit p99 ms, vs Kafka", "serial", "commit_p99_ms", 0.2)
row("10 producers TPS, vs Kafka", "ten", "tps", 3, higher_is_better=True)
row("serial commit p50 ms, vs floor", "floor-serial", "commit_p50_ms", 1.5, must=False)
row("serial commit p99 ms, vs floor", "floor-serial", "commit_p99_ms", 1.5, must=False)
row("10 producers TPS, vs floor", "floor-ten", "tps", 0.7, higher_is_better=True, must=False)

rss = json.loads((out / "memory.json").read_text())["rss_mib"]
failed |= rss > 300
print(f"{'resident memory MiB, 60 s after':34} {rss:10} {'':10} {'':12} {'<=300':>10} {'ok' if rss <= 300 else 'MISSED'}")
committed = counter("katomic_txn_total", result="committed")
entries = counter("katomic_txn_raft_entries_total")
exact = committed > 0 and entries == committed
failed |= not exact
print(f"{'Raft entries per committed txn':34} {entries / max(committed, 1):10.4f} {'':10} {'':12} {'=1':>10} {'ok' if exact else 'MISSED'}")
ready = json.loads((out / "ready.json").read_text())["ready_ms"]
failed |= ready >= 500
print(f"{'ready on an empty directory, ms':34} {ready:10} {'':10} {'':12} {'<500':>10} {'ok' if ready < 500 else 'MISSED'}")
for name in ("verify", "abort", "outbox", "outbox-txn"):
    verdicts = [r["integrity"] for r in lines(name) if "integrity" in r]
    good = verdicts == ["ok"]
    failed |= not good
    print(f"{'integrity, ' + name:34} {','.join(verdicts):>10} {'':10} {'':12} {'ok':>10} {'ok' if good else 'MISSED'}")
broken = [r for name in ("serial", "ten", "floor-serial", "floor-ten") for r in lines(name) if r.get("problems")]
for r in broken:
    print("problems:", r["target"], r["problems"])
print("bench:", "MISSED" if failed or broken else "all musts met", f"({out.name})")
sys.exit(1 if failed or broken else 0)
