#!/usr/bin/env bash
# Real programs on a mount whose server is killed every two seconds: a git clone, a C++ build, pgbench, SQLite. None of them may notice. Prints the stalls
# that a caller saw.   takeover_programs.sh BUILD_DIR [SECONDS_BETWEEN_KILLS]
# Run by hand (./dev soak programs): it takes minutes.
between=${2:-2}
set -- "$1"
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
here=$(dirname "$(readlink -f "$0")")
repo=$(readlink -f "$here/../..")
postgres=$(find /usr/lib/postgresql -name initdb -printf '%h\n' 2>/dev/null | head -n 1)
[ -n "$postgres" ] || fail "PostgreSQL is not installed"

serve
cairn org create soak >/dev/null
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
w=$mnt/workspace
chmod 755 "$work"

echo 0 >"$work/kills"
kills() { # until $work/enough is there
  local pid n=0
  while [ ! -e "$work/enough" ]; do
    sleep "$between"
    pid=$(cairn ping 2>/dev/null | jq -er .pid) || continue
    kill -KILL "$pid" && n=$((n + 1))
    echo $n >"$work/kills"
  done
}
program() { # program NAME FUNCTION: under kills
  local began code=0 before after
  began=$(date +%s)
  before=$(cat "$work/kills")
  "$2" >"$work/output" 2>&1 || code=$?
  after=$(cat "$work/kills")
  [ $code = 0 ] || fail "$1 noticed (exit code $code): $(tail -n 20 "$work/output")"
  [ "$after" -gt "$before" ] || fail "$1: no kill came while it ran"
  echo "ok   $1: $((after - before)) kills in $(($(date +%s) - began)) s: $(tail -n 1 "$work/output" | cut -c1-150)"
}
clone() { # until a kill has come
  local before
  before=$(cat "$work/kills")
  while :; do
    rm -rf "$w/clone"
    clone_once || return 1
    [ "$(cat "$work/kills")" = "$before" ] || return 0
  done
}
clone_once() {
  git clone -q --no-hardlinks "file://$repo" "$w/clone" || return 1
  git -C "$w/clone" fsck --full || return 1
  [ -z "$(git -C "$w/clone" status --porcelain)" ] || return 1
  git -C "$w/clone" gc -q || return 1
  git -C "$w/clone" fsck --full || return 1
  echo "$(git -C "$w/clone" rev-list --count HEAD) commits, $(git -C "$w/clone" ls-files | wc -l) files"
}
build_it() { # what is built here is run
  cmake -S "$w/clone" -B "$w/objects" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCAIRN_TESTS=OFF || return 1
  ninja -C "$w/objects" -j2 cairn-keeper cairn-barrier || return 1
  "$w/objects/bin/cairn-keeper" && return 1 # usage
  ninja -C "$w/objects" -n cairn-keeper | grep -q "no work to do" || return 1
  echo "$(find "$w/objects" -name '*.o' | wc -l) objects"
}
as_postgres() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
bench_postgres() {
  local code=0
  install -d -o postgres -m 700 "$w/pg" || return 1
  as_postgres "$postgres/initdb" -D "$w/pg" --no-instructions || return 1
  as_postgres "$postgres/pg_ctl" -D "$w/pg" -w -t 120 -l /dev/null \
    -o "-c listen_addresses='' -c unix_socket_directories=$w/pg" start || return 1
  as_postgres "$postgres/createdb" -h "$w/pg" soak && as_postgres "$postgres/pgbench" -h "$w/pg" -q -i -s 5 soak &&
    as_postgres "$postgres/pgbench" -h "$w/pg" -c 4 -j 2 -T 40 soak || code=1
  [ $code != 0 ] || [ "$(as_postgres "$postgres/psql" -h "$w/pg" -tAc \
    'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)' soak)" = t ] || code=1
  as_postgres "$postgres/pg_ctl" -D "$w/pg" -w -m fast stop || code=1
  return $code
}
use_sqlite() {
  (sleep 40 && touch "$work/sqlite") &
  python3 "$here/takeover_workload.py" "$w" "$work/sqlite"
}

python3 "$here/stalls.py" "$w" "$work/enough" >"$work/stalls" 2>&1 &
stalls=$!
kills &
loops="$stalls $!"
program "git clone" clone
program "C++ build" build_it
program "pgbench" bench_postgres
program "SQLite" use_sqlite
touch "$work/enough"
wait $stalls || fail "the prober noticed: $(cat "$work/stalls")"
cat "$work/stalls"
sleep 3
for _ in $(seq 100); do
  [ "$(cairn env show "$env" | jq -r .volume.open_handles)" = 0 ] && break
  sleep 0.1
done
expect "$(cairn env show "$env" | jq -r .volume.open_handles)" 0 "open files in the end"
cairn umount "$env" >/dev/null
cairn check >"$work/check" || fail "check: $(cat "$work/check")"
stop_cleanly
echo "ok   check is clean, nothing is open"
