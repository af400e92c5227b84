#!/usr/bin/env bash
# The whole story on real input: an organization, an Environment, a working tree with a clone, a build, a database and a large
# unpack; a snapshot under a writer; a fork; a pause with a process's memory; kill -9 of everything; resume; a turn that publishes;
# the deletion rules; reaping, collecting and checking. Every step asserts what it shows. Usage: demo.sh BUILD_DIR
set -euo pipefail
repo=$(dirname "$(dirname "$(readlink -f "$0")")")
build=$(readlink -f "${1:?usage: demo.sh BUILD_DIR}")
bin=$build/bin
work=$(mktemp -d "${TMPDIR:-/tmp}/cairn-demo.XXXXXX")
data=$work/data
export CAIRN_SOCKET=$work/cairn.sock
port=$((20000 + RANDOM % 20000))
base=http://127.0.0.1:$port
started=$SECONDS
keeper=""
rows=()
step="before the first step"
step_started=$SECONDS

cairn() { timeout 120 "$bin/cairn" "$@"; }
json() { cairn --json "$@"; }
field() { jq -er "$1"; }
say() { printf '   %s\n' "$*"; }
fail() {
  printf '\ndemo: FAILED in step "%s": %s\n' "$step" "$*" >&2
  [ -s "$work/cairnd.log" ] && { echo "--- last lines of the daemon's log"; tail -n 15 "$work/cairnd.log"; } >&2
  exit 1
}
begin() {
  step=$1
  step_started=$SECONDS
  printf '\n== %s\n' "$step"
}
done_step() { rows+=("$step|$1|$((SECONDS - step_started)) s"); }
expect() { [ "$1" = "$2" ] || fail "$3: expected '$2', got '$1'"; }
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

# Every process of this run carries it, whoever its parent is by then: other daemons of the same build are left alone.
export CAIRN_DEMO=$work
our_pids() {
  local process
  find /proc -mindepth 2 -maxdepth 2 -name exe -lname "$bin/cairn*" -printf '%h\n' 2>/dev/null |
    while read -r process; do
      if { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "CAIRN_DEMO=$work"; then echo "${process#/proc/}"; fi
    done || true # a process may end while it is looked at
}
left_mounts() { awk -v a="$work/" 'index($2 "/", a) == 1 {print $2}' /proc/self/mounts | tac; }
kill_all() {
  local pid
  for pid in $(our_pids); do kill -KILL "$pid" 2>/dev/null || true; done
  [ -z "$keeper" ] || wait "$keeper" 2>/dev/null || true
  keeper=""
  local mount
  for mount in $(left_mounts); do timeout 10 fusermount3 -uz "$mount" 2>/dev/null || umount -l "$mount" 2>/dev/null || true; done
}
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  local status=$?
  trap - ERR
  set +e
  [ -z "${writer:-}" ] || kill "$writer" 2>/dev/null
  if [ -n "$keeper" ] && kill -TERM "$keeper" 2>/dev/null; then
    for _ in $(seq 100); do kill -0 "$keeper" 2>/dev/null || break; sleep 0.1; done
  fi
  kill_all
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

start_daemon() {
  "$bin/cairnd" --data "$data" --socket "$CAIRN_SOCKET" --listen "127.0.0.1:$port" >>"$work/cairnd.log" 2>&1 &
  keeper=$!
  for _ in $(seq 200); do
    kill -0 "$keeper" 2>/dev/null || fail "the daemon ended while starting"
    if curl -fsS -o /dev/null "$base/readyz" 2>/dev/null && cairn stats >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  fail "the daemon was not ready in 20 s"
}
tree_digest() { (cd "$1" && find . -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1); }
sha() { sha256sum "$1" | cut -d' ' -f1; }
api() { curl -fsS -H "Authorization: Bearer $key" -H 'OpenAI-Beta: agents=v1' "$base$1"; }
status_of() { curl -sS -o "$work/body" -w '%{http_code}' -H "Authorization: Bearer $key" "${@:2}" "$base$1"; }

printf 'Cairn demo: data in %s\n' "$data"
step="start the daemon"
start_daemon

begin "organization, key, Environment, Session"
org=$(json org create demo | field .id)
export CAIRN_ORG=$org
key=$(json key create --name demo-key | field .secret)
session=$(json session create | field .id)
env=$(json session show "$session" | field .env)
expect "$(json env show "$env" | field .state)" pending "nothing is set up before first use"
say "$org  $env  $session"
done_step "private Environment $env"

mkdir -p "$work/mnt" "$work/fork_mnt"
m=$work/mnt
w=$m/workspace

begin "mount, clone this repository, build a module in the mount"
cairn mount "$env" "$m" >/dev/null
git -c safe.directory='*' clone -q "$repo" "$w/repo"
git -C "$w/repo" fsck --no-progress >/dev/null
git -C "$w/repo" status --porcelain | { ! grep -q .; } || fail "git status is not clean after the clone"
(cd "$w/repo" && timeout 170 cmake -G Ninja -B build -DCAIRN_TESTS=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 >/dev/null &&
  timeout 170 ninja -C build cairn_store_base >/dev/null)
objects=$(ar t "$w/repo/build/store/base/libcairn_store_base.a" | wc -l)
[ "$objects" -ge 5 ] || fail "the library built in the mount has $objects objects"
done_step "$(git -C "$w/repo" ls-files | wc -l) files cloned, $objects objects built"

begin "SQLite in WAL mode and with a rollback journal"
for mode in wal delete; do
  got=$(timeout 100 sqlite3 "$w/$mode.db" "pragma journal_mode=$mode; create table t(id integer primary key, v blob);
    with recursive n(i) as (select 1 union all select i+1 from n where i<20000) insert into t select i, randomblob(100) from n;
    update t set v=randomblob(80) where id%3=0; delete from t where id%7=0; pragma integrity_check; select count(*) from t;" | tail -n 2 | tr '\n' ' ')
  expect "$got" "ok 17143 " "sqlite $mode"
done
done_step "17143 rows, integrity ok, both modes"

begin "unpack /usr/include"
tar -C /usr -cf "$work/include.tar" include
mkdir "$w/include"
tar -C "$w/include" -xf "$work/include.tar"
files=$(find "$w/include" -type f | wc -l)
expect "$(tree_digest "$w/include/include")" "$(tree_digest /usr/include)" "digest of the unpacked tree"
done_step "$files files, digest equal"

begin "snapshot while a writer runs"
( trap - ERR; exec 3>"$w/log"; i=0; while :; do i=$((i + 1)); printf '%08d\n' $i >&3; echo $i >"$work/acknowledged"; done ) &
writer=$!
until [ "$(cat "$work/acknowledged" 2>/dev/null || echo 0)" -gt 500 ] 2>/dev/null; do sleep 0.05; done
before=""
until [ -n "$before" ]; do before=$(cat "$work/acknowledged"); done
snapshot=$(json snapshot create "$env" --name under-load | field .id)
after=""
until [ -n "$after" ]; do after=$(cat "$work/acknowledged"); done
kill "$writer"; wait "$writer" 2>/dev/null || true; writer=""
fork=$(json fork "$snapshot" --name look | field .id)
cairn mount "$fork" "$work/fork_mnt" >/dev/null
in_snapshot=$(wc -l <"$work/fork_mnt/workspace/log")
[ "$in_snapshot" -ge "$before" ] || fail "write() had returned for record $before, the snapshot holds $in_snapshot"
expect "$(head -n "$in_snapshot" "$w/log" | sha256sum)" "$(head -n "$in_snapshot" "$work/fork_mnt/workspace/log" | sha256sum)" "records in the snapshot"
expect "$(tree_digest "$work/fork_mnt/workspace/include/include")" "$(tree_digest "$w/include/include")" "tree in the snapshot"
done_step "$before acknowledged before, $in_snapshot in it, $after when it returned"

begin "a fork goes its own way"
echo fork >"$work/fork_mnt/workspace/who"
echo origin >"$w/who"
rm -r "$work/fork_mnt/workspace/include"
[ -d "$w/include/include" ] || fail "removing in the fork removed in the origin"
expect "$(cat "$w/who") $(cat "$work/fork_mnt/workspace/who")" "origin fork" "contents after both wrote"
cairn umount "$work/fork_mnt" >/dev/null
done_step "origin and fork differ, neither sees the other"

begin "pause with 256 MiB of real process memory"
python3 - "$work/memory" "$work/vmstate" <<'PY'
# A process fills its memory with what programs hold (source text, dictionaries, numbers) and dumps its own writable pages.
import os, sys
size = 256 << 20
held = [open(os.path.join(d, f), 'rb').read() for d, _, fs in os.walk('/usr/lib/python3') for f in fs[:40]][:4000]
tables = [{str(i): i * j for i in range(2000)} for j in range(60)]
done = 0
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as mem, open(sys.argv[1], 'wb') as out:
    regions = [line.split()[:2] for line in maps]
    for span, mode in regions:
        if not mode.startswith('rw'): continue
        start, end = (int(x, 16) for x in span.split('-'))
        while start < end and done < size:
            n = min(1 << 20, end - start, size - done)
            try: mem.seek(start); chunk = mem.read(n)
            except (OSError, OverflowError, ValueError): break
            out.seek(done); out.write(chunk); done += len(chunk); start += n
    out.truncate(size)
open(sys.argv[2], 'wb').write(os.urandom(300000))
PY
memory_sha=$(sha "$work/memory"); vmstate_sha=$(sha "$work/vmstate"); disk_sha=$(tree_digest "$w/repo")
used() { du -sB1 "$data" | cut -f1; }
used_before=$(used)
pause1=$(json pause "$env" --memory "$work/memory" --vmstate "$work/vmstate" | field .id)
used_first=$(used)
expect "$(json env show "$env" | field .state)" suspended "state after the pause"
# shellcheck disable=SC2015
touch "$w/must-not-appear" 2>/dev/null && fail "a suspended Environment took a write" || true
stats_first=$(json stats | field .stored_bytes)
rm "$work/memory" "$work/vmstate"
json resume "$env" --memory "$work/memory" --vmstate "$work/vmstate" >/dev/null
expect "$(sha "$work/memory") $(sha "$work/vmstate")" "$memory_sha $vmstate_sha" "memory and state after the first resume"
python3 - "$work/memory" <<'PY'
import os, sys
with open(sys.argv[1], 'r+b') as f:
    for i in range(32): f.seek((i * 7 + 3) << 20); f.write(os.urandom(4096))
PY
memory_sha=$(sha "$work/memory")
pause2=$(json pause "$env" --memory "$work/memory" --vmstate "$work/vmstate" | field .id)
stats_second=$(json stats | field .stored_bytes)
grown=$((stats_second - stats_first))
[ "$grown" -lt $((8 << 20)) ] || fail "32 changed pages cost $grown bytes at the second pause"
done_step "$(((used_first - used_before) >> 20)) MiB on disk for 256 MiB; second pause +$((grown >> 10)) KiB"

begin "kill -9 everything, start again, resume"
kill_all
start_daemon
expect "$(json env show "$env" | field .state)" suspended "state after the restart"
rm "$work/memory" "$work/vmstate"
resumed=$(json resume "$env" --memory "$work/memory" --vmstate "$work/vmstate")
expect "$(field .snapshot.id <<<"$resumed")" "$pause2" "the newest pause is resumed ($pause1 is older)"
expect "$(sha "$work/memory") $(sha "$work/vmstate")" "$memory_sha $vmstate_sha" "memory and state after kill -9"
cairn mount "$env" "$m" >/dev/null
expect "$(tree_digest "$w/repo")" "$disk_sha" "disk after kill -9"
expect "$(sqlite3 "$w/wal.db" 'pragma integrity_check')" ok "SQLite after kill -9"
[ ! -e "$w/must-not-appear" ] || fail "a write to the suspended Environment survived"
done_step "memory, device state and disk byte-identical"

begin "a turn publishes Artifacts"
turn=$(json turn start "$session" | field .id)
out=$w/outputs
tar -C "$w/repo" -cf "$out/source.tar" store
head -c 3000000 /dev/urandom >"$out/model.bin"
mkdir -p "$out/notes"; echo first >"$out/notes/result.txt"
ln -s /etc/passwd "$out/leak"
for f in source.tar model.bin notes/result.txt; do sha "$out/$f"; done >"$work/published"
report=$(json turn complete "$turn")
expect "$(field .artifact_count <<<"$report")" 3 "published files"
expect "$(field '.skipped[0].reason' <<<"$report")" symlink "the symlink is reported"
list=$(api "/v1/agents/sessions/$session/artifacts?order=asc")
expect "$(field '.data | length' <<<"$list")" 3 "listed over HTTP"
download() {
  for name in source.tar model.bin notes/result.txt; do
    local id
    id=$(jq -er --arg p "$name" '[.data[] | select((.path // .name // .filename) == $p or ((.path // .name // .filename) | endswith("/" + $p)))][0].id' <<<"$list")
    api "/v1/agents/sessions/$session/artifacts/$id/content" >"$work/got"
    sha "$work/got"
  done
}
download >"$work/downloaded"
cmp -s "$work/published" "$work/downloaded" || fail "a download differs from what was published"
echo second >"$out/notes/result.txt"; head -c 3000000 /dev/zero >"$out/model.bin"; rm "$out/source.tar"
download >"$work/downloaded"
cmp -s "$work/published" "$work/downloaded" || fail "a later write changed an Artifact"
expect "$(status_of "/v1/agents/sessions/$session/artifacts" -H 'Authorization: Bearer cairn_sk_0000000000000000000000000000000000000000000')" 401 "a wrong key"
done_step "3 files, SHA-256 equal before and after the sources changed"

begin "attach a second Session, walk the deletion rules"
second=$(json session create --env "$env" | field .id)
expect "$(json env show "$env" | field .lifetime)" shared "lifetime after the first reference"
code=0; cairn env delete "$env" --confirm "$env" >"$work/refused" 2>&1 || code=$?
expect "$code" 4 "exit code of a refused delete"
grep -q "$session" "$work/refused" && grep -q "$second" "$work/refused" || fail "the refusal does not name the blocking Sessions"
expect "$(status_of "/v1/agents/environments/$env?confirm=$env" -X DELETE)" 409 "delete over HTTP"
grep -q environment_in_use "$work/body" || fail "409 without environment_in_use"
expect "$(status_of /v1/agents/environments/env_00000000000000000000000000000000)" 404 "a missing id"
cairn umount "$m" >/dev/null
cairn session delete "$session" >/dev/null
expect "$(status_of "/v1/agents/sessions/$session/artifacts")" 404 "Artifacts go with their Session"
cairn session delete "$second" >/dev/null
expect "$(json env show "$env" | field .state)" ready "a shared Environment stays without Sessions"
alone=$(json env create --name alone | field .id)
third=$(json session create --env "$alone" | field .id)
cairn session delete "$third" >/dev/null
expect "$(json env show "$alone" | field .state)" pending "a standalone Environment stays"
fourth=$(json session create | field .id)
private=$(json session show "$fourth" | field .env)
cairn session delete "$fourth" >/dev/null
cairn reap >/dev/null
code=0; json env show "$private" >"$work/gone" 2>&1 || code=$?
if [ "$code" -ne 3 ]; then expect "$(field .state <"$work/gone")" deleted "a private Environment goes with its Session"; fi
done_step "private gone, shared and standalone stay, 409 names both Sessions"

begin "delete, reap, collect, check"
for e in "$fork" "$alone" "$env"; do cairn env delete "$e" --confirm "$e" >/dev/null; done
cairn env delete "$env" --confirm "$env" >/dev/null || fail "repeating a delete does not give the same answer"
full=$(json stats | field .pack_bytes)
cairn reap >/dev/null
json gc --now >"$work/gc"
cairn check >"$work/check" || fail "check: $(cat "$work/check")"
left=$(json stats | field .pack_bytes)
[ "$left" -lt $((1 << 20)) ] || fail "$left bytes of packs are left in an empty store"
[ "$full" -gt $((20 << 20)) ] || fail "there was nothing to collect ($full bytes)"
done_step "packs $((full >> 20)) MiB -> $((left >> 10)) KiB, check clean"

begin "clean stop"
kill -TERM "$keeper"
code=0; wait "$keeper" || code=$?
keeper=""
expect "$code" 0 "exit code of the daemon"
[ -z "$(our_pids)" ] || fail "processes are left: $(our_pids)"
[ -z "$(left_mounts)" ] || fail "mounts are left: $(left_mounts)"
done_step "nothing left behind"

printf '\n%-58s %-62s %s\n' step result time
for row in "${rows[@]}"; do IFS='|' read -r a b c <<<"$row"; printf '%-58s %-62s %s\n' "$a" "$b" "$c"; done
printf '\nall steps passed in %d s\n' $((SECONDS - started))
