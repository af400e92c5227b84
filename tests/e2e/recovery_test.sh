#!/usr/bin/env bash
# What the daemon does by itself when index and packs disagree, what check --rebuild-index says, and that kill -9 leaves no file that nothing
# knows: in the end everything is deleted, and nothing is left.   recovery_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

keep() { # keep NAME: the stopped data directory as it is
  rm -rf "${work:?}/$1"
  cp -a "$data" "$work/$1"
}
fresh() { # fresh NAME: that directory again
  kill_daemon
  find "${data:?}" -mindepth 1 -delete # the folder itself stays: another one would be a copy, and fenced
  cp -a "$work/$1/." "$data"
  : >"$work/log"
}
clean() { # everything reads and check finds nothing
  cairn check >"$work/check" || fail "check: $(cat "$work/check")"
  cairn mount "$env" "$mnt" >/dev/null
  (cd "$mnt/workspace" && timeout 60 sha256sum -c --quiet "$work/sums") || fail "$1: files differ"
  cairn umount "$env" >/dev/null
}
packs() { find "$data/packs" -name '*.pack' | sort; }

serve
stop_cleanly
cp -a "$data/index" "$work/empty_index"
serve
cairn org create recovery >/dev/null
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
mkdir "$mnt/workspace/d"
head -c 2000000 /dev/urandom >"$mnt/workspace/a"
for i in $(seq 50); do echo "$i" >"$mnt/workspace/d/$i"; done
stop_cleanly
cp -a "$data/index" "$work/old_index"
serve
cairn mount "$env" "$mnt" >/dev/null
head -c 1000000 /dev/urandom >"$mnt/workspace/b"
(cd "$mnt/workspace" && find . -type f ! -path './.outputs/*' -exec sha256sum {} +) >"$work/sums"
stop_cleanly
keep whole
[ "$(packs | wc -l)" -ge 2 ] || fail "the preparation made one pack only"

fresh whole
rm -rf "$data/index"
serve
clean "index lost"
grep -q "packs_indexed" "$work/log" || fail "the log does not say that packs were indexed"
cairn check --rebuild-index >"$work/check" || fail "check --rebuild-index: $(cat "$work/check")"
expect "$(jq .index.packs "$work/check")" "$(packs | wc -l)" "packs indexed"
clean "index lost, and rebuilt once more"
echo "ok   index lost"

# A sound database without an entry.
fresh whole
rm -rf "$data/index"
cp -a "$work/empty_index" "$data/index"
serve
clean "index emptied"
cairn check --rebuild-index >"$work/check" || fail "check --rebuild-index: $(cat "$work/check")"
expect "$(jq .index.packs "$work/check")" "$(packs | wc -l)" "packs indexed"
clean "index emptied, and rebuilt once more"
echo "ok   index emptied"

fresh whole
rm -rf "$data/index"
cp -a "$work/old_index" "$data/index"
serve
clean "index behind"
echo "ok   index behind the packs"

fresh whole
for pack in $(packs); do truncate -s -40 "$pack"; done
rm -rf "$data/index"
serve
clean "footers missing"
echo "ok   footers missing"

fresh whole
for pack in $(packs); do head -c 777 /dev/urandom >>"$pack"; done
serve
clean "torn tails"
echo "ok   torn tails"

# The index is ahead of the packs: one is gone. What was in it is named, the rest goes on.
fresh whole
gone=$(find "$data/packs" -name '*.pack' -printf '%s %p\n' | sort -rn | head -1 | cut -d' ' -f2)
rm "$gone"
serve
grep "pack_missing" "$work/log" | grep -q "$(basename "$gone")" || fail "the log does not name the missing pack"
code=0
cairn check >"$work/check" || code=$?
expect "$code" 5 "exit code of check with a pack missing"
grep -q "environment $env" "$work/check" || fail "no owner is named: $(cat "$work/check")"
other=$(cairn env create --name other | jq -er .id)
cairn mount "$other" "$mnt" >/dev/null && echo x >"$mnt/workspace/x" && sync "$mnt/workspace/x" || fail "another Environment is hurt"
echo "ok   pack missing"

# Rebuilt under a running daemon, with a file open on the mount.
fresh whole
serve
cairn mount "$env" "$mnt" >/dev/null
exec 9<"$mnt/workspace/a"
cairn check --rebuild-index >"$work/check" || fail "check --rebuild-index: $(cat "$work/check")"
expect "$(jq .index.packs "$work/check")" "$(packs | wc -l)" "packs indexed"
expect "$(jq .index.packs_total "$work/check")" "$(packs | wc -l)" "packs"
expect "$(jq '.index.left_out | length' "$work/check")" 0 "left out"
expect "$(jq .index.blocks "$work/check")" "$(cairn stats | jq .block_count)" "blocks indexed"
timeout 20 sha256sum <&9 | grep -q "$(grep ' ./a$' "$work/sums" | cut -d' ' -f1)" || fail "the open file reads differently"
exec 9<&-
timeout 60 "$build/bin/cairn" check --rebuild-index | grep -q "index rebuilt: $(packs | wc -l) of $(packs | wc -l) packs" || fail "the table says no result"
# A pack that cannot be indexed is named with the reason. (Header and trailer are gone.)
pack=$(packs | head -1)
printf 'xxxx' | dd of="$pack" bs=1 seek=20 conv=notrunc status=none
printf 'xxxx' | dd of="$pack" bs=1 seek=$(($(stat -c %s "$pack") - 6)) conv=notrunc status=none
code=0
cairn check --rebuild-index >"$work/check" || code=$?
expect "$code" 5 "exit code with a pack that cannot be indexed"
jq -e --arg pack "$(basename "$pack")" '.index.left_out[] | select(.where | contains($pack)) | .why | length > 0' "$work/check" >/dev/null ||
  fail "what was left out is not named: $(jq .index "$work/check")"
cairn umount "$env" >/dev/null
echo "ok   check --rebuild-index on a running daemon"

# A journal that is made ahead has such a name for a moment.
no_temporary_files() {
  local found
  for _ in $(seq 100); do
    found=$(find "$data" -name '*.tmp')
    [ -n "$found" ] || return 0
    sleep 0.1
  done
  fail "temporary files $1: $found"
}

# kill -9 under load, three times; then everything is deleted and nothing is left.
fresh whole
for round in 1 2 3; do
  serve
  cairn mount "$env" "$mnt" >/dev/null
  (
    for i in $(seq 1000); do
      head -c 300000 /dev/urandom >"$mnt/workspace/load$((i % 7))" || exit 0
      cairn snapshot create "$env" >/dev/null || exit 0
      [ $((i % 4)) -ne 0 ] || cairn gc >/dev/null || exit 0
    done
  ) >/dev/null 2>&1 &
  load=$!
  sleep "1.$round"
  kill_daemon
  wait "$load" || true
done
serve
cairn check >"$work/check" || fail "check after the kills: $(cat "$work/check")"
known=$(cairn stats | jq '.pack_bytes')
found=$(find "$data/packs" "$data/trash" -type f -printf '%s\n' | awk '{s += $1} END {print s + 0}')
expect "$found" "$known" "bytes in packs/ and trash/ against what the store knows"
no_temporary_files "after the kills"
for e in $(cairn env list | jq -r '.data[].id'); do cairn env delete "$e" --confirm "$e" >/dev/null; done
cairn reap >/dev/null
cairn reap >/dev/null
cairn gc --now >/dev/null
expect "$(find "$data/packs" "$data/trash" -type f | wc -l)" 0 "pack files in the end ($(cairn stats))"
expect "$(find "$data/volumes" -mindepth 1 | wc -l)" 0 "files below volumes/ in the end ($(find "$data/volumes" -mindepth 1 | head -3))"
no_temporary_files "in the end"
cairn check >/dev/null || fail "check in the end"
echo "ok   nothing is left after kills"
