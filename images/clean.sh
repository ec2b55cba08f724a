#!/usr/bin/env bash
# clean.sh: removes the user's cache of third-party programs and layers of images (see build.sh).
set -euo pipefail
cache=${XDG_CACHE_HOME:-~/.cache}/tierline
[ -d "$cache" ] || exit 0
# What a build that was killed left mounted would be removed through its mount.
awk -v cache="$cache/" 'index($5, cache) == 1 {print $5}' /proc/self/mountinfo | sort -r | xargs -r umount
rm -rf "$cache"
