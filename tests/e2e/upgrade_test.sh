#!/usr/bin/env bash
# The server's program is replaced while it serves: no call fails, on the mount, on the host socket or over HTTP; a program that will not do is refused or
# taken back; the keeper is replaced too.   upgrade_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
here=$(dirname "$(readlink -f "$0")")

# Programs of its own, to be replaced. What is started from them is found by its environment and ended in the end.
stub=$build/bin/stub_server
installed=$work/bin
mkdir "$installed"
for program in cairnd cairn-keeper cairn-barrier; do cp "$build/bin/$program" "$installed/$program"; done
daemon_pids() {
  local process
  find /proc -mindepth 2 -maxdepth 2 -name exe -lname "$installed/*" -printf '%h\n' 2>/dev/null | sed 's|^/proc/||'
}
install() { # install PROGRAM NAME: as a package manager does it
  cp "$1" "$installed/$2.new"
  mv "$installed/$2.new" "$installed/$2"
}
ping_field() { cairn ping | jq -er "$1"; }
upgrade() { # upgrade EXIT_CODE ARGS...: the answer in $work/upgrade
  local want=$1 code=0
  shift
  cairn upgrade "$@" >"$work/upgrade" 2>&1 || code=$?
  expect "$code" "$want" "exit code of upgrade $* ($(cat "$work/upgrade"))"
}

"$installed/cairnd" --data "$data" --socket "$CAIRN_SOCKET" --listen 127.0.0.1:0 "${limits[@]}" >>"$work/log" 2>&1 &
for _ in $(seq 300); do
  cairn ping >/dev/null 2>&1 && break
  sleep 0.1
done
port=$(sed -n 's/.* ready .*http=127.0.0.1:\([0-9]*\)$/\1/p' "$work/log" | head -n 1)
cairn org create upgrade >/dev/null
key=$(cairn key create --name test | jq -er .secret)
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
keeper=$(ping_field .keeper_pid)
expect "$(keeper_of "$(ping_field .pid)")" "$keeper" "the server's parent"

python3 "$here/takeover_workload.py" "$mnt/workspace" "$work/enough" >"$work/workload" 2>&1 &
workload=$!
# A new connection for each call: none is refused, none is broken off.
(while [ ! -e "$work/answered" ]; do
  code=$(curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $key" -H 'OpenAI-Beta: agents=v1' \
    "http://127.0.0.1:$port/v1/agents/environments/$env") || echo "curl ended with $?"
  echo "$code"
done) >"$work/http" 2>&1 &
calls=$!
(while [ ! -e "$work/answered" ]; do
  timeout 60 "$build/bin/cairn" env show "$env" >/dev/null || echo "cairn ended with $?"
  echo answered
done) >"$work/host" 2>&1 &
host_calls=$!
loops="$workload $calls $host_calls"

for _ in 1 2 3 4; do
  before=$(ping_field .pid)
  install "$build/bin/cairnd" cairnd
  upgrade 0
  expect "$(jq -r .state "$work/upgrade")" "done" "state"
  expect "$(jq -r .pid "$work/upgrade")" "$(ping_field .pid)" "pid of the new one"
  [ "$(ping_field .pid)" != "$before" ] || fail "the same server goes on"
  expect "$(readlink "/proc/$(ping_field .pid)/exe")" "$installed/cairnd" "the program that runs"
  expect "$(keeper_of "$(ping_field .pid)")" "$keeper" "the keeper"
  sleep 0.3
done
echo "ok   four upgrades: $(jq -c '{state, took_ms}' "$work/upgrade")"

# ---- programs that will not do ----
good=$(ping_field .pid)
install "$stub" cairnd
echo refuses >"$installed/cairnd.mode"
upgrade 4
grep -q "format is too new" "$work/upgrade" || fail "the refusal does not say why: $(cat "$work/upgrade")"
expect "$(ping_field .pid)" "$good" "the server after a refusal"
echo exits >"$installed/cairnd.mode"
upgrade 1
expect "$(jq -r .state "$work/upgrade")" fell_back "state after a program that ends"
jq -r .why "$work/upgrade" | grep -q "status 7" || fail "it does not say why: $(cat "$work/upgrade")"
echo hangs >"$installed/cairnd.mode"
upgrade 1 --ready-timeout 1
expect "$(jq -r .state "$work/upgrade")" fell_back "state after a program that hangs"
jq -r .why "$work/upgrade" | grep -q "not ready within 1000 ms" || fail "it does not say why: $(cat "$work/upgrade")"
rm "$installed/cairnd"
upgrade 4
install "$build/bin/cairnd" cairnd
upgrade 0
echo "ok   a program that refuses, ends, hangs or is gone leaves the one that serves"

# ---- the keeper ----
server=$(ping_field .pid)
install "$build/bin/cairn-keeper" cairn-keeper
upgrade 0 --keeper
expect "$(readlink "/proc/$keeper/exe")" "$installed/cairn-keeper" "the keeper's program"
expect "$(ping_field .pid)" "$server" "the server after the keeper's upgrade"
install "$stub" cairn-keeper # it does not understand the state
upgrade 4 --keeper
install "$build/bin/cairn-keeper" cairn-keeper
upgrade 0 --keeper
upgrade 0
echo "ok   the keeper was replaced under its server"

touch "$work/answered"
wait $calls $host_calls || true
expect "$(sort "$work/http" | uniq -c | awk '{print $2}')" 200 "answers over HTTP: $(sort "$work/http" | uniq -c)"
expect "$(sort "$work/host" | uniq -c | awk '{print $2}')" answered "calls on the socket: $(sort "$work/host" | uniq -c)"
echo "ok   no call failed: $(wc -l <"$work/http") over HTTP, $(wc -l <"$work/host") on the socket"

# ---- kills: what is on disk then is not what is started ----
again() { # waits for the next server
  for _ in $(seq 100); do
    cairn ping >/dev/null 2>&1 && return
    sleep 0.05
  done
  fail "no server comes back"
}
install "$stub" cairnd
kill -KILL "$(ping_field .pid)"
again
readlink "/proc/$(ping_field .pid)/exe" | grep -q "cairnd (deleted)" || fail "another program was started: $(readlink "/proc/$(ping_field .pid)/exe")"
expect "$(keeper_of "$(ping_field .pid)")" "$keeper" "the keeper, itself replaced, that started it"
install "$build/bin/cairnd" cairnd
upgrade 0
touch "$work/enough"
code=0
wait $workload || code=$?
[ $code = 0 ] || fail "the workload noticed: $(cat "$work/workload")"
echo "ok   a killed server is followed by the same program: $(cat "$work/workload")"
cairn check >"$work/check" || fail "check: $(cat "$work/check")"

kill -TERM "$keeper"
gone || fail "the daemon does not stop on SIGTERM"
mountpoint -q "$mnt" && fail "still mounted after SIGTERM to the keeper"
[ ! -e "$CAIRN_SOCKET" ] || fail "the socket file is left"
echo "ok   SIGTERM to the keeper unmounts and stops all"

# ---- sockets of a service manager ----
python3 "$here/activate.py" "$CAIRN_SOCKET" "$installed/cairn-keeper" -- "$installed/cairnd" --data "$data" --socket "$CAIRN_SOCKET" >"$work/activated" 2>>"$work/log" &
loops=$!
for _ in $(seq 300); do
  grep -q READY=1 "$work/activated" && break
  sleep 0.1
done
expect "$(sed -n 2p "$work/activated")" READY=1 "what the manager is told"
port=$(sed -n 1p "$work/activated")
keeper=$(ping_field .keeper_pid)
upgrade 0
expect "$(curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $key" -H 'OpenAI-Beta: agents=v1' "http://127.0.0.1:$port/v1/agents/environments/$env")" 200 "HTTP on the manager's socket"
kill -TERM "$keeper"
gone || fail "the daemon does not stop on SIGTERM"
wait "$loops" || fail "it ends with $?"
[ -S "$CAIRN_SOCKET" ] || fail "the manager's socket file is removed"
echo "ok   it serves on sockets that it is given, and leaves them"
