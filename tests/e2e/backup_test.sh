#!/usr/bin/env bash
# Backups under load, on another file system and on the same: verified, restored, served beside the original; an unfinished one is refused; copies
# that are no backups are fenced.   backup_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

original=$data

mkdir "$work/other_disk"
mount -t tmpfs -o size=200m cairn-e2e "$work/other_disk"
serve
cairn org create backup >/dev/null
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
: >"$work/durable"
writer 1 &
while [ "$(wc -l <"$work/durable")" -lt 5 ]; do sleep 0.05; done
snapshot=$(cairn snapshot create "$env" | jq -er .id)

# ---- under load, to another disk ----
cp "$work/durable" "$work/before1"
cairn backup "$work/other_disk/b" >"$work/report1"
[ "$(jq -er .packs_copied "$work/report1")" -gt 0 ] || fail "no pack was copied"
set1=$(jq -er .path "$work/report1")
[ ! -e "$set1/master.key" ] || fail "the master key is in a backup that was not asked to have it"
cairn snapshot create "$env" >/dev/null
cp "$work/durable" "$work/before2"
cairn backup "$work/other_disk/b" --with-master-key >"$work/report2"
[ "$(jq -er .packs_kept "$work/report2")" -ge "$(jq -er .packs_copied "$work/report1")" ] || fail "packs were copied again: $(cat "$work/report2")"
set2=$(jq -er .path "$work/report2")
cp "$work/durable" "$work/before3"
cairn backup "$work/local" >"$work/report3"
[ "$(jq -er .packs_linked "$work/report3")" -gt 0 ] || fail "no pack was linked on the same file system"
set3=$(jq -er .path "$work/report3")
for set in "$set1" "$set2" "$work/local"; do
  env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$set" >"$work/verified" || fail "verify: $(cat "$work/verified")"
done
echo "ok   three backups under load, $(wc -l <"$work/durable") files"

# ---- restored beside the original, which goes on ----
cp -a "$set1" "$work/restored1"
refused_as "$work/restored1" "master.key is missing"
cp "$original/master.key" "$work/restored1/master.key"
as "$work/restored1" serve
restored "$work/restored1" "$work/before1"
rm -rf "$work/out"
as "$work/restored1" cairn env export "$snapshot" "$work/out" >/dev/null || fail "the snapshot is not in the backup"
as "$work/restored1" stop_served
as "$set2" serve # as it lies there
restored "$set2" "$work/before2"
as "$set2" stop_served
cp -a "$set3" "$work/restored3"
cp "$original/master.key" "$work/restored3/"
as "$work/restored3" serve
restored "$work/restored3" "$work/before3"
as "$work/restored3" stop_served
cairn stats >/dev/null
echo "ok   restored: byte equal, check clean"

# ---- fenced ----
cp -a "$original" "$work/copy"
pid=$(cairn ping | jq -er .pid)
refused_as "$work/copy" "served already .process $pid serves it in $original"
kill_daemon
wait || true
refused_as "$work/copy" "copied or moved"
refused_as "$work/copy" "adopt"
mv "$original" "$work/renamed" # a rename is no copy
as "$work/renamed" serve
refused_as "$work/copy" "served already"
as "$work/copy" start --adopt || fail "a copy is not adopted"
as "$work/copy" cairn ping >/dev/null
as "$work/renamed" cairn ping >/dev/null
as "$work/copy" stop_served
as "$work/copy" serve # it is at home now
as "$work/copy" stop_served
as "$work/renamed" stop_served
echo "ok   copies are fenced"

# ---- unfinished ----
mv "$work/renamed" "$original"
serve
mkdir "$work/small"
mount -t tmpfs -o size=300k cairn-e2e "$work/small"
cairn backup "$work/small/b" >"$work/out.json" 2>&1 && fail "a backup fits where it cannot"
grep -q "No space left" "$work/out.json" || fail "not ENOSPC: $(cat "$work/out.json")"
partial=$(echo "$work/small/b/"*.partial)
refused_as "$partial" "unfinished backup"
env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$partial" >"$work/out.txt" 2>&1 && fail "an unfinished backup verifies"
mount -o remount,size=200m "$work/small"
cairn backup "$work/small/b" >/dev/null
[ ! -e "$partial" ] || fail "the unfinished backup was not taken up"
set=$(echo "$work/small/b/"*)
env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$set" >/dev/null || fail "it does not verify"
pack=$(find "$set/packs" -name '*.pack' | head -1)
printf 'X' | dd of="$pack" bs=1 seek=300 conv=notrunc status=none
code=0
env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$set" >"$work/out.txt" 2>&1 || code=$?
expect "$code" 5 "exit code of a verification that finds damage"
grep -q "$(basename "$pack")" "$work/out.txt" || fail "the damaged file is not named"
echo "ok   unfinished and damaged backups are found"
