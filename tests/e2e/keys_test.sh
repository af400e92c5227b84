#!/usr/bin/env bash
# Master keys from files and commands; rotation of the master key and of an organization's key while a mount is written to, with kill -9 in the
# middle: what was fsynced is there, whichever key counts.   keys_test.sh BUILD_DIR [SEED]
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
seed=${2:-$RANDOM}
echo "seed $seed"
RANDOM=$seed

refused() { # refused PATTERN ARGS...: cairnd does not start, and says why
  local pattern=$1
  shift
  : >"$work/log"
  if start "$@"; then fail "the daemon starts with $*"; fi
  grep -qE "$pattern" "$work/log" || fail "'$pattern' is not said"
}

# ---- where it comes from ----
key=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo "$key" >"$work/key"
chmod 0640 "$work/key"
refused "$work/key has mode 0640" --master-key "$work/key"
chmod 0600 "$work/key"
echo "${key}00" >"$work/long" && chmod 0600 "$work/long"
refused "$work/long is not 64 hex digits" --master-key "$work/long"
refused "missing" --master-key "$work/absent"
refused "ended with status 7" --master-key-command "echo $key; exit 7"
refused "not 64 hex digits" --master-key-command "echo ${key:2}"
grep -qF "${key:4:20}" "$work/log" && fail "a key is in the log"
[ ! -e "$data/cairn.format" ] || fail "a refused start initialised the directory"
serve --master-key-command "cat $work/key"
[ ! -e "$data/master.key" ] || fail "a key was made although a command gives one"
org=$(cairn org create keys | jq -er .id)
stop_cleanly
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/other" && chmod 0600 "$work/other"
refused "of another data directory" --master-key "$work/other"
chown 65534 "$work/other"
refused "$work/other belongs to user 65534" --master-key "$work/other"
echo "ok   files and commands"

# ---- no data is rewritten ----
stored() { (cd "$data" && find packs volumes -type f -print0 | sort -z | xargs -0 sha256sum); }
serve --master-key "$work/key"
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
head -c 3000000 /dev/urandom >"$mnt/workspace/sealed" && sync "$mnt/workspace/sealed"
cairn snapshot create "$env" >/dev/null
head -c 300000 /dev/urandom >"$mnt/workspace/unsealed" && sync "$mnt/workspace/unsealed"
sha256sum "$mnt/workspace/"*sealed >"$work/sums"
kill_daemon
serve --master-key "$work/key"
stored >"$work/stored"
[ "$(wc -l <"$work/stored")" -ge 3 ] || fail "nothing is stored: $(cat "$work/stored")"
cairn key rotate-master >/dev/null
cairn org rotate-key "$org" >/dev/null
cairn key rotate-master >/dev/null
stored | cmp - "$work/stored" || fail "a rotation changed packs or journals"
kill_daemon
stored | cmp - "$work/stored" || fail "a rotation changed packs or journals"
serve --master-key "$work/key"
cairn mount "$env" "$mnt" >/dev/null
sha256sum -c --quiet "$work/sums" || fail "a file is gone or changed after rotations"
umount "$mnt"
stop_cleanly
key=$(cat "$work/key")
echo "ok   rotations leave $(wc -l <"$work/stored") packs and journals as they are"

# ---- under load ----
options=(--master-key "$work/key")
serve "${options[@]}"
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
all_there() {
  (cd "$mnt/workspace" && timeout 60 sha256sum -c --quiet "$work/durable") || fail "$1: an fsynced file is gone or changed"
}
durable() { wc -l <"$work/durable"; }
: >"$work/durable"
writer 1 &
while [ "$(durable)" -lt 3 ]; do sleep 0.05; done
expect "$(cairn org rotate-key "$org" | jq -er .key_id)" 3 "version of the key"
expect "$(cairn key rotate-master | jq -er .state)" rotated "rotation of the master key"
expect "$(cairn org rotate-key "$org" | jq -er .key_id)" 4 "version of the key"
cairn snapshot create "$env" >/dev/null
n=$(durable)
while [ "$(durable)" -lt $((n + 3)) ]; do sleep 0.05; done
[ "$(cat "$work/key")" != "$key" ] || fail "the key in the file is the old one"
all_there "after rotations"
kill_daemon
wait || true
echo "$key" >"$work/old" && chmod 0600 "$work/old"
refused "before or after a rotation" --master-key "$work/old"
serve "${options[@]}"
cairn mount "$env" "$mnt" >/dev/null
all_there "after kill -9"
cairn check >/dev/null || fail "check is not clean"
echo "ok   rotations under load: $(durable) files"

# ---- kill -9 in the middle ----
for round in 1 2 3 4; do
  writer $((round * 100000)) &
  for _ in $(seq 20); do cairn key rotate-master && cairn org rotate-key "$org"; done >/dev/null 2>&1 &
  sleep "0.$((RANDOM % 7 + 2))"
  kill_daemon
  wait || true
  serve "${options[@]}"
  cairn mount "$env" "$mnt" >/dev/null
  all_there "round $round"
done
cairn check >/dev/null || fail "check is not clean"
echo "ok   kill -9 during rotations: $(durable) files, version $(cairn org rotate-key "$org" | jq -er .key_id)"

# ---- a key of the operator's ----
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/new" && chmod 0600 "$work/new"
expect "$(cairn key rotate-master --new-key "$work/new" | jq -er .state)" pending "rotation to a key of one's own"
cairn key rotate-master --finish >"$work/out" 2>&1 && fail "a rotation ends although the source gives the old key"
umount "$mnt"
stop_cleanly
serve "${options[@]}" # either opens it
stop_cleanly
serve --master-key "$work/new"
cairn mount "$env" "$mnt" >/dev/null
all_there "with the operator's key"
umount "$mnt"
stop_cleanly
refused "before or after a rotation" "${options[@]}"
echo "ok   a key of the operator's: pending until it is given"
