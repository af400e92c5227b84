#!/usr/bin/env python3
"""Runs the libFuzzer targets of tests/fuzz and prints what of the decoders they reach.

Each target runs for --seconds on its committed corpus and on a scratch one in the build folder, as many side by side
as there are cores. A crash, a timeout or an allocation over the limit fails the run: the input is kept, and the
command that reproduces it is printed. Then every input is replayed with coverage counters, and for each decoder file
the share of its decoding lines is printed, and which ones were not reached; under 85 % of one file fails the run too.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

LEAST_PERCENT = 85
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

# target -> decoder file -> those of its functions that decode nothing: they encode, or lock, create and write files. All
# other lines of the file count, so that a new function counts until somebody says here that it is no decoder. A name that
# is not found is an error.
DECODERS = {
    "pack": {
        "store/pack_reader.cc": "PackReader::FrameOp",
        "store/pack_verifier.cc": "",
        "store/block_codec.cc": "EncodeBlock Level FreeContext::operator()",
    },
    "footer": {
        "store/pack_format.cc": "EncodePackHeader EncodeFrameHeader EncodeFooterBeforeDigest EncodeTrailer PackKeyAad "
                                "FrameAad FrameNonce",
    },
    "node": {
        "store/reference_table.cc": "EncodeBranch",
        "store/address.cc": "BlockRef::Encode BlockRef::AppendTo BlockKindName Address::ToHex Address::FromHex BaseRealm",
        "store/tree_node.cc": "EncodeTreeNode EncodedItemBytes SharedPrefix",
        "volume/fs_root.cc": "FsRoot::Encode CountEntry LoadFsRoot",
        "snapshot/memory_image.cc": "MemoryImage::Encode MemoryMap::Encode View",
    },
    "journal": {
        "volume/journal_format.cc": "LogHeader::Encode LogHeader::KeyAad RecordHeader::EncodeTo RecordHeader::AppendAad "
                                    "AppendFields AppendPut AppendDelete AppendHole AppendData PatchData",
        "volume/journal_reader.cc": "",
        "volume/log_file.cc": "LogFile::Create LogFile::SetFirstLsn OffsetCipher::Encrypt OffsetCipher::EncryptFrames "
                              "OffsetCipher::Lease::Encrypt",
    },
    "records": {
        "catalog/records.cc": "",
        "catalog/keys.cc": "keys::Number",
        "catalog/value_cipher.cc": "ValueCipher::Seal",
        "catalog/log_scan.cc": "MakeCrcTable",  # runs in the compiler
        "volume/inode.cc": "Inode::Encode Dirent::Encode KeyOf AttributesKey DirentKey XattrKey ExtentKey InlineKey "
                           "OrphanKey KeyPrefix PrefixEnd NameHash",
        "volume/extent_value.cc": "EncodeExtent",
        "volume/xattr_value.cc": "EncodeXattrInline EncodeXattrBlock ReadXattrValue",
        "store/data_directory.cc": "EncodeFormat CheckOf JumpedEpoch ReadFormat CheckMayInitialise Lock WritePid "
                                   "UnfinishedBackup IsBackup CheckNameMayInitialise FreeOpeningRoom "
                                   "DataDirectory::~DataDirectory DataDirectory::Open "
                                   "DataDirectory::KeepOpeningRoom DataDirectory::WriteFormat "
                                   "DataDirectory::FormatOfBackup DataDirectory::SetNextMasterKey "
                                   "DataDirectory::ClearNextMasterKey DataDirectory::SetMasterKey "
                                   "DataDirectory::has_next_master_key DataDirectory::IsNextMasterKey",
        "store/base/high_water_mark.cc": "Encode HighWaterMark::Raise",
        "store/quarantine.cc": "EncodeRecord Quarantine::Add Quarantine::ReleaseFrame Quarantine::ReleasePack "
                               "Quarantine::Save Quarantine::AppendLocked Quarantine::RewriteLocked Quarantine::List",
        "store/index_value.cc": "EncodeBlockLocation EncodePackMarker Finish Summarize",
        "store/key_ring.cc": "FreeMac::operator() ThreadMac Data HmacSha256 View Wipe KeyRing::~KeyRing KeyRing::Add "
                             "KeyRing::Remove KeyRing::Has KeyRing::AddressOf KeyRing::Wrap KeyRing::Seal",
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
        """{file: its lines as {number: runs}, the lines of its encoders left out}."""
        profile = os.path.join(self.finds, "coverage")
        replay = self.run([*self.options(), "-runs=0", self.seeds, self.scratch], profile + ".profraw")
        if replay.returncode != 0:
            raise SystemExit(f"replaying the corpus of {self.name} failed:\n{replay.stdout[-3000:]}")
        subprocess.run([tool("llvm-profdata"), "merge", "-o", profile + ".profdata", profile + ".profraw"], check=True)

        def export(form, file):
            return subprocess.run([tool("llvm-cov"), "export", "-format=" + form, self.program, "-instr-profile",
                                   profile + ".profdata", os.path.join(ROOT, file)],
                                  stdout=subprocess.PIPE, check=True, text=True).stdout

        decoders = {}
        for file, names in DECODERS[self.name].items():
            lines = {int(line): int(runs) for line, runs in re.findall(r"^DA:(\d+),(\d+)", export("lcov", file), re.M)}
            functions = json.loads(export("text", file))["data"][0]["functions"]
            missing = set(names.split())
            for function, name in zip(functions, plain_names([f["name"] for f in functions])):
                if not function["filenames"][0].endswith("/" + file) or name not in names.split():
                    continue
                missing.discard(name)
                begin, _, end = function["regions"][0][:3]
                for line in range(begin, end + 1):
                    lines.pop(line, None)
            if missing or not lines:
                raise SystemExit(f"tests/fuzz/run.py: {file} has no function {' '.join(sorted(missing))}")
            decoders[file] = lines
        return decoders


def plain_names(mangled):
    """Of functions: without namespace, template arguments and parameters."""
    text = "\n".join(name.rsplit(":", 1)[-1] for name in mangled)
    demangled = subprocess.run([tool("llvm-cxxfilt")], input=text, stdout=subprocess.PIPE, check=True, text=True).stdout
    names = []
    for name in demangled.splitlines():
        name = name.replace("(anonymous namespace)::", "").replace("[abi:cxx11]", "").replace("operator()", "operator")
        while "<" in name:
            shorter = re.sub(r"<[^<>]*>", "", name)
            if shorter == name:
                break
            name = shorter
        name = name.split("(")[0].split(" ")[-1]
        names.append(name.removeprefix("cairn::") + ("()" if name.endswith("operator") else ""))
    return names


def ranges(numbers):
    """1 2 3 7 -> '1-3 7'."""
    found = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


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

    print("== lines of decoders that the corpora reach (encoders, listed in run.py, are left out)")
    for target in targets:
        for file, lines in target.coverage().items():
            missed = [line for line, runs in lines.items() if runs == 0]
            percent = 100 * (len(lines) - len(missed)) / len(lines)
            good = good and percent >= LEAST_PERCENT
            print(f"  {target.name:8} {file:26} {len(lines) - len(missed):4} of {len(lines):4} lines {percent:6.1f} %"
                  f"{'' if percent >= LEAST_PERCENT else '   UNDER ' + str(LEAST_PERCENT) + ' %'}"
                  f"{'   not: ' + ranges(missed) if missed else ''}")
    if not good:
        raise SystemExit(f"dev: decoders are reached too little (under {LEAST_PERCENT} %)")


if __name__ == "__main__":
    main()
