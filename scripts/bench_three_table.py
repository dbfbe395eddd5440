"""Prints the table of a `bench.sh --nodes 3` run: the worst round of each ratio beside its target.

Exit status 1 if a *must* is missed, or a run that should be there broke off. A row whose stage was left out says so.
"""

import json
import pathlib
import re
import sys

out = pathlib.Path(sys.argv[1])
form = json.loads((out / "form.json").read_text())
stages = form["stages"].split(",")
missed = []


def lines(name):
    file = out / f"{name}.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def medians(name, figure):
    """Each side's median over its rounds."""
    sides = {}
    for row in lines(name):
        if figure in row.get("metrics", {}):
            sides.setdefault(row["target"], []).append(row["metrics"][figure])
    return {side: sorted(values)[len(values) // 2] for side, values in sides.items()}


def worst(name, figure, higher_is_better):
    """The ratio Katomic ÷ peer of the worst round; None if there is none."""
    ratios = next((row["ratios_min_median_max"] for row in lines(name) if "vs" in row), {})
    if figure not in ratios:
        return None
    low, _, high = ratios[figure]
    return low if higher_is_better else high


def verdict(good, must):
    return "ok" if good else "MISSED" if must else "goal missed"


def say(title, ours, peer, ratio, target, word):
    def number(value):
        return "" if value is None else value if isinstance(value, str) else f"{value:,.3f}"

    if word == "MISSED":
        missed.append(title)
    print(f"{title:54} {number(ours):>12} {number(peer):>12} {number(ratio):>9} {target:>9} {word}")


def row(title, name, figure, target, more=False, must=True):
    """A ratio to a peer: at least the target if more is better, at most otherwise."""
    if name.split("-")[0] not in stages:
        return say(title, None, None, None, "", "not run")
    ratio, middle = worst(name, figure, more), medians(name, figure)
    sign = (">=" if more else "<=") + f"{target:g}"
    peer = next((value for side, value in middle.items() if side != "katomic"), None)
    if ratio is None:
        return say(title, middle.get("katomic"), peer, None, sign, "MISSED" if must else "no figure")
    good = ratio >= target if more else ratio <= target
    return say(title, middle["katomic"], peer, ratio, sign, verdict(good, must))


def held(title, name, rate):
    """Whether the worker kept up: what became visible each second, and no growing backlog, in every round."""
    if name.split("-")[0] not in stages:
        return say(title, None, None, None, "", "not run")
    ours = [r["metrics"] for r in lines(name) if r.get("target") == "katomic" and "metrics" in r]
    peers = medians(name, "msgs_per_s")
    slowest = min((m["msgs_per_s"] for m in ours), default=0.0)
    # Half a second's worth of records is what any moment finds on its way.
    good = bool(ours) and all(m["msgs_per_s"] >= 0.97 * rate and m["backlog_at_end"] <= rate / 2 for m in ours)
    peer = next((value for side, value in peers.items() if side != "katomic"), None)
    return say(title, slowest, peer, None, f"{rate}/s", verdict(good, True))


def counted(name, family, **labels):
    """The sum of a metric over the three nodes; None if nothing was noted."""
    total, found = 0.0, False
    for node in (1, 2, 3):
        file = out / f"metrics-{name}-{node}.txt"
        for line in file.read_text().splitlines() if file.exists() else []:
            match = re.match(rf"{family}(\{{.*\}})? (\S+)$", line)
            if match and all(f'{key}="{value}"' in (match.group(1) or "") for key, value in labels.items()):
                total, found = total + float(match.group(2)), True
    return total if found else None


def grown(family, before, after, **labels):
    first, last = counted(before, family, **labels), counted(after, family, **labels)
    return None if last is None else last - (first or 0.0)


def per_transaction(title, family, before, after, target, exact=False):
    committed, counts = grown("katomic_txn_total", before, after, result="committed"), grown(family, before, after)
    if not committed or counts is None:
        return say(title, None, None, None, "", "not run")
    share = counts / committed
    good = share == target if exact else share <= target
    return say(title, share, None, None, ("=" if exact else "<=") + f"{target:g}", verdict(good, True))


print(f"{'figure':54} {'katomic':>12} {'peer':>12} {'worst':>9} {'target':>9}")
row("serial commit p50 ms, vs Kafka's default", "plain-serial", "commit_p50_ms", 0.03)
row("serial commit p99 ms, vs Kafka's default", "plain-serial", "commit_p99_ms", 0.03)
row("serial commit p50 ms, vs Kafka tuned", "tuned-serial", "commit_p50_ms", 0.15)
row("serial commit p50 ms, vs Kafka with fsync", "fsync-serial", "commit_p50_ms", 0.03)
row("serial commit p50 ms, TV1 client, vs Kafka TV1", "tv1-serial", "commit_p50_ms", 0.05)
for kind, title in (("plain", "Kafka's default"), ("fsync", "Kafka with fsync"), ("tuned", "Kafka tuned"), ("tv1", "Kafka TV1")):
    row(f"10 producers TPS, vs {title}", f"{kind}-ten", "tps", 15, more=True)
for kind, title in (("plain", "Kafka's default"), ("tuned", "Kafka tuned"), ("tv1", "Kafka TV1")):
    row(f"100 producers TPS, vs {title}", f"{kind}-hundred", "tps", 15, more=True)
row("outbox 2,000/s commit p50 ms, vs Kafka", "plain-outbox-2000", "commit_p50_ms", 0.3)
row("outbox 2,000/s commit p99 ms, vs Kafka", "plain-outbox-2000", "commit_p99_ms", 0.3)
held("outbox 2,000/s held", "plain-outbox-2000", 2000)
held("outbox 5,000/s held", "plain-outbox-5000", 5000)
held("worker in transactions 2,000/s held", "plain-worker-2000", 2000)
held("worker in transactions 5,000/s held", "plain-worker-5000", 5000)
for size in ("100B", "1KiB", "1MB"):
    row(f"produce {size} MB/s, vs Kafka", f"plain-produce-{size}", "mb_per_s", 2, more=True)
row("one record at a time, ack p50 ms, vs Kafka", "plain-single", "ack_p50_ms", 0.5)
row("consume 1 KiB MB/s, vs Kafka", "plain-consume", "mb_per_s", 1, more=True)
if "plain" in stages and (out / "memory.json").exists():
    memory = json.loads((out / "memory.json").read_text())
    share = memory["katomic_mib"] / max(memory["kafka_mib"], 1)
    say("memory of three nodes MiB, vs Kafka", memory["katomic_mib"], memory["kafka_mib"], share, "<=0.3", verdict(share <= 0.3, True))

print("-- goals: the floor, three processes that only append, sync and answer")
row("serial commit p50 ms", "floor-serial", "commit_p50_ms", 1.5, must=False)
row("serial TPS", "floor-serial", "tps", 0.6, more=True, must=False)
row("10 producers TPS", "floor-ten", "tps", 0.6, more=True, must=False)
row("100 producers TPS", "floor-hundred", "tps", 0.6, more=True, must=False)
if "tv1" in stages:
    row("serial commit p50 ms, TV1 client with its begin marker", "floor-tv1-serial", "commit_p50_ms", 1.5, must=False)
for size in ("100B", "1KiB", "1MB"):
    row(f"produce {size} MB/s", f"floor-produce-{size}", "mb_per_s", 0.7, more=True, must=False)
row("one record at a time, ack p50 ms", "floor-single", "ack_p50_ms", 1.5, must=False)

print("-- laws")
commit, ack = medians("floor-serial", "commit_p50_ms"), medians("floor-single", "ack_p50_ms")
if {"katomic", "floor"} <= commit.keys() & ack.keys():
    ours, floor = commit["katomic"] / ack["katomic"], commit["floor"] / ack["floor"]
    say("atomicity is free: serial commit p50 / ack p50", ours, floor, ours / floor, "<=1.3", verdict(ours <= 1.3 * floor, True))
else:
    say("atomicity is free: serial commit p50 / ack p50", None, None, None, "", "not run")
per_transaction("Raft entries per committed transaction (Java 4.4)", "katomic_txn_raft_entries_total", "before-hundred", "after-hundred", 1, exact=True)
if "tv1" in stages:
    per_transaction("Raft entries per committed transaction (TV1)", "katomic_txn_raft_entries_total", "no", "tv1", 2)
syncs = "katomic_raft_fsync_latency_seconds_count"
committed = grown("katomic_txn_total", "before-hundred", "after-hundred", result="committed")
if committed and grown(syncs, "before-hundred", "after-hundred") is not None:
    # Of one node: all three sync what the leader proposes.
    share = grown(syncs, "before-hundred", "after-hundred") / 3 / committed
    say("fdatasyncs of a node per transaction, 100 producers", share, None, None, "<=0.4", verdict(share <= 0.4, True))
else:
    say("fdatasyncs of a node per transaction, 100 producers", None, None, None, "", "not run")
few, many = medians("flat-few", "commit_p50_ms"), medians("flat-many", "commit_p50_ms")
if few and many:
    flat = many["katomic"] / few["katomic"]
    say("serial p50 ms beside 10,000 partitions and beside few", many["katomic"], few["katomic"], flat, "<=1.2", verdict(flat <= 1.2, True))

print("-- correctness")
if "checks" in stages:
    for name in ("verify", "abort", "outbox", "outbox-txn"):
        found = [r["integrity"] for r in lines(f"check-{name}") if "integrity" in r]
        say(f"integrity, {name}", ",".join(found) or "none", None, None, "ok", verdict(found == ["ok"], True))
for file in sorted(out.glob("*.jsonl")):
    for line in lines(file.stem):
        if line.get("problems") and line.get("target") == "katomic":
            missed.append(f"problems in {file.stem}")
            print("problems:", file.stem, line["problems"])
if form["quick"]:
    print("bench: quick form, so the figures mean little and only broken runs count")
    broken = [f.stem for f in sorted(out.glob("*.jsonl")) if not any("metrics" in r for r in lines(f.stem))]
    print("bench:", "broken runs: " + ", ".join(broken) if broken else "every run gave figures", f"({out.name})")
    sys.exit(1 if broken else 0)
print("bench:", "MISSED: " + "; ".join(missed) if missed else "all musts met", f"({out.name})")
sys.exit(1 if missed else 0)
