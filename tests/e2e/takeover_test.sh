#!/usr/bin/env bash
# The server is killed, or told to hand over, again and again: what works on its mount does not notice, snapshots before and after are whole, nothing
# is left.   takeover_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
here=$(dirname "$(readlink -f "$0")")

server() { # the pid of the one that serves now
  local try
  for try in $(seq 300); do
    cairn ping 2>/dev/null | jq -er .pid && return
    sleep 0.05
  done
  fail "no server comes back (try $try)"
}

serve
cairn org create takeover >/dev/null
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
keeper=$(keeper_of "$(server)")

python3 "$here/takeover_workload.py" "$mnt/workspace" "$work/enough" >"$work/workload" 2>&1 &
workload=$!
# Snapshots all the while, by a caller that loses answers: it asks whether the operation was done, and does it again when it was not.
(
  n=0
  while [ ! -e "$work/enough" ]; do
    n=$((n + 1))
    operation=op_$(printf '%032x' "$n")
    until cairn snapshot create "$env" --operation "$operation" >"$work/snapshot" 2>&1; do
      if cairn operation show "$operation" >"$work/operation" 2>&1; then
        [ "$(jq -r .phase "$work/operation")" = "done" ] || exit 1
        echo "$operation" >>"$work/asked"
      fi
    done
    until cairn operation show "$operation" >"$work/operation" 2>/dev/null; do sleep 0.05; done
    [ "$(jq -r .result "$work/operation")" = "$(jq -r .id "$work/snapshot")" ] || exit 1
    echo "$operation" >>"$work/operations"
    sleep 0.3
  done
) &
snapshots=$!
touch "$work/asked"
loops="$workload $snapshots"
for round in $(seq 12); do
  sleep "0.$((RANDOM % 10))"
  kill -0 $workload 2>/dev/null || fail "the workload ended by itself: $(cat "$work/workload")"
  pid=$(server)
  if [ $((round % 4)) = 0 ]; then
    kill -TERM "$pid"
  else
    kill -KILL "$pid"
  fi
  for _ in $(seq 600); do
    [ "$(server)" = "$pid" ] || break
    sleep 0.02
  done
  [ "$(server)" != "$pid" ] || fail "server $pid did not go"
  expect "$(keeper_of "$(server)")" "$keeper" "the keeper"
  expect "$(cairn env show "$env" | jq -r .mounted_at)" "$mnt" "where it is mounted"
done
touch "$work/enough"
code=0
wait $workload || code=$?
[ $code = 0 ] || fail "the workload noticed: $(cat "$work/workload")"
wait $snapshots || fail "a snapshot is neither done nor to be done: $(cat "$work/snapshot" "$work/operation" 2>/dev/null)"
echo "ok   9 kills and 3 times SIGTERM cost nothing: $(cat "$work/workload")"

grep -c mount_taken_over "$work/log" >"$work/taken"
[ "$(cat "$work/taken")" -ge 12 ] || fail "taken over $(cat "$work/taken") times"
for _ in $(seq 100); do
  [ "$(cairn env show "$env" | jq -r .volume.open_handles)" = 0 ] && break
  sleep 0.1
done
expect "$(cairn env show "$env" | jq -r .volume.open_handles)" 0 "open files in the end"
cairn check >"$work/check" || fail "check: $(cat "$work/check")"
cairn umount "$env" >/dev/null
expect "$(cairn snapshot list --env "$env" | jq ".data | length")" "$(wc -l <"$work/operations")" "snapshots, each done once"
echo "ok   check is clean, nothing is open, $(wc -l <"$work/operations") snapshots done once each, $(wc -l <"$work/asked") of them by asking"

# SIGTERM to the keeper ends all; the directory serves again.
cairn mount "$env" "$mnt" >/dev/null
kill -KILL "$(server)"
server >/dev/null
stop_cleanly
mountpoint -q "$mnt" && fail "still mounted after SIGTERM to the keeper"
serve
cairn mount "$env" "$mnt" >/dev/null
[ -s "$mnt/workspace/database" ] || fail "the database is gone"
cairn umount "$env" >/dev/null
# Both at once, and nothing is mounted: the server hands over to nobody.
pid=$(server)
kill -TERM "$pid" "$(keeper_of "$pid")"
gone || fail "it does not stop when server and keeper are told at once"
[ ! -e "$CAIRN_SOCKET" ] || fail "the socket was left behind"
echo "ok   SIGTERM to the keeper unmounts and stops all"
