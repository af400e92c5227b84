#!/usr/bin/env bash
# Starts on a full disk: after kill -9 while it was full, in the middle of seals, and without the reserve file. Reads and deletions go on each time.
# And what many idle mounts set aside: nothing.   full_disk_start_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

disk=$work/disk
truncate -s 512M "$work/image"
mkfs.ext4 -q -m 0 "$work/image"
mkdir "$disk"
mount -o loop "$work/image" "$disk"
data=$disk/data
limits=()
fill() { # what others put on the file system, to its last block
  local try
  for try in $(seq "${1:-4}"); do # space comes back when a file system's transaction has ended
    dd if=/dev/zero bs=64k of="$disk/ballast.$RANDOM.$try" 2>/dev/null || true
    dd if=/dev/zero bs=4k of="$disk/ballast.$RANDOM.$try" 2>/dev/null || true
    sync -f "$disk"
  done
}
available() { df --output=avail -B1 "$disk" | tail -n 1; }
write() { # FILE KIB: random bytes; noted in $work/durable once fsync has returned
  head -c "${2}K" /dev/urandom >"$work/bytes"
  dd if="$work/bytes" of="$mnt/workspace/$1" bs=1M conv=fsync 2>"$work/error" || return 1
  echo "$(sha256sum <"$work/bytes" | cut -d' ' -f1)  $1" >>"$work/durable"
}
whole() { # WHEN: every file that fsync has returned for is there, byte for byte
  (cd "$mnt/workspace" && sha256sum -c --quiet "$work/durable") || fail "$1: a file that was fsynced is gone or changed"
}
delete_one() { # WHEN: and it is durable
  local name
  name=$(head -n 1 "$work/durable" | cut -c 67-)
  rm "$mnt/workspace/$name" || fail "$1: an rm is refused"
  sync "$mnt/workspace" || fail "$1: an rm cannot be made durable"
  sed -i 1d "$work/durable"
}
serves_and_deletes() { # WHEN: a start on the full disk, and what must work there
  local began
  began=$(date +%s)
  [ "$(available)" -lt 262144 ] || fail "$1: $(available) bytes are free"
  start || fail "$1: the daemon does not serve"
  echo "$1: serves after $(($(date +%s) - began)) s"
  cairn mount "$env" "$mnt" >"$work/out" || fail "$1: no mount: $(cat "$work/out")"
  whole "$1"
  delete_one "$1"
  starts=$((starts + 1))
  cairn env delete "${doomed[starts]}" --confirm "${doomed[starts]}" >"$work/out" || fail "$1: env delete: $(cat "$work/out")"
  cairn reap >"$work/out" || fail "$1: reap: $(cat "$work/out")"
  whole "$1, later"
}
heals() { # WHEN
  local try
  rm -f "$disk"/ballast.*
  for try in $(seq 40); do
    if write "healed.$RANDOM" 100; then return 0; fi
    grep -q "No space left on device" "$work/error" || fail "$1: not ENOSPC: $(cat "$work/error")"
    sleep 0.5
  done
  fail "$1: writes are still refused after $try tries: $(cairn stats | jq -c .space)"
}

serve
cairn org create full >/dev/null
env=$(cairn env create --name kept | jq -er .id)
declare -a doomed idle
for i in $(seq 6); do doomed[i]=$(cairn env create | jq -er .id); done
cairn mount "$env" "$mnt" >/dev/null
: >"$work/durable"
starts=0

# ---- idle mounts ----
for i in $(seq 40); do
  idle[i]=$(cairn env create | jq -er .id)
  mkdir "$work/idle$i"
  cairn mount "${idle[i]}" "$work/idle$i" >/dev/null
  echo "$i" >"$work/idle$i/workspace/file" || fail "a new file is refused beside $i idle mounts: $(cairn stats | jq -c .space)"
done
dirty() { # MOUNTS WHEN: so many are set aside for, as soon as the kernel has said RELEASE
  local try
  for try in $(seq 100); do
    if [ "$(cairn stats | jq -er '"\(.space.set_aside.dirty / .space.limits.dirty_per_mount)"')" = "$1" ]; then return 0; fi
    sleep 0.05
  done
  fail "$2: not $1 mounts are set aside for (try $try): $(cairn stats | jq -c .space)"
}
dirty 0 "41 idle mounts"
exec {one}>"$work/idle7/workspace/open" {two}>>"$work/idle7/workspace/file" {three}>"$work/idle8/workspace/open"
dirty 2 "two mounts with files open for writing"
exec {one}>&- {three}>&-
dirty 1 "one of them has one more"
exec {two}>&-
dirty 0 "after the last close"
exec {one}>"$work/idle9/workspace/open"
dirty 1 "a file"
cairn umount --force "${idle[9]}" >/dev/null
dirty 0 "a mount that went with an open file"
exec {one}>&- || true
for i in $(seq 8) $(seq 10 40); do cairn umount "${idle[i]}" >/dev/null; done
echo "ok   40 idle mounts on 512 MiB set nothing aside"

# ---- killed while it is full ----
for round in 1 2 3 4; do
  for i in $(seq 12); do write "$round.$i" 4000; done
  packs=$(du -s --block-size=1 "$data/packs" | cut -f1)
  (fill 2) & # a tight disk seals
  filling=$!
  for try in $(seq 200); do # odd rounds: in the middle of the seal
    if [ $((round % 2)) = 1 ] && [ "$(du -s --block-size=1 "$data/packs" | cut -f1)" -gt $((packs + 4000000)) ]; then break; fi
    kill -0 $filling 2>/dev/null || break
    sleep 0.02
  done
  kill_daemon
  wait $filling || true
  fill 3
  serves_and_deletes "killed while full, $round (try $try)"
  fill
  kill_daemon
  fill
  start || fail "round $round: the second start on the full disk"
  cairn mount "$env" "$mnt" >/dev/null || fail "round $round: no mount after the second start"
  whole "after the second start of round $round"
  heals "round $round"
done
echo "ok   starts on a full disk, wherever it was killed"

# ---- without a reserve file ----
for how in kill_daemon stop_cleanly; do
  for try in $(seq 100); do # it is filled again in the background
    cairn stats | jq -e '.space.used.reserve == .space.limits.reserve' >/dev/null && break
    [ "$try" -lt 100 ] || fail "the reserve file is not whole again: $(cairn stats | jq -c .space)"
    sleep 0.1
  done
  write "before.$how" 3000
  $how
  rm "$data/reserve"
  fill
  serves_and_deletes "without a reserve file, after $how"
  # With neither reserve nor a free block it may lack the room for the index of the pack that is open: it says so, and changes nothing.
  cairn gc --now >"$work/out" 2>&1 || grep -q '"code": "exhausted"' "$work/out" || fail "gc without a reserve file: $(cat "$work/out")"
  heals "without a reserve file"
  cairn gc --now >"$work/out" 2>&1 || fail "gc after there is room again: $(cat "$work/out")"
  for try in $(seq 100); do
    [ "$(stat -c %b "$data/LOCK")" -lt 20000 ] || break
    sleep 0.1
  done
  [ "$try" -lt 100 ] || fail "room for the next opening is not kept again"
done
cairn check >"$work/out" || fail "check: $(cat "$work/out")"
stop_cleanly
echo "ok   starts, reads and deletes without a reserve file"
