#!/usr/bin/env bash
# Crash test: what fsync() and a snapshot acknowledged is there after a crash under load, and check finds nothing wrong.
#
#   crash_test.sh BUILD_DIR kill|power [--rounds N] [--seconds N] [--seed N] [--fs ext4|xfs] [--without-fsync] [--keep]
#
#   kill    kill -9 of every process of Cairn (the page cache survives: this tests recovery, not fsync)
#   power   the data directory is on a loop-mounted ext4 (or xfs) whose power is cut (power_cut.cc): only what was fsynced is left
#   --without-fsync  runs cairnd with no_fsync.cc preloaded and succeeds only if the test then FAILS: the proof that it can
#
# Each round, on the same data directory: serve -> mount -> fsync_workload in a directory of the round, and a snapshot every half second
# -> crash after a seeded time -> restart -> mount -> verify every round so far, snapshots included -> check. At the end the
# Environment is deleted and collected: nothing may be left of it; then the daemon stops cleanly, twice.
# shellcheck disable=SC2015,SC2317  # "a && b || return": meant so; cleanup is called by the trap
set -euo pipefail

build=$(readlink -f "$1")
mode=$2
shift 2
rounds=2 seconds=3 seed=$RANDOM fs=ext4 without_fsync="" keep=""
while [ $# -gt 0 ]; do
  case $1 in
    --rounds) rounds=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --seed) seed=$2 && shift ;;
    --fs) fs=$2 && shift ;;
    --without-fsync) without_fsync=1 ;;
    --keep) keep=1 ;;
    *) echo "crash_test.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
case $mode in kill | power) ;; *) echo "crash_test.sh: kill or power" >&2 && exit 2 ;; esac
case $fs in ext4 | xfs) ;; *) echo "crash_test.sh: ext4 or xfs" >&2 && exit 2 ;; esac
name=$mode
[ "$mode" = kill ] || name="$mode on $fs"
echo "crash test: $name, $rounds round(s), seed $seed${without_fsync:+, without fsync}"
RANDOM=$seed

work=$(mktemp -d)
disk=$work/disk mnt=$work/mnt acknowledged=$work/acknowledged
mkdir "$disk" "$mnt" "$acknowledged"
export CAIRN_SOCKET=$work/socket
# Every process started from here carries it: that is how a crash finds all of them, whoever their parent is by then.
export CAIRN_CRASH_TEST=$work
workload="" snapshots=""

cairn() { timeout 60 "$build/bin/cairn" --json "$@"; }

cairn_processes() {
  local process
  find /proc -mindepth 2 -maxdepth 2 -name exe -lname "$build/bin/cairn*" -printf '%h\n' 2>/dev/null |
    while read -r process; do
      if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "CAIRN_CRASH_TEST=$work"; then echo "${process#/proc/}"; fi
    done
}
# A process that is being killed loses its name (exe) before it closes its files: it has let go of them when nothing but a zombie is
# left of it, its other threads included.
still_dying() {
  local pid states
  for pid in "$@"; do
    states=$(cat "/proc/$pid/task"/*/stat 2>/dev/null | sed 's/.*) \(.\) .*/\1/' | tr -d '\n') || true
    case $states in "" | Z | X) ;; *) echo "$pid" ;; esac
  done
}
kill_cairn() {
  local pids try killed=""
  for try in $(seq 400); do
    pids=$(cairn_processes)
    # shellcheck disable=SC2086
    [ -n "$pids" ] || pids=$(still_dying $killed)
    [ -n "$pids" ] || return 0
    killed="$killed $pids"
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    sleep 0.05
  done
  echo "still there after $try tries of kill -9: $pids" >&2
  return 1
}
cleanup() {
  local pid
  for pid in $workload $snapshots; do kill -KILL "$pid" 2>/dev/null || true; done
  kill_cairn || true
  umount -l "$mnt" 2>/dev/null || true
  umount -l "$disk" 2>/dev/null || true
  if [ -n "$keep" ]; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# A mount namespace that somebody makes meanwhile holds a copy of every mount for as long as it lives, and a file system that is
# still alive anywhere would be mounted again as it is: without power.
disk_is_gone() {
  local try
  for try in $(seq 100); do
    [ -n "$(losetup -j "$work/image")" ] || return 0
    sleep 0.2
  done
  echo "the disk without power is still mounted in some namespace after $try looks" >&2
  return 1
}
mount_disk() {
  if [ "$mode" = power ]; then mount -o loop "$work/image" "$disk"; fi
}
serve() {
  LD_PRELOAD=${without_fsync:+$build/lib/libno_fsync.so} \
    "$build/bin/cairnd" --data "$disk/data" --socket "$CAIRN_SOCKET" --listen 127.0.0.1:0 >>"$work/cairnd.log" 2>&1 &
  disown # it will be killed: no word about that
  local try pid=$!
  for try in $(seq 300); do
    if cairn ping >"$work/ping" 2>&1; then return 0; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "cairnd does not serve (try $try):" >&2
  tail -20 "$work/cairnd.log" >&2
  return 1
}
stop_cleanly() {
  local pid
  pid=$(cairn ping | jq -r .pid)
  kill -TERM "$(awk '/^PPid:/ {print $2}' "/proc/$pid/status")"
  for _ in $(seq 600); do
    [ -n "$(cairn_processes)" ] || return 0
    sleep 0.1
  done
  echo "cairnd does not stop on SIGTERM" >&2
  return 1
}
# Snapshots until told to stop; the id of each is noted once it was acknowledged.
take_snapshots() {
  local id
  while :; do
    if id=$(cairn snapshot create "$env" 2>/dev/null | jq -er .id); then echo "$id" >>"$acknowledged/snapshots"; fi
    sleep 0.5
  done
}

# Exit codes: 0 all is there, 1 something acknowledged is lost or damaged.
verify() {
  local round fault=0 listed id
  serve || return 1
  cairn mount "$env" "$mnt" >"$work/mount" || return 1
  for round in $(seq "$1"); do
    "$build/bin/fsync_workload" verify "$mnt/r$round" "$acknowledged/r$round" >"$work/verified" || fault=1
    cat "$work/verified"
    [ "$(sed -n 's/^\([0-9]*\) acknowledgements.*/\1/p' "$work/verified")" -ge "$enough" ] || { echo "round $round acknowledged next to nothing" && fault=1; }
  done
  listed=$(cairn snapshot list --env "$env" | jq -r '.data[].id') || return 1
  while read -r id; do
    if ! grep -qxF "$id" <<<"$listed"; then
      echo "LOST snapshot $id"
      fault=1
    fi
  done <"$acknowledged/snapshots"
  if ! cairn check >"$work/check.json" 2>&1; then
    echo "check finds damage:"
    head -c 4000 "$work/check.json"
    fault=1
  fi
  [ -s "$acknowledged/snapshots" ] || { echo "no snapshot was acknowledged" && fault=1; }
  echo "   $(wc -l <"$acknowledged/snapshots") snapshots; check read $(jq -r '"\(.blocks) blocks, \(.journals) journals"' "$work/check.json" 2>/dev/null)"
  return $fault
}

# What crashes left behind belongs to nobody: with the Environment deleted, the collector must have emptied the directory.
nothing_leaked() {
  local packs left
  cairn umount "$env" >/dev/null && cairn env delete "$env" --confirm "$env" >/dev/null || return 1
  cairn reap >/dev/null && cairn gc --now >"$work/gc" && cairn reap >/dev/null || return 1
  packs=$(cairn stats | jq -er .pack_bytes) || return 1
  left=$(cd "$disk/data" && find trash volumes -mindepth 1 && find . -name '*.tmp' -not -path './lost+found') || return 1
  if [ "$packs" -ne 0 ] || [ -n "$left" ]; then
    echo "LEAKED: $packs bytes of packs; $left"
    return 1
  fi
  echo "   nothing leaked"
}

# What acknowledged nothing proves nothing: on a slow disk the crash waits.
enough=20
something_to_lose() {
  local try
  for try in $(seq 600); do
    if [ "$(cat "$acknowledged/r$1".* 2>/dev/null | wc -l)" -ge "$enough" ] && [ -s "$acknowledged/snapshots" ]; then return 0; fi
    sleep 0.1
  done
  echo "next to nothing was acknowledged after $try looks" >&2
}

# Returns 1 at the first round that lost something, or when anything does not go its way (set -e does not hold in here).
run_rounds() {
  local round
  for round in $(seq "$rounds"); do
    mkdir "$mnt/r$round" && sync "$mnt/r$round" "$mnt" || return 1
    "$build/bin/fsync_workload" run "$mnt/r$round" "$acknowledged/r$round" "$((seed + round))" 2>>"$work/workload.log" &
    workload=$!
    take_snapshots &
    snapshots=$!
    sleep "$(awk -v s="$seconds" -v r="$RANDOM" 'BEGIN {printf "%.3f", s * (0.5 + r / 32768)}')"
    something_to_lose "$round"
    if [ "$mode" = power ]; then
      "$build/bin/power_cut" "$disk" || return 1
      sleep 0.3 # what is still acknowledged now is a lie, and will be found
    fi
    kill_cairn || return 1
    kill -KILL "$snapshots" 2>/dev/null || true
    wait "$snapshots" 2>/dev/null || true
    wait "$workload" || { echo "the workload failed" >&2 && return 1; }
    workload="" snapshots=""
    umount -l "$mnt" 2>/dev/null || true # the keeper of a server that died has unmounted already
    if [ "$mode" = power ]; then
      umount -l "$disk" && disk_is_gone && mount_disk || return 1 # -l: whoever still looks at it (a scan of /proc) lets go soon
    fi
    echo "round $round of $rounds: crashed"
    verify "$round" || return 1
  done
  nothing_leaked && stop_cleanly && serve && stop_cleanly
}

if [ "$mode" = power ]; then
  truncate -s 2G "$work/image"
  "mkfs.$fs" -q "$work/image"
fi
mount_disk
: >"$acknowledged/snapshots"
serve
cairn org create crash >"$work/org"
env=$(cairn env create --name crash | jq -er .id)
cairn mount "$env" "$mnt" >"$work/mount"
# The Environment itself must be there after the first cut, also in the run without fsync: that run is about the workload.
[ -z "$without_fsync" ] || sync -f "$disk"

if run_rounds > >(tee "$work/output") 2>&1; then result=0; else result=1; fi
if [ -n "$without_fsync" ]; then
  if [ "$result" -eq 0 ]; then
    echo "FAIL: nothing was lost although nothing was fsynced: this test proves nothing"
    exit 1
  fi
  # Either the workload misses something, or recovery itself finds that files of the data directory are gone.
  if ! grep -qE '^LOST|\[data_loss\]' "$work/output"; then
    echo "FAIL: it failed for another reason than something lost"
    exit 1
  fi
  echo "ok: without fsync the test fails, as it must"
  exit 0
fi
if [ "$result" -ne 0 ]; then
  echo "FAIL: seed $seed; end of the daemon's log:"
  tail -15 "$work/cairnd.log"
fi
exit "$result"
