#!/usr/bin/env bash
# A full disk under the data directory, filled by Cairn and by others: snapshots are refused before writes are, writers get ENOSPC early,
# reads and deletions go on, and freed space heals it without a restart.   full_disk_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

disk=$work/disk
truncate -s 112M "$work/image"
mkfs.ext4 -q -m 0 "$work/image"
mkdir "$disk" "$work/kept"
mount -o loop "$work/image" "$disk"
data=$disk/data
available() { df --output=avail -B1 "$disk" | tail -n 1; }
# What others put on the file system, to its last block.
fill_with_ballast() {
  local try
  for try in $(seq 5); do # space comes back while seals end
    dd if=/dev/zero bs=4k of="$disk/ballast.$try" 2>/dev/null || true
    sync -f "$disk"
    sleep 0.3
  done
}
refused() { # WHAT COMMAND...: it is refused for lack of space, with the numbers
  local what=$1
  shift
  if cairn "$@" >"$work/out" 2>"$work/error"; then fail "$what went through on the full disk"; fi
  jq -e '.error.code == "exhausted"' "$work/out" >/dev/null || fail "$what: $(cat "$work/out" "$work/error")"
}
write() { # FILE MIB: random bytes, which neither compress nor deduplicate; its digest is kept if fsync has acknowledged them
  head -c "${2}M" /dev/urandom >"$work/bytes"
  dd if="$work/bytes" of="$1" bs=1M conv=fsync 2>"$work/error" || return 1
  sha256sum <"$work/bytes" >"$work/digest.$(basename "$1")"
}
intact() { # DIR WHEN: every acknowledged file that is there is whole
  local file count=0
  for file in "$1"/w*; do
    [ -f "$work/digest.$(basename "$file")" ] || continue
    expect "$(sha256sum <"$file")" "$(cat "$work/digest.$(basename "$file")")" "$file $2"
    count=$((count + 1))
  done
  [ "$count" -gt 0 ] || fail "no file to compare $2"
}
delete_all_but_one() { # of the files in $full_dir
  local file
  for file in $(find "$full_dir" -type f -name 'w*' | sort | tail -n +2); do
    rm "$file" || fail "rm on the full disk"
  done
}
heals() { # WHEN: the same process takes writes again, within seconds
  local try
  for try in $(seq 40); do
    if write "$kept_dir/w.$1" 1; then
      expect "$(cairn ping | jq -er .pid)" "$pid" "the process $1"
      echo "$1: writes again after $((try / 2)) s"
      return 0
    fi
    grep -q "No space left on device" "$work/error" || fail "$1: not ENOSPC: $(cat "$work/error")"
    sleep 0.5
  done
  fail "$1: writes are still refused: $(cairn stats | jq -c .space)"
}

limits=()
serve --space-headroom 20MiB
org=$(cairn org create full | jq -er .id)
pid=$(cairn ping | jq -er .pid)
expect "$(cairn stats | jq -c '[.space.limits.headroom, .space.used.reserve == .space.limits.reserve]')" "[20971520,true]" "limits"
session=$(cairn session create | jq -er .id)
kept=$(cairn session show "$session" | jq -er .env)
filled=$(cairn env create --name filled | jq -er .id)
cairn mount "$kept" "$work/kept" >/dev/null
cairn mount "$filled" "$mnt" >/dev/null
kept_dir=$work/kept/workspace
full_dir=$mnt/workspace
write "$kept_dir/w.original" 2
mkdir -p "$kept_dir/outputs"
: >"$full_dir/appended"
echo published >"$kept_dir/outputs/file"
sync "$kept_dir/outputs/file"
doomed=$(cairn org create doomed | jq -er .id)
doomed_env=$(cairn --org "$doomed" env create --name doomed | jq -er .id)
mkdir "$work/import"
head -c 6M /dev/urandom >"$work/import/file"
cairn --org "$doomed" env import "$doomed_env" "$work/import" >/dev/null

# Snapshots and the like stop first; running volumes go on.
turn=$(cairn --org "$org" turn start "$session" | jq -er .id)
secret=$(cairn --org "$org" key create | jq -er .secret)
url=http://$(grep -o 'http=[0-9.:]*' "$work/log" | tail -n 1 | cut -d= -f2)/v1/agents
files=0
steady() { # until what is set aside for seals has not changed for two seconds: a seal gives space back
  local before="" now same=0
  for _ in $(seq 150); do
    now=$(cairn stats | jq -c .space.set_aside.unsealed)
    if [ "$now" = "$before" ]; then same=$((same + 1)); else same=0 before=$now; fi
    [ "$same" -lt 10 ] || return 0
    sleep 0.2
  done
  fail "seals do not come to rest: $(cairn stats | jq -c .space)"
}
kept_again() { cairn --org "$org" snapshot create "$kept" >"$work/out" 2>"$work/error"; }
while kept_again || { steady && kept_again; }; do
  files=$((files + 1))
  [ "$files" -lt 60 ] || fail "240 MiB went into 112 MiB"
  write "$full_dir/w$files" 4 || fail "a write is refused before snapshots are: $(cat "$work/error") $(cairn stats | jq -c .space)"
done
jq -e '.error.code == "exhausted"' "$work/out" >/dev/null || fail "a snapshot: $(cat "$work/out")"
grep -q "needs .* budget has .* are free" "$work/out" || fail "no numbers: $(cat "$work/out")"
retained=$files
refused "a fork" --org "$org" fork "$kept"
expect "$(curl -sS --max-time 20 -o "$work/body" -w '%{http_code}' -X POST -H "Authorization: Bearer $secret" \
  "$url/sessions/$session/turns/$turn/complete")" 507 "a publication"
write "$full_dir/w$((files + 1))" 1 || fail "a running volume is refused with snapshots: $(cat "$work/error")"

# Then writes. What fsync has acknowledged is there; nothing else was promised.
until [ "$files" = 60 ]; do
  files=$((files + 1))
  write "$full_dir/w$files" 4 || break
done
[ "$files" -lt 60 ] || fail "240 MiB went into 112 MiB"
grep -q "No space left on device" "$work/error" || fail "not ENOSPC: $(cat "$work/error")"
[ "$(available)" -gt 0 ] || fail "ENOSPC came only when nothing was left"
rm -f "$full_dir/w$files"
# A file that is open already, too: to the last byte that fsync acknowledged.
: >"$work/appended"
for i in $(seq 40); do
  head -c 1M /dev/urandom >"$work/bytes"
  dd if="$work/bytes" of="$full_dir/appended" bs=1M oflag=append conv=notrunc,fsync 2>"$work/error" || break
  cat "$work/bytes" >>"$work/appended"
done
[ "$i" -lt 40 ] || fail "40 MiB more went into the full disk"
grep -q "No space left on device" "$work/error" || fail "not ENOSPC: $(cat "$work/error")"
cmp -n "$(stat -c %s "$work/appended")" "$work/appended" "$full_dir/appended" || fail "acknowledged bytes of an append are gone"
intact "$full_dir" "on the full disk"
intact "$kept_dir" "on the full disk"

# rm in the mount, and no other help than gc where it was sealed already.
delete_all_but_one # what stays must fit into the reserve file: gc copies it out of its pack
rm "$full_dir/appended"
cairn gc --now >"$work/out" || fail "gc on the full disk: $(cat "$work/out")"
heals "rm"

# Others take every block that is left: reads and deletions go on all the same.
while files=$((files + 1)) && write "$full_dir/w$files" 4; do :; done
rm -f "$full_dir/w$files"
fill_with_ballast
before=$(available)
[ "$before" -lt 262144 ] || fail "$before bytes are free beside the ballast"
intact "$full_dir" "beside the ballast"
refused "a snapshot" --org "$org" snapshot create "$kept"
if write "$kept_dir/w.refused" 1; then fail "a write found space beside the ballast"; fi
rm -f "$kept_dir/w.refused"
delete_all_but_one
sync "$full_dir" || fail "an rm beside the ballast cannot be made durable"
cairn org delete "$doomed" --confirm "$doomed" >"$work/out" || fail "org delete beside the ballast: $(cat "$work/out")"
cairn --org "$org" umount --force "$filled" >"$work/out" || fail "umount beside the ballast: $(cat "$work/out")"
cairn --org "$org" mount "$filled" "$mnt" >"$work/out" || fail "mount beside the ballast: $(cat "$work/out")"
intact "$full_dir" "mounted again beside the ballast"
cairn reap >"$work/out" || fail "reap beside the ballast: $(cat "$work/out")"
cairn gc --now >"$work/out" || fail "gc beside the ballast: $(cat "$work/out")"
heals "deletions"

# The owner of the ballast gives it back, and nobody tells the daemon.
fill_with_ballast
while write "$kept_dir/w.more" 1; do fill_with_ballast; done
rm -f "$kept_dir/w.more"
rm "$disk"/ballast.*
heals "ballast"

# An Environment goes on the full disk, and takes its bytes along.
while files=$((files + 1)) && write "$full_dir/w$files" 4; do :; done
rm -f "$full_dir/w$files"
cairn --org "$org" umount --force "$filled" >"$work/out" || fail "umount on the full disk: $(cat "$work/out")"
before=$(available)
cairn --org "$org" env delete "$filled" --confirm "$filled" >"$work/out" || fail "env delete on the full disk: $(cat "$work/out")"
cairn reap >"$work/out" || fail "reap on the full disk: $(cat "$work/out")"
cairn gc --now >"$work/out" || fail "gc on the full disk: $(cat "$work/out")"
[ $(($(available) - before)) -gt 16000000 ] || fail "reap and gc freed $(($(available) - before)) bytes"
heals "env-delete"

# All that was refused goes through.
again=$(cairn --org "$org" env create --name again | jq -er .id)
cairn --org "$org" mount "$again" "$mnt" >/dev/null
write "$mnt/workspace/w" 1 || fail "after gc, elsewhere: $(cat "$work/error")"
snapshot=$(cairn --org "$org" snapshot create "$kept" | jq -er .id)
cairn --org "$org" turn complete "$turn" >/dev/null
cairn --org "$org" env export "$snapshot" "$work/exported" --path /workspace >/dev/null
intact "$work/exported" "in the snapshot"
expect "$(cairn ping | jq -er .pid)" "$pid" "the process at the end"
cairn --org "$org" umount "$again" >/dev/null
cairn --org "$org" umount "$kept" >/dev/null
cairn check >"$work/out" || fail "check: $(cat "$work/out")"
stop_cleanly
serve
cairn --org "$org" mount "$kept" "$work/kept" >/dev/null
intact "$kept_dir" "after a restart"
stop_cleanly
echo "ok: no snapshots after $retained files of 4 MiB, full after $files"
