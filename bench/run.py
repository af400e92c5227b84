#!/usr/bin/env python3
"""Figures of a Cairn mount beside native ext4 and beside a FUSE server that stores nothing, in one run.

Each round measures every row on every target; the order of the targets turns by one each round, so that a machine
that slows down slows all of them. Printed are medians over the rounds and ratios of medians. The loops are in
bench/fsops.cc. The run starts its own daemon on a temporary directory and leaves nothing behind.

The disk below is the same for all targets: the directory of --dir (default: the temporary directory). "Cold" means
after sync and drop_caches; the daemon's own block cache is then as warm as its own work left it.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from daemon import Daemon, stop_mount, stop_process, wait_until


class Native:
    name = "ext4"

    def __init__(self, work, _build):
        self.root = os.path.join(work, "native")

    def start(self):
        os.mkdir(self.root)

    def stop(self):
        pass


class NullFuse:
    """bench/null_fuse.cc: answers every call, keeps names in memory, throws data away."""

    name = "null"

    def __init__(self, work, build):
        self.root = os.path.join(work, "null")
        self.program = os.path.join(build, "bin", "null_fuse")
        self.process = None

    def start(self):
        os.mkdir(self.root)
        self.process = subprocess.Popen([self.program, self.root], stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.ismount(self.root), "null_fuse to mount")

    def stop(self):
        stop_mount(self.root)
        stop_process(self.process)


class Cairn:
    name = "cairn"

    def __init__(self, work, build):
        self.root = os.path.join(work, "mnt")
        self.daemon = Daemon(work, build)
        self.env = None

    def start(self):
        os.mkdir(self.root)
        self.daemon.start()
        self.daemon.cli("org", "create", "bench")
        self.env = self.daemon.cli("env", "create", "--name", "bench")["id"]
        self.daemon.cli("mount", self.env, self.root)

    def stop(self):
        stop_mount(self.root)
        self.daemon.stop()

    def stored_bytes(self):
        """Bytes of blocks after everything so far has been sealed."""
        self.daemon.wait_sealed(self.env)
        return self.daemon.cli("stats")["stored_bytes"]


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


class Bench:
    def __init__(self, options, work):
        self.fsops = os.path.join(options.build, "bin", "fsops")
        self.files = 2000 if options.quick else 20000
        self.bytes = (128 if options.quick else 1024) << 20
        self.random_reads = 1000 if options.quick else 5000
        self.fsyncs = 100 if options.quick else 500
        self.tar = os.path.join(work, "include.tar")
        subprocess.run(["tar", "-C", "/usr", "-cf", self.tar, "include"], check=True)
        listing = subprocess.run(["tar", "-tf", self.tar], check=True, stdout=subprocess.PIPE)
        self.entries = listing.stdout.count(b"\n")

    def run(self, *words):
        done = subprocess.run([self.fsops, *map(str, words)], check=True, stdout=subprocess.PIPE, timeout=600)
        return json.loads(done.stdout)

    # Each row: takes a fresh directory of the target, returns {operations, bytes, seconds, p50_us, p99_us}.
    def small_files(self, directory):
        yield "create", self.run("create", directory, self.files, 1024)
        drop_caches()
        yield "stat", self.run("stat", directory, self.files)
        yield "unlink", self.run("unlink", directory, self.files)

    def untar(self, directory):
        start = time.monotonic()
        subprocess.run(["tar", "-C", directory, "-xf", self.tar], check=True, timeout=600)
        yield "untar", {"operations": self.entries, "bytes": 0, "seconds": time.monotonic() - start}

    def large_file(self, directory):
        path = os.path.join(directory, "large")
        yield "write", self.run("write", path, self.bytes)
        drop_caches()
        yield "read", self.run("read", path)
        drop_caches()
        yield "random_read", self.run("random_read", path, self.random_reads)
        yield "write_fsync", self.run("write_fsync", path, self.fsyncs)


ROWS = {
    # name: (what it is, unit, group, measured on the null server too)
    "create": ("create, write 1 KiB, close", "ops/s", "small_files", True),
    "stat": ("stat, cold", "ops/s", "small_files", True),
    "unlink": ("unlink", "ops/s", "small_files", True),
    "untar": ("untar /usr/include", "entries/s", "untar", True),
    "write": ("sequential write + fsync", "MB/s", "large_file", False),
    "read": ("sequential read, cold", "MB/s", "large_file", False),
    "random_read": ("4 KiB random read, cold", "ops/s", "large_file", False),
    "write_fsync": ("4 KiB write + fsync", "ops/s", "large_file", False),
}


def speed(row, sample):
    amount = sample["bytes"] / 1e6 if ROWS[row][1] == "MB/s" else sample["operations"]
    return amount / sample["seconds"]


def measure(options, work):
    wanted = [row for row in ROWS if re.search(options.filter, row)]
    with_stored = bool(re.search(options.filter, "stored"))
    if not wanted and not with_stored:
        return {}, None
    groups = list(dict.fromkeys(ROWS[row][2] for row in wanted))
    bench = Bench(options, work)
    targets = [kind(work, options.build) for kind in (Native, NullFuse, Cairn)]
    samples = {row: {target.name: [] for target in targets} for row in wanted}
    stored = None
    started = []
    begin = time.monotonic()
    try:
        for target in targets:
            started.append(target)
            target.start()
        if with_stored:
            stored = measure_stored(bench, targets[-1])
        for round_index in range(options.rounds):
            elapsed = time.monotonic() - begin
            if round_index and elapsed * (round_index + 1) / round_index > options.budget:
                print(f"stopped after {round_index} rounds: the next would pass {options.budget} s", file=sys.stderr)
                break
            turn = round_index % len(targets)
            for group in groups:
                for target in targets[turn:] + targets[:turn]:
                    if target.name == "null" and not any(ROWS[row][3] for row in wanted if ROWS[row][2] == group):
                        continue
                    directory = tempfile.mkdtemp(dir=target.root)
                    for row, sample in getattr(bench, group)(directory):
                        if row in samples:
                            samples[row][target.name].append(sample)
                            print(f"  round {round_index + 1} {row:12} {target.name:6} {speed(row, sample):10.0f} "
                                  f"{ROWS[row][1]}", file=sys.stderr)
                    shutil.rmtree(directory)
                    os.sync()
    finally:
        for target in reversed(started):
            target.stop()
    return samples, stored


def measure_stored(bench, cairn):
    before = cairn.stored_bytes()
    directory = tempfile.mkdtemp(dir=cairn.root)
    subprocess.run(["tar", "-C", directory, "-xf", bench.tar], check=True, timeout=600)
    after = cairn.stored_bytes()
    du = lambda *flags: int(subprocess.run(["du", "-s", *flags, "/usr/include"], check=True,
                                           stdout=subprocess.PIPE).stdout.split()[0])
    shutil.rmtree(directory)
    return {"file_bytes": du("-b"), "ext4_bytes": du("-B1"), "cairn_bytes": after - before, "entries": bench.entries}


def store_paths(options):
    """bench/store_bench.cc: the steps of a block, on one core, beside memcpy and a plain append + fdatasync."""
    done = subprocess.run([os.path.join(options.build, "bin", "store_bench"), "--benchmark_format=json",
                           f"--benchmark_min_time={0.05 if options.quick else 0.3}"],
                          check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300)
    paths = json.loads(done.stdout)["benchmarks"]
    print(f"{'store path':30}{'MB/s':>10}{'us':>11}{'zstd ratio':>12}")
    scale = {"ns": 1e-3, "us": 1, "ms": 1e3}
    for path in paths:
        ratio = f"{path['ratio']:>12.2f}" if "ratio" in path else ""
        print(f"{path['name'].removeprefix('BM_').removesuffix('/real_time'):30}{path['bytes_per_second'] / 1e6:>10.0f}"
              f"{path['real_time'] * scale[path['time_unit']]:>11.1f}{ratio}")
    return paths


def store_limits(options):
    """bench/ingest_bench.cc and bench/read_bench.cc: ingest, look-ups and reads beside what their steps and the disk can do."""
    directory = ["--dir=" + options.dir] if options.dir else []
    ingest = ["--rounds=1", "--mb=32", "--records=100000"] if options.quick else [f"--rounds={options.rounds}", "--records=20000000"]
    read = ["--rounds=1", "--mb=32"] if options.quick else [f"--rounds={options.rounds}"]
    limits = {}
    for program, arguments in (("ingest_bench", ingest), ("read_bench", read)):
        done = subprocess.run([os.path.join(options.build, "bin", program), *arguments, *directory],
                              check=True, stdout=subprocess.PIPE, text=True, timeout=3600)
        print(done.stdout)
        limits[program] = done.stdout.splitlines()
    return limits


def report(samples, stored):
    def cell(value):
        return f"{value:>11.0f}" if value is not None else f"{'-':>11}"

    def ratio(a, b):
        return f"{a / b:>11.2f}" if a is not None and b else f"{'-':>11}"

    result = {}
    if samples:
        print(f"{'':30}{'unit':>10}{'ext4':>11}{'null FUSE':>11}{'Cairn':>11}{'Cairn/ext4':>11}{'Cairn/null':>11}"
              f"{'p50 us':>10}{'p99 us':>10} (Cairn, one operation)")
    for row, by_target in samples.items():
        medians = {name: statistics.median(speed(row, s) for s in runs) if runs else None
                   for name, runs in by_target.items()}
        latency = [statistics.median(s[key] for s in by_target["cairn"]) if "p50_us" in by_target["cairn"][0] else None
                   for key in ("p50_us", "p99_us")]
        what, unit, _, _ = ROWS[row]
        print(f"{what:30}{unit:>10}{cell(medians['ext4'])}{cell(medians['null'])}{cell(medians['cairn'])}"
              f"{ratio(medians['cairn'], medians['ext4'])}{ratio(medians['cairn'], medians['null'])}"
              + "".join(f"{v:>10.1f}" if v is not None else f"{'-':>10}" for v in latency))
        result[row] = {"unit": unit, "median": medians, "samples": by_target}
    if stored:
        print(f"stored, /usr/include ({stored['entries']} entries): {stored['file_bytes'] / 1e6:.1f} MB of files, "
              f"{stored['ext4_bytes'] / 1e6:.1f} MB on ext4, {stored['cairn_bytes'] / 1e6:.1f} MB in Cairn "
              f"({stored['cairn_bytes'] / stored['ext4_bytes']:.2f} of ext4)")
    return result


OTHERS = ("stored", "paths", "limits")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__.split("\n")[0])
    parser.add_argument("filter", nargs="?", default="", help="regular expression on: " + ", ".join([*ROWS, *OTHERS]))
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the work: shows that it runs")
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="start no round that would end later")
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--json", metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    if options.quick:
        options.rounds = 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not any(re.search(options.filter, row) for row in [*ROWS, *OTHERS]):
        sys.exit(f"no row matches '{options.filter}': {', '.join([*ROWS, *OTHERS])}")
    work = tempfile.mkdtemp(prefix="cairn-bench.", dir=options.dir)
    load = os.getloadavg()[0]
    try:
        samples, stored = measure(options, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result = report(samples, stored)
    paths = store_paths(options) if re.search(options.filter, "paths") else None
    limits = store_limits(options) if re.search(options.filter, "limits") else None
    if load > 0.5:
        print(f"The load average was {load:.1f} before this run: others worked on this machine too, so trust ratios at most.")
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"kernel": os.uname().release, "cpus": os.cpu_count(), "load_before": load, "quick": options.quick,
                       "rows": result, "stored": stored, "paths": paths, "limits": limits}, f, indent=1)


main()
