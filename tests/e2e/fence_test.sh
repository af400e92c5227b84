#!/usr/bin/env bash
# Where the master key comes from, and copies of a data directory: a second daemon on a copy is refused, while the original is served and
# afterwards, until the copy is adopted; then the two go apart.   fence_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

original=$data

# ---- the master key ----
key=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo "$key" >"$work/key"
chmod 0640 "$work/key"
refused_as "$original" "$work/key has mode 0640, not 0600" --master-key "$work/key"
chmod 0600 "$work/key" && chown 65534 "$work/key"
refused_as "$original" "$work/key belongs to user 65534" --master-key "$work/key"
chown 0 "$work/key"
echo "${key}00" >"$work/long" && chmod 0600 "$work/long"
refused_as "$original" "$work/long is not 64 hex digits" --master-key "$work/long"
refused_as "$original" "missing" --master-key "$work/absent"
refused_as "$original" "ended with status 7" --master-key-command "echo $key; exit 7"
refused_as "$original" "not 64 hex digits" --master-key-command "echo ${key:2}"
grep -qF "${key:4:20}" "$work/log" && fail "a key is in the log"
[ ! -e "$original/cairn.format" ] || fail "a refused start initialised the directory"
serve --master-key-command "cat $work/key"
[ ! -e "$original/master.key" ] || fail "a key was made although a command gives one"
cairn org create fence >/dev/null
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
echo whole >"$mnt/workspace/file" && sync "$mnt/workspace/file"
umount "$mnt"
stop_cleanly
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/other" && chmod 0600 "$work/other"
refused_as "$original" "of another data directory" --master-key "$work/other"
serve --master-key "$work/key"
echo "ok   files and commands"

# ---- copies ----
cp -a "$original" "$work/copy"
pid=$(cairn ping | jq -er .pid)
refused_as "$work/copy" "served already .process $pid serves it in $original" --master-key "$work/key"
kill_daemon
wait || true
refused_as "$work/copy" "copied or moved.*--adopt" --master-key "$work/key"
mv "$original" "$work/renamed" # a rename is no copy
as "$work/renamed" serve --master-key "$work/key"
refused_as "$work/copy" "served already" --master-key "$work/key"
as "$work/copy" start --adopt --master-key "$work/key" || fail "a copy is not adopted"
for dir in "$work/copy" "$work/renamed"; do
  as "$dir" cairn env export "$env" "$work/out.$(basename "$dir")" >/dev/null
  expect "$(cat "$work/out.$(basename "$dir")/workspace/file")" whole "the file in $dir"
  as "$dir" cairn check >/dev/null || fail "$dir: check is not clean"
done
as "$work/copy" stop_served
as "$work/copy" serve --master-key "$work/key" # it is at home now
as "$work/copy" stop_served
as "$work/renamed" stop_served
echo "ok   copies are fenced until they are adopted"
