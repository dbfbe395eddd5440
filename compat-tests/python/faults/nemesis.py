"""Disturbs the cluster: one fault after another, sometimes one inside another, all from one seed."""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import time
import urllib.request

CANNOT = 3  # cluster.sh: not here, or not by this build


class Cannot(Exception):
    """This machine or this build cannot do it."""


class Cluster:
    """scripts/cluster.sh, and what should be up."""

    def __init__(self, script, directory, size):
        self.script, self.directory = script, pathlib.Path(directory)
        self.nodes = list(range(1, size + 1))
        self.down = set()
        self.deaths = []
        self.kafka = "TARGET=kafka" in (self.directory / "cluster").read_text()

    def call(self, *words, check=True):
        run = subprocess.run(
            [self.script, "--dir", str(self.directory), *map(str, words)],
            timeout=300,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if run.returncode == CANNOT:
            raise Cannot(run.stderr.strip())
        if check and run.returncode:
            raise RuntimeError(f"cluster.sh {' '.join(map(str, words))}: {run.stderr.strip()}")
        return run.stdout.strip()

    def leader(self):
        """Of several opinions the one of the greatest term counts; as cluster.sh, without a process for each question."""
        if self.kafka:
            told = self.call("leader", check=False)
            return int(told) if told.isdigit() and int(told) in self.nodes else None
        opinions = [self.page(node, "cluster_view", "cluster/health_overview") for node in self.nodes]
        known = [(view["version"], over["controller_id"]) for view, over in filter(None, opinions)]
        known = [(term, leader) for term, leader in known if leader in self.nodes]
        return max(known)[1] if known else None

    def page(self, node, *names):
        """What a node's pages say, or nothing."""
        words = dict(line.split("=") for line in (self.directory / f"node-{node}" / "ports").read_text().split())
        try:
            return [
                json.load(urllib.request.urlopen(f"http://{words['HOST']}:{words['ADMIN']}/v1/{name}", timeout=1))
                for name in names
            ]
        except (OSError, ValueError):
            return None

    def kill(self, *nodes):
        self.down |= set(nodes)
        self.call("kill", *nodes)

    def start(self, *nodes):
        self.call("start", *nodes)
        self.down -= set(nodes)

    def check_alive(self):
        """Nodes that ended by themselves are noted and started again."""
        for node in self.nodes:
            if node in self.down:
                continue
            pid = (self.directory / f"node-{node}" / "pid").read_text().strip()
            if not os.path.exists(f"/proc/{pid}"):
                tail = (self.directory / f"node-{node}" / "out.log").read_text(errors="replace").splitlines()[-8:]
                self.deaths.append(f"node {node}: " + " / ".join(tail))
                print(f"  node {node} ENDED BY ITSELF: {tail[-1] if tail else ''}", flush=True)
                self.start(node)


class Nemesis:
    """Every fault is a context: it begins, is held, and is undone."""

    def __init__(self, cluster, seed, wanted, note):
        self.cluster, self.dice, self.note, self.single = cluster, random.Random(seed), note, True
        self.faults = {name[6:].replace("_", "-"): getattr(self, name) for name in dir(self) if name.startswith("fault_")}
        unknown = set(wanted) - self.faults.keys()
        if unknown:
            raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(self.faults))}")
        if wanted:
            self.faults = {name: self.faults[name] for name in wanted}

    def drop(self, name, why):
        if self.faults.pop(name, None):
            print(f"faults: LEFT OUT: {name}: {why}", flush=True)

    def round(self):
        """One fault, or two that overlap; returns their names."""
        name = self.dice.choice(sorted(self.faults))
        inner = self.dice.choice(sorted(self.faults)) if self.dice.random() < 0.25 else None
        # Members change one at a time, in a cluster that is well.
        if "replace" in (name, inner):
            inner = None
        self.single = inner is None
        hold = self.dice.choice((self.dice.uniform(0.1, 1.0), self.dice.uniform(1.0, 4.0), self.dice.uniform(4.0, 12.0)))
        # A dice of its own: what one fault draws does not change which one is next.
        draws = random.Random(self.dice.random())
        done = []
        try:
            with self.held(name, draws, done):
                time.sleep(hold if inner is None else hold / 2)
                if inner and inner in self.faults:
                    with self.held(inner, draws, done):
                        time.sleep(hold / 2)
        finally:
            self.cluster.call("heal")
            down = sorted(self.cluster.down)
            if down:
                self.cluster.start(*down)
        return done, hold

    @contextlib.contextmanager
    def held(self, name, draws, done):
        self.note("begin", name)
        try:
            with self.faults[name](draws) as detail:
                self.note("held", name, detail)
                done.append(name)
                yield
            self.note("end", name)
        except Cannot as why:
            self.drop(name, why)
            yield

    def leader(self, draws):
        return self.cluster.leader() or draws.choice(self.up())

    def up(self):
        return [node for node in self.cluster.nodes if node not in self.cluster.down] or self.cluster.nodes

    def follower(self, draws):
        leader = self.leader(draws)
        return draws.choice([node for node in self.cluster.nodes if node != leader] or [leader])

    def others(self, node):
        return [other for other in self.cluster.nodes if other != node]

    # ---- processes

    @contextlib.contextmanager
    def killed(self, nodes, lead):
        self.cluster.kill(*nodes)
        # How fast clients go on is measured where nothing else is wrong.
        if lead and self.single:
            self.note("leader-killed", "", "")
        yield ",".join(map(str, nodes))
        self.cluster.start(*nodes)

    def fault_kill_leader(self, draws):
        return self.killed([self.leader(draws)], True)

    def fault_kill_follower(self, draws):
        return self.killed([self.follower(draws)], False)

    def fault_kill_majority(self, draws):
        nodes = draws.sample(self.cluster.nodes, len(self.cluster.nodes) // 2 + 1)
        return self.killed(nodes, False)

    def fault_kill_all(self, draws):
        return self.killed(self.cluster.nodes, False)

    @contextlib.contextmanager
    def fault_stop_leader(self, draws):
        """As a rolling restart does."""
        node = self.leader(draws)
        self.cluster.down.add(node)
        self.cluster.call("stop", node)
        yield str(node)
        self.cluster.start(node)

    @contextlib.contextmanager
    def lose_power(self, nodes):
        self.cluster.down |= set(nodes)
        self.cluster.call("power-loss", *nodes)
        yield ",".join(map(str, nodes))
        self.cluster.start(*nodes)

    def fault_power_loss_all(self, draws):
        return self.lose_power(self.cluster.nodes)

    def fault_power_loss_leader(self, draws):
        return self.lose_power([self.leader(draws)])

    @contextlib.contextmanager
    def paused(self, nodes):
        nodes = [node for node in nodes if node not in self.cluster.down]
        for node in nodes:
            self.cluster.call("pause", node)
        yield ",".join(map(str, nodes))
        for node in nodes:
            self.cluster.call("resume", node)

    def fault_pause_leader(self, draws):
        return self.paused([self.leader(draws)])

    def fault_pause_follower(self, draws):
        return self.paused([self.follower(draws)])

    def fault_pause_majority(self, draws):
        return self.paused(draws.sample(self.cluster.nodes, len(self.cluster.nodes) // 2 + 1))

    def fault_pause_all(self, draws):
        return self.paused(self.cluster.nodes)

    # ---- network

    @contextlib.contextmanager
    def cut(self, *ways):
        self.cluster.call("partition", *ways)
        yield " ".join(ways)
        self.cluster.call("heal")

    def cut_off(self, node, way):
        rest = ",".join(map(str, self.others(node)))
        return self.cut({"both": f"{node}|{rest}", "out": f"{node}>{rest}", "in": f"{rest}>{node}"}[way])

    def fault_cut_leader(self, draws):
        return self.cut_off(self.leader(draws), "both")

    def fault_cut_leader_out(self, draws):
        return self.cut_off(self.leader(draws), "out")

    def fault_cut_leader_in(self, draws):
        return self.cut_off(self.leader(draws), "in")

    def fault_cut_follower(self, draws):
        return self.cut_off(self.follower(draws), draws.choice(("both", "out", "in")))

    def fault_cut_one_link(self, draws):
        """Two nodes do not hear each other, or one not the other; both hear the rest."""
        a, b = draws.sample(self.cluster.nodes, 2)
        return self.cut(f"{a}{draws.choice('|>')}{b}")

    def fault_cut_all(self, draws):
        """No node hears another; clients hear all."""
        nodes = self.cluster.nodes
        return self.cut(*(f"{a}|{b}" for a in nodes for b in nodes if a < b))

    def fault_cut_clients_from_leader(self, draws):
        return self.cut(f"c{draws.choice('|>')}{self.leader(draws)}")

    def fault_cut_leader_from_all(self, draws):
        node = self.leader(draws)
        return self.cut(f"{node}|{','.join(map(str, self.others(node)))},c")

    # ---- disks and clocks

    @contextlib.contextmanager
    def disk(self, begin, end, node, *more):
        self.cluster.call(begin, node, *more)
        yield f"{node} {' '.join(map(str, more))}"
        self.cluster.call(end, node)

    def fault_slow_disk_leader(self, draws):
        return self.disk("slow-disk", "fast-disk", self.leader(draws), draws.choice((5, 20, 60)))

    def fault_slow_disk_follower(self, draws):
        return self.disk("slow-disk", "fast-disk", self.follower(draws), draws.choice((5, 20, 60)))

    def fault_freeze_disk_leader(self, draws):
        return self.disk("freeze-disk", "thaw-disk", self.leader(draws))

    def fault_freeze_disk_follower(self, draws):
        return self.disk("freeze-disk", "thaw-disk", self.follower(draws))

    @contextlib.contextmanager
    def clocks(self, draws, nodes):
        moved = []
        for node in nodes:
            seconds = draws.choice((-1, 1)) * draws.choice((1, 7, 60, 3600, 86400))
            self.cluster.call("clock", node, f"{seconds:+d}")
            moved.append(f"{node}:{seconds:+d}")
        yield " ".join(moved)
        for node in nodes:
            self.cluster.call("clock", node, 0)

    def fault_clock_leader(self, draws):
        return self.clocks(draws, [self.leader(draws)])

    def fault_clock_all(self, draws):
        return self.clocks(draws, self.cluster.nodes)

    # ---- what a cluster does to itself

    @contextlib.contextmanager
    def fault_transfer(self, draws):
        told = self.cluster.call("transfer", self.follower(draws), check=False)
        yield told.replace("\n", " ")

    @contextlib.contextmanager
    def fault_replace(self, draws):
        node = draws.choice(self.cluster.nodes)
        self.cluster.down.add(node)
        self.cluster.call("replace", node)
        self.cluster.down.discard(node)
        yield str(node)

