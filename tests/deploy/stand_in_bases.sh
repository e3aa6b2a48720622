#!/usr/bin/env bash
# Makes local stand-ins for the base images of services/Dockerfile and compose.yaml, for
# machines that reach no image registry. Needs root, dockerd and debootstrap. The package
# mirror is the one this machine's apt uses; nothing of the project refers to these images
# other than by the names they stand in for.
#
#   tests/deploy/stand_in_bases.sh [python] [redis] [tools]
#
# PYTHON names the interpreter that is laid over /usr/local (default: python3.12).
set -euo pipefail

SUITE=bookworm
PYTHON=${PYTHON:-python3.12}
LIBRARIES=ca-certificates,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,libncursesw6,libuuid1,libexpat1
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

mirror() {
  apt-cache policy | grep -oE 'https?://[^ ]+/debian/? '"$SUITE"'/main' | head -1 | cut -d' ' -f1
}

debian() {
  docker image inspect debian:$SUITE-slim >/dev/null 2>&1 && return
  debootstrap --variant=minbase --include=$LIBRARIES $SUITE "$WORK/root" "$(mirror)" >"$WORK/log" \
    || { tail "$WORK/log"; return 1; }
  cp /etc/ssl/certs/ca-certificates.crt "$WORK/root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$WORK"/root/usr/share/{doc,man,locale,info}/* "$WORK"/root/var/lib/apt/lists/* "$WORK"/root/var/cache/apt/*
  tar -C "$WORK/root" -c . | docker import -c 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' - debian:$SUITE-slim
}

python() {
  local prefix version
  prefix=$("$PYTHON" -c 'import sys; print(sys.base_prefix)')
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  mkdir -p "$WORK/python"
  # What the real image leaves out as well: tests, static libraries, whatever was installed later.
  tar -C "$prefix" -c --exclude='*/test' --exclude='*/tests' --exclude='*.a' --exclude='__pycache__' \
    --exclude='*/idlelib' --exclude='*/site-packages/*' bin include lib | tar -C "$WORK/python" -x
  mkdir -p "$WORK/python/lib/python$version/site-packages"
  # The real image is built without symbols, and without what only developers need.
  find "$WORK/python" -name '*.so*' -type f -exec strip --strip-all {} + 2>/dev/null || true
  ln -sf "python$version" "$WORK/python/bin/python"
  ln -sf "python$version" "$WORK/python/bin/python3"
  cat >"$WORK/python/Dockerfile" <<EOF
FROM debian:$SUITE-slim
COPY bin /usr/local/bin
COPY include /usr/local/include
COPY lib /usr/local/lib
RUN ldconfig && python -m ensurepip && rm -f /usr/local/bin/pip* && \
    printf '#!/bin/sh\nexec python -m pip "\$@"\n' > /usr/local/bin/pip && chmod +x /usr/local/bin/pip
CMD ["python3"]
EOF
  docker build -q -t "python:$version-slim-$SUITE" "$WORK/python"
}

redis() {
  docker build -q -t redis:7-$SUITE - <<EOF
FROM debian:$SUITE-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server redis-tools && \
    rm -rf /var/lib/apt/lists/*
CMD ["redis-server"]
EOF
}

debian
for image in "${@:-python redis}"; do for one in $image; do "$one"; done; done
docker images --format '{{.Repository}}:{{.Tag}} {{.Size}}'
