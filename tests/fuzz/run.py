#!/usr/bin/env python3
"""Runs the libFuzzer targets of tests/fuzz and prints what of the decoders they reach.

Each target runs for --seconds on its committed corpus and on a scratch one in the build folder, as many side by side
as there are cores. A crash, a timeout or an allocation over the limit fails the run: the input is kept, and the
command that reproduces it is printed. Then every input is replayed with coverage counters, and for each decoder file
the share of lines of its decoding functions is printed; under 85 % fails the run too.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

LEAST_PERCENT = 85
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# target -> decoder file -> its decoding functions (a name without its scope). A name that is not found is an error,
# so that a renamed function does not drop out of the figure.
DECODERS = {
    "pack": {
        "store/pack_reader.cc": "Open Unlock ReadBytes CheckStored OpenFrameBytes ReadFrame VerifyFrameBytes VerifyStored "
                                "ReadFooter FindFrame Scan",
        "store/pack_verifier.cc": "*",
        "store/block_codec.cc": "DecodeBlock",
    },
    "footer": {
        "store/pack_format.cc": "DecodePackHeader DecodeFrameHeader DecodeTrailer DecodeFooter CheckEntry LooksLikeFrame",
    },
    "node": {
        "store/reference_table.cc": "DecodeBranch",
        "store/address.cc": "Decode IsBranch IsKnownKind",
        "store/tree_node.cc": "Decode LowerBound LastAtMost",
        "volume/fs_root.cc": "Decode",
        "snapshot/memory_image.cc": "Decode ReadDigest",
    },
    "journal": {
        "volume/journal_format.cc": "Decode DecodeRecordHeader DecodeRecordBody IsEntryKey StartsLikeRecord RecordChecksum",
        "volume/journal_reader.cc": "At WholeRecordAt CheckPayload ReadRecord HighestClaim ReplayJournal ListJournals",
        "volume/log_file.cc": "Open ReadPayload Decrypt",
    },
    "records": {
        "catalog/records.cc": "VerifyRecord Verify Mismatch",
        "catalog/keys.cc": "OwnerOf LastPart",
        "catalog/value_cipher.cc": "Open",
        "catalog/log_scan.cc": "*",
        "volume/inode.cc": "ParseKey Decode",
        "volume/extent_value.cc": "DecodeExtent IsValid",
        "volume/xattr_value.cc": "DecodeXattrValue",
        "store/data_directory.cc": "DecodeFormat ParseNumber",
        "store/quarantine.cc": "DecodeRecord Load Apply Holds",
        "store/key_ring.cc": "Open Unwrap",
    },
}

# What a decoder may allocate at once (MiB), and how long inputs become.
MALLOC_LIMIT_MB = 32
MAX_LENGTH = {"pack": 8192, "footer": 4096, "node": 8192, "journal": 12288, "records": 8192}


def tool(name):
    return name + "-19"


class Target:
    def __init__(self, name, build):
        self.name = name
        self.program = os.path.join(build, "bin", "fuzz_" + name)
        self.seeds = os.path.join(HERE, "corpus", name)
        self.scratch = os.path.join(build, "corpus", name)
        self.finds = os.path.join(build, "finds", name)
        for folder in (self.scratch, self.finds):
            os.makedirs(folder, exist_ok=True)

    def options(self):
        return [f"-malloc_limit_mb={MALLOC_LIMIT_MB}", "-rss_limit_mb=2048", "-timeout=20",
                f"-max_len={MAX_LENGTH[self.name]}", f"-artifact_prefix={self.finds}/"]

    def run(self, arguments, profile=os.devnull):
        environment = dict(os.environ, LLVM_PROFILE_FILE=profile,
                           ASAN_OPTIONS="detect_stack_use_after_return=1:allocator_may_return_null=1",
                           UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
                           ASAN_SYMBOLIZER_PATH="/usr/bin/" + tool("llvm-symbolizer"))
        return subprocess.run([self.program, *arguments], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, text=True, errors="replace")

    def fuzz(self, seconds):
        """(ok, line to print)."""
        done = self.run([*self.options(), f"-max_total_time={seconds}", "-use_value_profile=1", "-print_final_stats=1",
                         self.scratch, self.seeds])
        output = done.stdout

        def last(pattern):
            found = re.findall(pattern, output)
            return found[-1] if found else "?"

        line = (f"{self.name:8} {last(r'number_of_executed_units: *([0-9]+)'):>10} runs, "
                f"{last(r'cov: *([0-9]+)'):>5} edges, {last(r'corp: *([0-9]+)'):>5} inputs, "
                f"peak {last(r'peak_rss_mb: *([0-9]+)')} MiB")
        if done.returncode == 0:
            return True, line
        crash = last(r"Test unit written to (\S+)")
        tail = "\n".join("    " + text for text in output.splitlines()[-45:])
        return False, f"{line}\n{tail}\n  {self.name} FAILED. Reproduce:\n    {self.program} {crash}"

    def coverage(self):
        """[(file, lines, missed lines, regions, missed regions, [worst functions])]."""
        profile = os.path.join(self.finds, "coverage")
        replay = self.run([*self.options(), "-runs=0", self.seeds, self.scratch], profile + ".profraw")
        if replay.returncode != 0:
            raise SystemExit(f"replaying the corpus of {self.name} failed:\n{replay.stdout[-3000:]}")
        subprocess.run([tool("llvm-profdata"), "merge", "-o", profile + ".profdata", profile + ".profraw"], check=True)
        rows = []
        for file, names in DECODERS[self.name].items():
            report = subprocess.run(
                [tool("llvm-cov"), "report", self.program, "-instr-profile", profile + ".profdata", "-show-functions",
                 "-Xdemangler=" + tool("llvm-cxxfilt"), os.path.join(ROOT, file)],
                stdout=subprocess.PIPE, check=True, text=True).stdout
            rows.append(self.row(file, names.split(), report))
        return rows

    @staticmethod
    def row(file, names, report):
        totals = [0, 0, 0, 0]
        missing = set(names)
        worst = []
        for line in report.splitlines():
            found = re.match(r"(.*\S)\s+(\d+)\s+(\d+)\s+[\d.]+%\s+(\d+)\s+(\d+)\s+([\d.]+)%\s+\d+\s+\d+\s+[\d.]+%$", line)
            if not found or found[1] == "TOTAL":
                continue
            called = set(re.findall(r"([A-Za-z_~]\w*)(?:\[abi:cxx11\])?\(", found[1]))
            hit = called if names == ["*"] else called & set(names)
            if not hit:
                continue
            missing -= hit
            for i, column in enumerate((4, 5, 2, 3)):
                totals[i] += int(found[column])
            if float(found[6]) < LEAST_PERCENT:
                name = found[1].replace("(anonymous namespace)::", "").removeprefix(os.path.basename(file) + ":")
                worst.append(f"{re.sub(r'[(].*', '', name)} {found[6]} %")
        missing.discard("*")
        if missing or totals[0] == 0:
            raise SystemExit(f"tests/fuzz/run.py: {file} has no function {' '.join(sorted(missing))}")
        return (file, *totals, worst)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(DECODERS))
    parser.add_argument("--build", required=True, help="the build folder")
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(DECODERS)
    if unknown:
        parser.error(f"no target {' '.join(sorted(unknown))}: there are {', '.join(DECODERS)}")
    targets = [Target(name, os.path.abspath(arguments.build)) for name in arguments.targets or DECODERS]

    print(f"== fuzzing: {arguments.seconds} s each, {arguments.jobs} at a time")
    good = True
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for ok, line in pool.map(lambda target: target.fuzz(arguments.seconds), targets):
            good = good and ok
            print("  " + line, flush=True)
    if not good:
        raise SystemExit("dev: a fuzz target failed")

    print("== lines of decoding functions that the corpora reach")
    for target in targets:
        for file, lines, missed, regions, missed_regions, worst in target.coverage():
            percent = 100 * (lines - missed) / lines
            good = good and percent >= LEAST_PERCENT
            print(f"  {target.name:8} {file:28} {lines - missed:4} of {lines:4} lines {percent:6.1f} %   "
                  f"regions {100 * (regions - missed_regions) / regions:6.1f} %"
                  f"{'' if percent >= LEAST_PERCENT else '   UNDER ' + str(LEAST_PERCENT) + ' %'}")
            for name in worst:
                print(f"           {'':28}   {name}")
    if not good:
        raise SystemExit(f"dev: decoders are reached too little (under {LEAST_PERCENT} %)")


if __name__ == "__main__":
    main()
