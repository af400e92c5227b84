#!/usr/bin/env bash
# ./dev crash: many rounds of every crash test.  crash.sh BUILD_DIR [--rounds N] [--seconds N] [--seed N]
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$1
shift
"$here/crash_test.sh" "$build" kill --rounds 20 --seconds 4 "$@"
"$here/crash_test.sh" "$build" power --rounds 20 --seconds 4 "$@"
"$here/crash_test.sh" "$build" power --fs xfs --rounds 20 --seconds 4 "$@"
"$here/crash_test.sh" "$build" power --without-fsync --rounds 3 "$@"
# The whole store on recorded disks: about 200 moments of each of three histories (0: every one).
CAIRN_POWER_CUTS="${CAIRN_POWER_CUTS:-200}" "$build/bin/power_loss_test"
