#!/usr/bin/env python3
"""`cairn env import` and `env export` of a large tree beside restic, borg, tar | zstd -1 and cp -a, in one run.

The tree: npm packages (npm_packages below, installed without running their scripts), /usr/include, a compiler. About 100,000
files and 1.2 GiB; --tree takes another one. The second version is the first with one file of a hundred appended to, one of two
hundred removed and some new ones: the same in each run. It lies in a directory of its own, with inodes of its own, as an unpacked release
or a second checkout does: every tool reads all of it (restic and borg leave out what has the inode and times that it had before).

Each round uses fresh repositories on the same disk; the order of the tools turns by one each round. Sources are read once
before, so that they are in the page cache for everybody; each ingest ends with what the tool itself calls done (Cairn's import
and the seal behind it: its bytes are in packs). Each export goes to an ext4 of its own, made a moment ago in a file and mounted (so
this needs root): what making a file costs on a used one depends on what was deleted there before. It ends as cp does, with the
bytes in the page cache. CPU is user + system of the tool's processes, memory the largest resident set.
Tools run with their defaults (restic: repository with a password, borg: repokey-blake2 and lz4).
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from daemon import Daemon, stop_mount

NPM_PACKAGES = {
    "typescript": "5.4.5", "react": "18.2.0", "react-dom": "18.2.0", "next": "14.1.0", "@mui/icons-material": "5.15.15",
    "@mui/material": "5.15.15", "@emotion/react": "11.11.4", "@emotion/styled": "11.11.5", "aws-sdk": "2.1600.0",
    "googleapis": "134.0.0", "rxjs": "7.8.1", "date-fns": "3.6.0", "core-js": "3.36.1", "lodash": "4.17.21",
    "@angular/core": "17.3.3", "webpack": "5.91.0", "eslint": "8.57.0", "jest": "29.7.0", "@babel/preset-env": "7.24.4"}
SYSTEM = ["/usr/include", "/usr/lib/gcc", "/usr/lib/llvm-19", "/usr/lib/python3", "/usr/share/perl"]


def run_timed(command, **options):
    """Wall, CPU and largest resident set of a command and its children."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command}: exit {process.returncode}: {errors.decode(errors='replace')[-2000:]}")
    return dict(seconds=time.monotonic() - start, cpu=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * 1024)


def stored(path):
    return int(subprocess.run(["du", "-s", "-B1", path], check=True, stdout=subprocess.PIPE).stdout.split()[0])


class Restic:
    name = "restic"

    def __init__(self, work, _build):
        self.repo = os.path.join(work, "restic")
        self.env = {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": self.repo,
                    "RESTIC_CACHE_DIR": os.path.join(work, "restic-cache"), "RESTIC_PROGRESS_FPS": "0.01"}

    def start(self):
        run_timed(["restic", "init"], env=self.env)

    def ingest(self, tree):
        return run_timed(["restic", "backup", "--quiet", "."], cwd=tree, env=self.env)

    def export(self, target):
        return run_timed(["restic", "restore", "latest", "--target", target], env=self.env)

    def stored(self):
        return stored(self.repo)

    def stop(self):
        shutil.rmtree(self.repo, ignore_errors=True)
        shutil.rmtree(self.env["RESTIC_CACHE_DIR"], ignore_errors=True)


class Borg:
    name = "borg"

    def __init__(self, work, _build):
        self.repo = os.path.join(work, "borg")
        self.home = os.path.join(work, "borg-home")
        self.env = {**os.environ, "BORG_PASSPHRASE": "x", "BORG_REPO": self.repo, "BORG_BASE_DIR": self.home,
                    "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes"}
        self.count = 0

    def start(self):
        run_timed(["borg", "init", "--encryption", "repokey-blake2"], env=self.env)

    def ingest(self, tree):
        self.count += 1
        return run_timed(["borg", "create", f"::v{self.count}", "."], cwd=tree, env=self.env)

    def export(self, target):
        os.makedirs(target)
        return run_timed(["borg", "extract", f"::v{self.count}"], cwd=target, env=self.env)

    def stored(self):
        return stored(self.repo)

    def stop(self):
        shutil.rmtree(self.repo, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)


class TarZstd:
    name = "tar|zstd"

    def __init__(self, work, _build):
        self.base = os.path.join(work, "tarball")
        self.files = []

    def start(self):
        pass

    def ingest(self, tree):
        self.files.append(f"{self.base}.{len(self.files)}")
        return run_timed(["sh", "-c", f"tar -C '{tree}' -cf - . | zstd -q -1 -o '{self.files[-1]}'"])

    def export(self, target):
        os.makedirs(target)
        return run_timed(["sh", "-c", f"zstd -dcq '{self.files[-1]}' | tar -C '{target}' -xf -"])

    def stored(self):
        return sum(stored(f) for f in self.files)

    def stop(self):
        for f in self.files:
            os.unlink(f)
        self.files.clear()


class Copy:
    name = "cp -a"

    def __init__(self, work, _build):
        self.tree = None

    def start(self):
        pass

    def ingest(self, tree):
        self.tree = tree
        return None

    def export(self, target):
        return run_timed(["cp", "-a", self.tree, target])

    def stored(self):
        return None

    def stop(self):
        pass


class Cairn:
    name = "cairn"

    def __init__(self, work, build):
        self.daemon = Daemon(work, build)
        self.env = None

    def start(self):
        self.daemon.start()
        self.daemon.cli("org", "create", "bench")

    def measured(self, work):
        cpu, start = self.daemon.cpu_seconds(), time.monotonic()
        work()
        return dict(seconds=time.monotonic() - start, cpu=self.daemon.cpu_seconds() - cpu,
                      peak=self.daemon.peak_bytes())

    def ingest(self, tree):
        parts = {}

        def work():
            start = time.monotonic()
            self.env = self.daemon.cli("env", "create", "--name", "tree")["id"]
            self.daemon.cli("env", "import", self.env, tree)
            parts["import"] = time.monotonic() - start
            self.daemon.wait_sealed(self.env)

        sample = self.measured(work)
        sample["import_seconds"] = parts["import"]
        return sample

    def export(self, target):
        return self.measured(lambda: self.daemon.cli("env", "export", self.env, target, "--path", "/workspace"))

    def stored(self):
        # All of it but the space that is only kept: the reserve, and what LOCK holds for the next start.
        return stored(self.daemon.data) - stored(os.path.join(self.daemon.data, "reserve")) - stored(os.path.join(self.daemon.data, "LOCK"))

    def stop(self):
        self.daemon.stop()
        shutil.rmtree(self.daemon.data, ignore_errors=True)
        self.env = None


def make_tree(target):
    os.makedirs(os.path.join(target, "npm"))
    with open(os.path.join(target, "npm", "package.json"), "w") as f:
        json.dump({"name": "tree", "version": "1.0.0", "private": True, "dependencies": NPM_PACKAGES}, f)
    subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--legacy-peer-deps"],
                   cwd=os.path.join(target, "npm"), check=True, stdout=subprocess.DEVNULL)
    for source in SYSTEM:
        if os.path.isdir(source):
            subprocess.run(["cp", "-a", source, target], check=True)


def edit(tree):
    """The second version: one file of a hundred appended to, one of two hundred removed, 200 new ones."""
    files = []
    for directory, names, entries in os.walk(tree):
        names.sort()
        files += [os.path.join(directory, e) for e in sorted(entries)]
    files = [f for f in files if os.path.isfile(f) and not os.path.islink(f)]
    for i, path in enumerate(files):
        if i % 100 == 7:
            os.chmod(path, os.stat(path).st_mode | 0o200)
            with open(path, "ab") as f:
                f.write(b"// one more line\n")
        elif i % 200 == 11:
            os.unlink(path)
    new = os.path.join(tree, "added")
    os.mkdir(new)
    for i in range(200):
        with open(os.path.join(new, f"{i}.txt"), "w") as f:
            f.write(f"new file {i}\n" * 200)


class FreshExt4:
    """An empty ext4 in a sparse file of `size` bytes in `work`, while it is entered."""

    def __init__(self, work, size):
        self.image = os.path.join(work, "ext4")
        self.mount = os.path.join(work, "mnt")
        self.size = size

    def __enter__(self):
        os.makedirs(self.mount, exist_ok=True)
        with open(self.image, "wb") as f:
            f.truncate(self.size)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.image], check=True)
        subprocess.run(["mount", "-o", "loop", self.image, self.mount], check=True)
        os.sync()
        return os.path.join(self.mount, "out")

    def __exit__(self, *_):
        stop_mount(self.mount)
        os.unlink(self.image)


def read_all(tree):
    for directory, _, entries in os.walk(tree):
        for name in entries:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                with open(path, "rb") as f:
                    while f.read(1 << 20):
                        pass


def main():
    parser = argparse.ArgumentParser(prog="./dev bench-import", description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree", help="import this directory instead (it is copied first)")
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--only", default="", help="comma-separated tools (default: all that are installed)")
    parser.add_argument("--json", metavar="FILE", help="write every sample there")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = tempfile.mkdtemp(prefix="cairn-import.", dir=options.dir)
    load = os.getloadavg()[0]
    wanted = [w for w in options.only.split(",") if w]
    tools = [t for t in (TarZstd, Restic, Borg, Copy, Cairn) if not wanted or t.name in wanted]
    samples = {tool.name: {} for tool in tools}

    def note(tool, row, sample):
        if sample is None:
            return
        samples[tool.name].setdefault(row, []).append(sample)
        if isinstance(sample, dict):
            more = f" (import alone {sample['import_seconds']:.1f} s)" if "import_seconds" in sample else ""
            print(f"  {row:7} {tool.name:9} {sample['seconds']:7.1f} s, CPU {sample['cpu']:6.1f} s, "
                  f"{sample['peak'] / 2**20:6.0f} MiB{more}", file=sys.stderr)

    try:
        first, second = os.path.join(work, "v1"), os.path.join(work, "v2")
        if options.tree:
            subprocess.run(["cp", "-a", options.tree, first], check=True)
        else:
            make_tree(first)
        subprocess.run(["cp", "-a", first, second], check=True)
        edit(second)
        files = sum(len(entries) for _, _, entries in os.walk(first))
        size = int(subprocess.run(["du", "-s", "-b", first], check=True, stdout=subprocess.PIPE).stdout.split()[0])
        print(f"the tree: {files} files, {size / 2**20:.0f} MiB", file=sys.stderr)
        for round_index in range(options.rounds):
            turn = round_index % len(tools)
            for kind in tools[turn:] + tools[:turn]:
                tool = kind(work, options.build)
                try:
                    os.sync()
                    tool.start()
                    read_all(first)
                    note(tool, "first", tool.ingest(first))
                    read_all(second)
                    note(tool, "second", tool.ingest(second))
                    note(tool, "stored", tool.stored())
                    os.sync()
                    with FreshExt4(work, max(4 << 30, 3 * size)) as target:
                        note(tool, "export", tool.export(target))
                finally:
                    tool.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{'':10}{'first s':>9}{'CPU s':>8}{'second s':>10}{'CPU s':>8}{'stored MiB':>12}{'export s':>10}{'peak MiB':>10}")
    for name, rows in samples.items():
        def median(row, key):
            values = [s[key] for s in rows.get(row, [])]
            return statistics.median(values) if values else None
        def cell(value, width, scale=1.0):
            return f"{value / scale:>{width}.1f}" if value is not None else f"{'-':>{width}}"
        sizes = rows.get("stored")
        peaks = [s["peak"] for row in ("first", "second", "export") for s in rows.get(row, [])]
        print(f"{name:10}" + cell(median("first", "seconds"), 9) + cell(median("first", "cpu"), 8)
              + cell(median("second", "seconds"), 10) + cell(median("second", "cpu"), 8)
              + cell(statistics.median(sizes) if sizes else None, 12, 2**20) + cell(median("export", "seconds"), 10)
              + cell(max(peaks) if peaks else None, 10, 2**20))
    if load > 0.5:
        print(f"The load average was {load:.1f} before this run: others worked on this machine too, so trust ratios at most.")
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"kernel": os.uname().release, "cpus": os.cpu_count(), "load_before": load, "samples": samples}, f, indent=1)


main()
