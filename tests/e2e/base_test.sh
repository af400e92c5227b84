#!/usr/bin/env bash
# Base images: a real tree is imported, Environments of two organizations start from it without a copy and do not see each other's changes; the
# image is deleted under them, and its blocks go when the last one went. An import is killed at any moment.   base_test.sh BUILD_DIR [SEED]
# shellcheck source=tests/e2e/daemon.sh
source "$(dirname "$(readlink -f "$0")")/daemon.sh"
seed=${2:-$RANDOM}
echo "seed $seed"
RANDOM=$seed
base_packs=$data/packs/636169726e2062617365207265616c6d

# ---- the tree: real files, and one of each kind ----
tree=$work/tree
mkdir -p "$tree/usr"
cp -a /usr/include/linux "$tree/usr/"
mkdir -p "$tree/odd/empty"
head -c 300000 /dev/urandom >"$tree/odd/random"
truncate -s 5M "$tree/odd/sparse" && echo end >>"$tree/odd/sparse"
ln "$tree/odd/random" "$tree/odd/second name"
ln -s ../usr/linux/fs.h "$tree/odd/link"
mkfifo "$tree/odd/fifo"
install -m 4755 -o 12 -g 34 /bin/true "$tree/odd/setuid"
setfattr -n user.note -v "of the image" "$tree/odd/random"
touch -h -d '2001-02-03 04:05:06.789' "$tree/odd/link" "$tree/odd/setuid" "$tree/odd/empty"
chmod 0711 "$tree/odd/empty"
describe() { # what a copy must have in common with the tree; /workspace is not of it
  (
    cd "$1"
    find . -mindepth 1 -path ./workspace -prune -o -mindepth 1 ! -type d -printf '%P %y %m %U %G %n %s %T@ %l\n' -o -mindepth 1 -printf '%P %y %m %U %G %T@\n' | sort
    find . -path ./workspace -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
    find odd -type f -print0 | sort -z | xargs -0 getfattr -h -m user. -d
  )
}
describe "$tree" >"$work/wanted"
[ "$(wc -l <"$work/wanted")" -gt 500 ] || fail "not much of a tree"
same() { # same MOUNT WHAT
  describe "$1" | diff "$work/wanted" - >"$work/difference" || fail "$2: differs: $(head -5 "$work/difference")"
}
number() { cairn stats | jq -er ".$1"; }
pack_sums() { (cd "$base_packs" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
exits() { # exits CODE ARGS...
  local wanted=$1 got=0
  shift
  cairn "$@" >"$work/out" 2>&1 || got=$?
  expect "$got" "$wanted" "exit code of cairn $*"
}

# ---- import ----
serve
expect "$(cairn base list | jq -c .data)" "[]" "base images of a new directory"
cairn base import "$tree" --name tools >"$work/image"
expect "$(jq -r .state "$work/image")" ready "the image"
expect "$(jq -r .transfer.files "$work/image")" "$(find "$tree" -type f | wc -l | awk '{print $1 - 1}')" "files, without second names"
expect "$(cairn base show tools | jq -r .id)" "$(jq -r .id "$work/image")" "the image shown"
expect "$(cairn base list | jq -r '.data[].name')" tools "the images listed"
exits 4 base import "$tree" --name tools
exits 3 base show others
exits 64 base import "$tree/odd/random" --name file
if [ "$(id -u)" -eq 0 ]; then
  chmod 0711 "$work"
  got=0
  timeout 60 setpriv --reuid 65534 --regid 65534 --clear-groups "$build/bin/cairn" base list >/dev/null 2>&1 || got=$?
  expect "$got" 2 "exit code for who is no operator"
fi

# ---- two organizations ----
one=$(cairn org create one | jq -er .id)
two=$(cairn org create two | jq -er .id)
mkdir "$work/mnt2"
mnt2=$work/mnt2
packs_before=$(cairn gc --now >/dev/null && pack_sums)
blocks_before=$(number block_count)
[ "$blocks_before" -gt 300 ] || fail "$blocks_before blocks are too few to tell"
env_one=$(cairn --org "$one" env create --base tools | jq -er .id)
env_two=$(cairn --org "$two" env create --base tools | jq -er .id)
unused=$(cairn --org "$two" env create --base tools | jq -er .id)
never=$(cairn --org "$two" env create --base tools | jq -er .id)
expect "$(cairn --org "$one" env show "$env_one" | jq -r .base_image_name)" tools "what it started from"
exits 3 --org "$one" env create --base others
exits 64 --org "$one" env create --base tools --quota-bytes 1000
expect "$(number block_count)" "$blocks_before" "blocks after four Environments were made"
mount_both() {
  cairn --org "$one" mount "$env_one" "$mnt" >/dev/null
  cairn --org "$two" mount "$env_two" "$mnt2" >/dev/null
}
mount_both
same "$mnt" "the first organization's"
same "$mnt2" "the second organization's"
umount "$mnt" "$mnt2"
cairn --org "$one" snapshot create "$env_one" >/dev/null
cairn --org "$two" snapshot create "$env_two" >/dev/null
cairn gc >/dev/null # after the seals
added=$(($(number block_count) - blocks_before))
[ "$added" -le 20 ] || fail "$added blocks were added by reading"
mount_both
echo "of one" >>"$mnt/usr/linux/fs.h"
rm "$mnt/usr/linux/kvm.h"
cp "$tree/odd/random" "$mnt/workspace/again" && sync "$mnt/workspace/again"
same "$mnt2" "the second organization's after a change of the first"
kill_daemon
umount -l "$mnt2" 2>/dev/null || true
serve
mount_both
expect "$(tail -1 "$mnt/usr/linux/fs.h")" "of one" "the first organization's change"
[ ! -e "$mnt/usr/linux/kvm.h" ] || fail "a deleted file is back"
cmp "$tree/odd/random" "$mnt/workspace/again" || fail "what an organization wrote itself"
same "$mnt2" "the second organization's after kill -9"
umount "$mnt" "$mnt2"
cairn --org "$one" snapshot create "$env_one" >/dev/null
cairn gc --now >/dev/null
expect "$(pack_sums)" "$packs_before" "packs of the base realm"
cairn check >/dev/null || fail "check is not clean"
echo "ok   $(wc -l <"$work/wanted") facts of a tree, shared by two organizations with $added blocks of their own"

# ---- the image goes, then those who use it ----
cairn key rotate-master >/dev/null
cairn base delete tools >/dev/null
exits 3 base delete tools
exits 3 --org "$one" env create --base tools
cairn reap >/dev/null
cairn gc --now >/dev/null
stop_cleanly
serve
mount_both
same "$mnt2" "after the image was deleted"
umount "$mnt" "$mnt2"
cairn org delete "$one" --confirm "$one" >/dev/null
cairn gc --now >/dev/null
cairn --org "$two" mount "$env_two" "$mnt2" >/dev/null
same "$mnt2" "after the other organization was deleted"
umount "$mnt2"
cairn --org "$two" env delete "$env_two" --confirm "$env_two" >/dev/null
cairn reap >/dev/null
cairn gc --now >/dev/null
cairn --org "$two" env export "$unused" "$work/exported" >/dev/null
same "$work/exported" "an Environment that was never used"
cairn check >/dev/null || fail "check is not clean"
cairn --org "$two" env delete "$unused" --confirm "$unused" >/dev/null
cairn reap >/dev/null
cairn gc --now >/dev/null
[ "$(number block_count)" -gt 0 ] || fail "an Environment that was never used keeps no block"
expect "$(cairn --org "$two" env show "$never" | jq -r .base_image_name)" tools "what it will start from"
cairn org delete "$two" --confirm "$two" >/dev/null
two=$(cairn org create another | jq -er .id)
cairn reap >/dev/null
cairn gc --now >/dev/null
expect "$(find "$base_packs" -type f | wc -l)" 0 "packs of the base realm when nobody needs them"
expect "$(number block_count)" 0 "blocks when nobody needs them"
[ -s "$data/keys/$(basename "$base_packs").key" ] || fail "the base realm's key is gone"
echo "ok   deleted under its users, and gone with the last of them"

# ---- killed while it is imported ----
head -c 60000000 /dev/urandom >"$tree/odd/large" # so that there is a middle to be killed in
describe "$tree" >"$work/wanted"
whole=0
for round in 1 2 3 4 5; do
  pid=$(cairn ping | jq -er .pid)
  cairn base import "$tree" --name "round $round" >/dev/null 2>&1 &
  if [ "$round" -lt 4 ]; then
    for _ in $(seq 2000); do
      [ -z "$(find "$base_packs" -type f -size +0)" ] || break
      sleep 0.01
    done
  else
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
  fi
  kill -KILL "$pid" # at once; the rest of it takes a moment to be found
  kill_daemon
  wait || true
  serve
  state=$(cairn base list | jq -r '.data[].state')
  cairn gc --now >/dev/null
  if [ -z "$state" ]; then
    expect "$(number block_count)" 0 "round $round: blocks of an import that was killed"
    continue
  fi
  expect "$state" ready "round $round: the image after a kill"
  whole=$((whole + 1))
  env=$(cairn --org "$two" env create --base "round $round" | jq -er .id)
  cairn --org "$two" mount "$env" "$mnt" >/dev/null
  same "$mnt" "round $round"
  umount "$mnt"
  cairn --org "$two" env delete "$env" --confirm "$env" >/dev/null
  cairn base delete "round $round" >/dev/null
  cairn reap >/dev/null
  cairn gc --now >/dev/null
done
[ "$whole" -lt 5 ] || fail "no import was killed before its end"
cairn check >/dev/null || fail "check is not clean"
stop_cleanly
echo "ok   five imports killed: $whole whole, the others left nothing"
