#!/usr/bin/env bash
# Backups beside everything that changes what they copy (writes, imports, snapshots, pauses, deletions, collections), and killed at several
# moments: what was published before one began is in it byte for byte, and nothing that a kill leaves is in the way.   backup_load_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

original=$data

mkdir "$work/other_disk" "$work/tree"
mount -t tmpfs -o size=1g cairn-e2e "$work/other_disk"
serve
CAIRN_ORG=$(cairn org create backup | jq -er .id)
export CAIRN_ORG
env=$(cairn env create | jq -er .id)
cairn mount "$env" "$mnt" >/dev/null
again() { # COMMAND...: until it is not refused because a collection or another backup runs
  local try
  for try in $(seq 400); do
    if cairn "$@" >"$work/again"; then return 0; fi
    jq -e '.error.code == "unavailable"' "$work/again" >/dev/null || fail "$*: $(cat "$work/again")"
    sleep 0.05
  done
  fail "$*: still refused after $try tries: $(cat "$work/again")"
}
for i in $(seq 40); do
  mkdir "$work/tree/$i"
  head -c 150000 /dev/urandom >"$work/tree/$i/random"
  seq $((i * 100)) $((i * 100 + 3000)) >"$work/tree/$i/text"
done
guest=$(cairn env create | jq -er .id)
cairn env import "$guest" "$work/tree" >/dev/null
head -c 3M /dev/urandom >"$work/memory"
echo state >"$work/vmstate"
cairn pause "$guest" --memory "$work/memory" --vmstate "$work/vmstate" >/dev/null
busy() { while [ -d "$work" ] && [ ! -e "$work/enough" ]; do "$@" >"$work/busy.$1" 2>&1 || true; done; }
imports() {
  local made
  made=$(cairn env create | jq -er .id) && cairn env import "$made" "$work/tree" && cairn fork "$made" && cairn env delete "$made" --confirm "$made"
}
snapshots() { made_here=$(cairn snapshot create "$env" | jq -er .id) && cairn snapshot delete "$made_here"; }
pauses() { cairn resume "$guest" --memory "$work/m" --vmstate "$work/v" && cairn pause "$guest" --memory "$work/memory" --vmstate "$work/vmstate"; }
collections() { cairn reap && cairn gc --now && sleep 0.3; }
organizations() {
  local org made
  org=$(cairn org create passing | jq -er .id) && made=$(cairn --org "$org" env create | jq -er .id) &&
    cairn --org "$org" env import "$made" "$work/tree/1" && cairn org delete "$org" --confirm "$org"
}
: >"$work/durable"
writer 1 &
for what in imports snapshots pauses collections organizations; do
  busy $what &
  loops="${loops:-} $!"
done
for round in 1 2; do
  while [ "$(wc -l <"$work/durable")" -lt $((round * 20)) ]; do sleep 0.05; done
  # What is published before the backup begins.
  cp "$work/durable" "$work/before"
  snapshot=$(cairn snapshot create "$env" | jq -er .id)
  imported=$(cairn env create | jq -er .id)
  cairn env import "$imported" "$work/tree" >/dev/null
  again backup "$work/other_disk/busy"
  set=$(jq -er .path "$work/again")
  env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$set" >"$work/verified" || fail "verify: $(cat "$work/verified")"
  cp -a "$set" "$work/restored.$round"
  cp "$original/master.key" "$work/restored.$round/"
  as "$work/restored.$round" serve
  restored "$work/restored.$round" "$work/before"
  rm -rf "$work/out" "$work/out2"
  as "$work/restored.$round" cairn env export "$imported" "$work/out" --path /workspace >/dev/null || fail "what was imported before is not in it"
  diff -r -x outputs "$work/tree" "$work/out" || fail "what was imported before is not what it was"
  as "$work/restored.$round" cairn env export "$snapshot" "$work/out2" --path /workspace >/dev/null || fail "the snapshot is not in it"
  (cd "$work/out2" && sha256sum -c --quiet "$work/before") || fail "the snapshot is not what it was"
  as "$work/restored.$round" stop_served
  rm -rf "$work/restored.$round" "$set"
  cairn env delete "$imported" --confirm "$imported" >/dev/null
done
echo "ok   two backups beside everything else: $(wc -l <"$work/durable") files, $(cairn stats | jq -c '[.pack_count, .journal_bytes]')"

# ---- killed in the middle ----
cp "$work/durable" "$work/before"
moment() { # whether the backup has come there; without another process, which would be too slow
  local partial="$work/other_disk/busy/*.partial"
  case $1 in
    instant | cli) [ -e "$original/backup.tmp" ] ;;
    begun) compgen -G "$partial/BACKUP" >/dev/null ;;
    catalog) compgen -G "$partial/catalog/db/*" >/dev/null ;;
    packs) compgen -G "$partial/packs/*/*" >/dev/null ;;
  esac
}
again backup "$work/other_disk/busy"
whole=$(jq -er .path "$work/again")
hits=
for at in instant begun catalog packs cli; do
  for _ in 1 2 3; do # one that is too fast is made again
    "$build/bin/cairn" --json backup "$work/other_disk/busy" >"$work/killed.json" 2>&1 &
    cli=$!
    while ! moment $at && kill -0 $cli 2>/dev/null; do :; done
    if moment $at; then break; fi
    wait $cli || true
    rm -rf "$(jq -r '.path // "/nothing"' "$work/killed.json" 2>/dev/null || echo /nothing)"
  done
  if moment $at; then hits="$hits $at"; fi
  if [ $at = cli ]; then
    kill -KILL $cli 2>/dev/null || true
    wait $cli || true
  else
    kill_daemon
    wait $cli || true
    for partial in "$work/other_disk/busy/"*.partial; do
      if [ -e "$partial" ]; then refused_as "$partial" "unfinished backup"; fi
    done
    serve
    [ ! -e "$original/backup.tmp" ] || fail "killed at $at: a start leaves backup.tmp"
  fi
  env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$whole" >"$work/verified" || fail "killed at $at: the set before: $(cat "$work/verified")"
  again backup "$work/other_disk/busy" --with-master-key
  set=$(jq -er .path "$work/again")
  env -u CAIRN_SOCKET "$build/bin/cairn" backup --verify "$set" >"$work/verified" || fail "killed at $at: the next: $(cat "$work/verified")"
  partial=$(echo "$work/other_disk/busy/"*.partial)
  [ ! -e "$partial" ] || fail "killed at $at: $partial was not taken up"
  [ ! -e "$original/backup.tmp" ] || fail "killed at $at: the next one leaves backup.tmp"
  as "$set" serve
  restored "$set" "$work/before"
  as "$set" stop_served
  rm -rf "$set"
done
[ "$(wc -w <<<"$hits")" -ge 3 ] || fail "too few were killed where they should have been:$hits"
: >"$work/enough"
# shellcheck disable=SC2086  # not the daemon
wait $loops || true
cairn check >"$work/out.txt" || fail "check: $(cat "$work/out.txt")"
echo "ok   killed at:$hits"
