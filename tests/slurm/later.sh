#!/usr/bin/env bash
# Runs a command beside the Slurm of Debian 13, which is 24.11: tests/slurm/later.sh FOLDER COMMAND...
#
# FOLDER becomes a Debian of its own, made once by mmdebstrap, as root. The checkout, its Python and the home folder are
# those of this machine, so that Python must stand outside of /usr.

set -euo pipefail
folder=$(realpath -m "$1")
shift
if [ ! -x "$folder/usr/sbin/slurmctld" ]; then
  mmdebstrap --variant=apt --include=slurmctld,slurmd,slurm-client,munge,git trixie "$folder"
fi
base=$(python -c 'import sys; print(sys.base_prefix)')
[[ $base != /usr* ]] || { echo "this Python is in $base, which is another one there" >&2; exit 1; }
# shellcheck disable=SC2016  # the inner shell expands these
exec unshare --mount bash -c '
set -e
folder=$0 base=$1 here=$PWD
shift
mkdir -p "$folder/before"
mount --bind "$folder" "$folder"
for place in /proc /sys /dev /tmp "$HOME" "$here" "$base"; do
  mkdir -p "$folder$place"
  mount --rbind "$place" "$folder$place"
done
# Not a chroot: the commands of the tests enter the namespace of their Slurm, and see its root.
cd "$folder"
pivot_root . before
umount --lazy before
cd "$here"
exec "$@"' "$folder" "$base" "$@"
