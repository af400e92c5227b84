"""A daemon of the build on a temporary directory, for the benchmarks: started, asked, measured, stopped."""

import json
import os
import re
import subprocess
import time


def wait_until(ready, what, process=None, log=None):
    deadline = time.monotonic() + 30
    while not ready():
        dead = process is not None and process.poll() is not None
        if dead or time.monotonic() > deadline:
            tail = open(log).read()[-2000:] if log else ""
            raise RuntimeError(f"waited for {what}{', which ended' if dead else ''}\n{tail}")
        time.sleep(0.02)


def stop_mount(path):
    if os.path.ismount(path):
        if subprocess.run(["umount", path], stderr=subprocess.DEVNULL).returncode != 0:
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL)


def stop_process(process):
    if process is None:
        return
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Daemon:
    def __init__(self, work, build):
        self.bin = os.path.join(build, "bin")
        self.data = os.path.join(work, "data")
        self.socket = os.path.join(work, "s")
        self.log = os.path.join(work, "cairnd.log")
        self.process = None
        self.pid = None  # of the server, which a keeper has started

    def serves(self):
        try:
            self.pid = self.cli("ping")["pid"]
            return True
        except RuntimeError:
            return False

    def cli(self, *words):
        command = [os.path.join(self.bin, "cairn"), "--socket", self.socket, "--json", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=900)
        if done.returncode != 0:
            raise RuntimeError(f"cairn {' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def start(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [os.path.join(self.bin, "cairnd"), "--data", self.data, "--socket", self.socket,
                 "--listen", "127.0.0.1:0"], stdout=log, stderr=log)
        wait_until(self.serves, "cairnd to serve", self.process, self.log)

    def stop(self):
        stop_process(self.process)

    def wait_sealed(self, env):
        """A snapshot of all so far, and until it is in packs."""
        self.cli("snapshot", "create", env)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            snapshots = self.cli("snapshot", "list", "--env", env)
            if all(s["durability"] != "local" for s in snapshots["data"]):
                return
            time.sleep(0.05)
        raise RuntimeError("the snapshot was not sealed within 300 s")

    def cpu_seconds(self):
        """User and system time of the server so far."""
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        """The largest resident set of the server so far."""
        with open(f"/proc/{self.pid}/status") as f:
            return int(re.search(r"VmHWM:\s*(\d+) kB", f.read()).group(1)) * 1024
