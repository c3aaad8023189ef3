#!/usr/bin/env bash
# Prints the commit of the source tree in folder $1, "7b6dbfa012", with a hash of
# what differs from it, if anything: "7b6dbfa012+1a2b3c4d". Fails if the tree is
# no git checkout.
set -euo pipefail
cd "$1"
[[ -z $(git rev-parse --show-prefix) ]] || exit 1  # a folder of another one
commit=$(git rev-parse --short=10 HEAD)
if [[ -n $(git status --porcelain) ]]; then
  changes=$({
    git diff --binary HEAD
    # A dangling link or a nested checkout has no content to hash.
    git ls-files --others --exclude-standard -z |
      { xargs -0 -r sha256sum -- 2>/dev/null || true; }
  } | git hash-object --stdin)
  commit+=+${changes:0:8}
fi
echo "${commit}"
