#!/usr/bin/env bash
# Nothing that a guest wrote is in any file of the data directory in plain text: contents, names, xattrs, link targets, memory, device
# state, Artifact paths; while unsealed, after kill -9, after sealing. And nothing of it is in the log.   canary_test.sh BUILD_DIR
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"

canaries=()
canary() { # a fresh one of 32 bytes, in $c
  c=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  canaries+=("$c")
}
search() {
  local c
  sync -f "$data"
  for c in "${canaries[@]}"; do
    if grep -rqaF "$c" "$data"; then fail "$1: canary found in $(grep -rlaF "$c" "$data" | head -3)"; fi
    if grep -qaF "$c" "$work/log"; then fail "$1: canary found in the log"; fi
  done
}

serve
cairn org create canary >/dev/null
session=$(cairn session create | jq -er .id)
env=$(cairn session show "$session" | jq -er .env)
cairn mount "$env" "$mnt" >/dev/null
w=$mnt/workspace
canary && { printf '%s' "$c" && head -c 992 /dev/zero; } >"$w/small"
canary && { head -c 60000 /dev/zero && printf '%s' "$c" && head -c 40000 /dev/zero; } >"$w/large"
canary && echo x >"$w/$c"
canary && setfattr -n user.canary -v "$c" "$w/small"
canary && ln -s "/$c/target" "$w/link"
canary && mkdir "$w/outputs/dir" && echo published >"$w/outputs/dir/$c"
canary && echo "$c" >"$w/outputs/content"
sync "$w/small" "$w/large" "$w/outputs/content" "$w" "$w/outputs/dir"
search "unsealed"
# The same search does find one in the middle of a file of the deepest folder there is.
folder=$(find "$data/volumes" -mindepth 1 -type d | head -1)
{ head -c 100000 /dev/urandom && printf '%s' "${canaries[0]}" && head -c 100000 /dev/urandom; } >"$folder/planted"
if (search "planted") >"$work/search" 2>&1; then fail "the search finds nothing at all"; fi
grep -q "planted: canary found in $folder/planted" "$work/search" || fail "not what was planted: $(cat "$work/search")"
rm "$folder/planted"
kill_daemon
search "after kill -9"
serve
cairn mount "$env" "$mnt" >/dev/null
expect "$(getfattr --only-values -n user.canary "$w/small" 2>/dev/null)" "${canaries[3]}" "xattr after kill -9"
turn=$(cairn turn start "$session" | jq -er .id)
expect "$(cairn turn complete "$turn" | jq -er .artifact_count)" 2 "published files"
canary && { head -c 1000000 /dev/zero && printf '%s' "$c" && head -c 4000000 /dev/zero; } >"$work/memory"
canary && printf '%s' "$c" >"$work/vmstate"
cairn pause "$env" --memory "$work/memory" --vmstate "$work/vmstate" >/dev/null
search "published and paused"
stop_cleanly
search "sealed and stopped"
echo "ok: ${#canaries[@]} canaries, none found in $(find "$data" -type f | wc -l) files"
