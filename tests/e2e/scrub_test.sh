#!/usr/bin/env bash
# A flipped bit in a pack of a running store: scrub names the file, the snapshot and the Artifact; everything else is read as before; writing the same
# content again heals it; a pass goes on after kill -9; one at a time.   scrub_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

scrub() { # scrub EXIT_CODE ARGS...: the answer in $work/scrub
  local want=$1 code=0
  shift
  cairn scrub "$@" >"$work/scrub" 2>&1 || code=$?
  expect "$code" "$want" "exit code of scrub $* ($(cat "$work/scrub"))"
}
field() { jq -r "$1" "$work/scrub"; }
sealed() { # waits until a snapshot's blocks are in packs
  for _ in $(seq 200); do
    [ "$(cairn snapshot show "$1" | jq -r .durability)" = sealed ] && return
    sleep 0.1
  done
  fail "snapshot $1 is not sealed"
}
# The frames of kind 1 that hold a whole window: "pack offset", each.
frames() {
  python3 - "$data/packs" <<'PY'
import glob, struct, sys
for path in sorted(glob.glob(sys.argv[1] + '/*/*.pack')):
    data, at = open(path, 'rb').read(), 160
    while data[at:at + 4] == b'CFRM':
        kind, raw, stored = data[at + 4], *struct.unpack_from('<II', data, at + 8)
        if kind == 1 and raw == 65536: print(path, at)
        at += (64 + stored + 7) & ~7
PY
}
flip() { # flip FILE OFFSET
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  printf "%b" "\\x$(printf '%02x' $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

serve
scrub 0 --status
expect "$(field .state)" never "state before the first scrub"
cairn org create scrub >/dev/null
session=$(cairn session create | jq -er .id)
env=$(cairn session show "$session" | jq -er .env)
cairn mount "$env" "$mnt" >/dev/null
w=$mnt/workspace
# One window, so that one block is the whole of it: in the file, the snapshot and the Artifact alike.
head -c 65536 /dev/urandom >"$work/content"
cp "$work/content" "$w/hurt"
cp "$work/content" "$w/outputs/report"
turn=$(cairn turn start "$session" | jq -er .id)
artifact=$(cairn turn complete "$turn" | jq -er '.published[0].id')
first=$(cairn snapshot create "$env" | jq -er .id)
sealed "$first"
read -r path at < <(frames) || fail "no data frame found"
head -c 3000000 /dev/urandom >"$w/other"
second=$(cairn snapshot create "$env" | jq -er .id)
sealed "$second"
sha256sum "$w/other" >"$work/sums"
scrub 0 --wait
expect "$(field .state)" finished "state"
expect "$(field '.findings | length')" 0 "findings of a whole store"
[ "$(field .bytes)" -gt 3000000 ] || fail "too little was read: $(cat "$work/scrub")"

flip "$path" $((at + 64 + 1234))
scrub 5 --wait
expect "$(field '.findings | length')" 1 "findings"
expect "$(field .quarantined_blocks)" 1 "blocks in the quarantine"
owners=$(field '.findings[0].owners[]')
for owner in "environment $env /workspace/hurt" "snapshot $first /workspace/hurt" "artifact $artifact"; do
  grep -qxF "$owner" <<<"$owners" || fail "'$owner' is not named: $owners"
done
field '.findings[0].where' | grep -q "$(basename "$path")" || fail "the pack is not named"
scrub 5 --status
expect "$(cairn stats | jq .scrub_last_damaged_blocks)" 1 "damaged blocks in stats"
timeout 20 sha256sum -c --quiet "$work/sums" || fail "damage hurts another file"
echo "ok   found: file, snapshot and Artifact are named"

# The result, the quarantine and the names survive kill -9.
kill_daemon
serve
for _ in $(seq 50); do
  scrub 5 --status
  [ "$(field .owners_known)" = true ] && break
  sleep 0.1
done
expect "$(field '.findings[0].owners | length')" "$(wc -l <<<"$owners")" "owners after a restart"
expect "$(field .quarantined_blocks)" 1 "blocks in the quarantine after a restart"
cairn mount "$env" "$mnt" >/dev/null
timeout 20 cat "$w/hurt" >/dev/null 2>"$work/error" && fail "a damaged file reads"
grep -q "Input/output error" "$work/error" || fail "not EIO: $(cat "$work/error")"

# The same content again.
cp "$work/content" "$w/again"
third=$(cairn snapshot create "$env" | jq -er .id)
sealed "$third"
scrub 0 --status
expect "$(field '.findings[0].resolved')" true "resolved after the content was written again"
expect "$(field .quarantined_blocks)" 0 "blocks in the quarantine after healing"
cairn umount "$env" >/dev/null
cairn mount "$env" "$mnt" >/dev/null
timeout 20 cmp "$work/content" "$w/hurt" || fail "the old file is not healed"
cairn artifact get "$artifact" -o "$work/got" >/dev/null || fail "the Artifact is not healed"
cmp "$work/content" "$work/got" || fail "the Artifact is another"
scrub 0 --wait
expect "$(field '.findings | length')" 0 "findings after healing"
expect "$(field .damaged_garbage)" 1 "bad copies that nothing refers to"
cairn check >/dev/null || fail "check is not clean after healing"
echo "ok   healed by writing the same content again"

# One at a time; stopped, it waits.
head -c 40000000 /dev/urandom >"$w/much"
fourth=$(cairn snapshot create "$env" | jq -er .id)
sealed "$fourth"
cairn umount "$env" >/dev/null
scrub 0 --wait --rate-mb 1000
blocks=$(field .blocks) bytes=$(field .bytes) packs=$(field .packs)
scrub 0 --rate-mb 2
pass=$(field .pass)
scrub 4 --rate-mb 2
grep -q "is running" "$work/scrub" || fail "the refusal does not say why: $(cat "$work/scrub")"
scrub 0 --stop
expect "$(field .state)" stopped "state after --stop"
scrub 0 --rate-mb 2
expect "$(field .pass)" "$pass" "the pass after it was stopped"
echo "ok   one at a time, stopped and gone on"

# Killed in the middle, it goes on where it was: at most ten seconds at its rate, and a step, are verified again. Each block is counted once.
for _ in $(seq 600); do
  scrub 0 --status
  [ "$(field .bytes)" -lt 26000000 ] || break
  expect "$(field .state)" running "state before the kill"
  sleep 0.1
done
before=$(field .bytes)
[ "$before" -lt "$bytes" ] || fail "the pass ended before the kill"
kill_daemon
serve
scrub 0 --stop
expect "$(field .pass)" "$pass" "the pass after kill -9"
expect "$(field .state)" stopped "its state"
after=$(field .bytes)
[ "$after" -ge $((before - 24000000)) ] || fail "it begins anew after kill -9: $before bytes before, $after after"
scrub 0 --wait --rate-mb 1000
expect "$(field .pass)" "$pass" "the pass in the end"
expect "$(field .blocks) $(field .packs)" "$blocks $packs" "blocks and packs of the pass that was killed"
echo "ok   killed in the middle and gone on ($before bytes before, $after after, $bytes in all)"

# One that runs when the daemon is killed runs again by itself.
scrub 0 --rate-mb 30
kill_daemon
serve
for _ in $(seq 300); do
  scrub 0 --status
  [ "$(field .state)" != running ] && break
  sleep 0.1
done
expect "$(field .state) $(field .last_pass)" "finished $((pass + 1))" "the pass after kill -9, by itself"
echo "ok   goes on by itself"

# A pack that goes while nobody serves the directory: the index is made again without it, and only what refers to its blocks knows of it.
kill_daemon
rm "$(find "$data/packs" -name '*.pack' -size +1M | head -1)"
serve
scrub 5 --wait --rate-mb 1000
jq -e '[.findings[] | select(.what == "block is in no pack" and (.owners | length) > 0)] | length > 0' "$work/scrub" >/dev/null ||
  fail "a pack that was lost is not missed: $(cut -c1-500 "$work/scrub")"
kill_daemon
serve
scrub 5 --wait --rate-mb 1000
echo "ok   a pack that was lost while nobody served is missed, by every pass"
