#!/usr/bin/env bash
# A full disk under the data directory: writers get ENOSPC, readers and stats go on, and what reap and gc free can be written again without
# a restart.   full_disk_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

disk=$work/disk
truncate -s 96M "$work/image"
mkfs.ext4 -q -m 0 "$work/image"
mkdir "$disk"
mount -o loop "$work/image" "$disk"
data=$disk/data
available() { df --output=avail -B1 "$disk" | tail -n 1; }

serve
cairn org create full >/dev/null
pid=$(cairn ping | jq -er .pid)
kept=$(cairn env create --name kept | jq -er .id)
filled=$(cairn env create --name filled | jq -er .id)
mkdir "$work/kept"
cairn mount "$kept" "$work/kept" >/dev/null
cairn mount "$filled" "$mnt" >/dev/null
head -c 2M /dev/urandom >"$work/original"
cp "$work/original" "$work/kept/workspace/file"
sync "$work/kept/workspace/file"

# Random bytes neither compress nor deduplicate.
full=""
for i in $(seq 60); do
  if head -c 4M /dev/urandom 2>"$work/error" | dd of="$mnt/workspace/$i" bs=1M iflag=fullblock conv=fsync 2>"$work/error"; then
    head -c 4M "$mnt/workspace/$i" | sha256sum >"$work/digest.$i"
    continue
  fi
  full=$i
  break
done
[ -n "$full" ] || fail "240 MiB went into 96 MiB"
grep -q "No space left on device" "$work/error" || fail "not ENOSPC: $(cat "$work/error")"
[ "$full" -gt 5 ] || fail "full after $full files of 4 MiB"

# What is there stays right; the daemon answers; a small write is refused or kept, never half of it.
cmp "$work/original" "$work/kept/workspace/file" || fail "a file reads differently on a full disk"
for i in $(seq $((full - 1))); do
  expect "$(sha256sum <"$mnt/workspace/$i")" "$(cat "$work/digest.$i")" "file $i on the full disk"
done
cairn stats | jq -e '.mounts == 2' >/dev/null
expect "$(cairn ping | jq -er .pid)" "$pid" "the process on the full disk"

# A deletion needs to be possible without space.
timeout 60 "$build/bin/cairn" umount --force "$filled" >"$work/out" 2>&1 || fail "umount on the full disk: $(cat "$work/out")"
before=$(available)
cairn env delete "$filled" --confirm "$filled" >"$work/out" || fail "env delete on the full disk: $(cat "$work/out")"
cairn reap >"$work/out" || fail "reap on the full disk: $(cat "$work/out")"
cairn gc --now >"$work/out" || fail "gc on the full disk: $(cat "$work/out")"
[ $(($(available) - before)) -gt 20000000 ] || fail "reap and gc freed $(($(available) - before)) bytes"

# The same process and the same mount write again, and a new Environment too.
head -c 8M /dev/urandom >"$work/second"
dd if="$work/second" of="$work/kept/workspace/second" bs=1M conv=fsync 2>"$work/error" || fail "after gc: $(cat "$work/error")"
again=$(cairn env create --name again | jq -er .id)
cairn mount "$again" "$mnt" >/dev/null
dd if="$work/second" of="$mnt/workspace/second" bs=1M conv=fsync 2>"$work/error" || fail "after gc, elsewhere: $(cat "$work/error")"
snapshot=$(cairn snapshot create "$kept" | jq -er .id)
expect "$(cairn ping | jq -er .pid)" "$pid" "the process afterwards"
cairn env export "$snapshot" "$work/exported" --path /workspace >/dev/null
cmp "$work/original" "$work/exported/file" && cmp "$work/second" "$work/exported/second" || fail "the snapshot's files differ"
cairn umount "$again" >/dev/null
cairn umount "$kept" >/dev/null
cairn check >"$work/out" || fail "check: $(cat "$work/out")"
stop_cleanly
serve
cairn mount "$kept" "$work/kept" >/dev/null
cmp "$work/original" "$work/kept/workspace/file" && cmp "$work/second" "$work/kept/workspace/second" || fail "files differ after a restart"
stop_cleanly
echo "ok: full after $((full - 1)) files of 4 MiB"
