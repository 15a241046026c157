#!/usr/bin/env bash
# Builds the book with mdBook and treats warnings as errors. The mdbook in the PATH is used; without one, a prebuilt
# mdbook with a fixed version and hash is installed into a separate folder. Links and quotations are checked by
# `cargo test -p rolldock-rules --test book`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=${ROLLDOCK_BOOK_ENV:-$HOME/.cache/rolldock-book}

mdbook=$(command -v mdbook || true)
if [[ -z $mdbook ]]; then
  mdbook=$environment/bin/mdbook
  [[ -x $environment/bin/pip ]] || python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes \
    --requirement tests/book-requirements.txt
fi

book=$(mktemp -d)
trap 'rm -rf "$book"' EXIT
log=$("$mdbook" build docs --dest-dir "$book" 2>&1) || { echo "$log"; exit 1; }
echo "$log"
if grep -qE 'WARN|ERROR' <<<"$log"; then
  echo "expected no warnings from mdbook"
  exit 1
fi
pages=$(grep -c '](' docs/src/SUMMARY.md)
built=$(find "$book" -name '*.html' ! -name print.html ! -name 404.html ! -name index.html ! -name 'toc*.html' | wc -l)
if [[ $built -lt $pages ]]; then
  echo "expected at least the $pages pages of docs/src/SUMMARY.md in the built book, found $built"
  exit 1
fi
echo "the book has $built pages"
