#!/usr/bin/env bash
# build.sh: builds the images from their Dockerfiles without a registry, into build/images. Root; Debian's
# buildah and mmdebstrap.
#
# The base image is made from Debian's archive (base/make.sh) and goes by the name that the Dockerfiles
# say. Layers lie in the user's cache, for all clones on a machine, and are made again only when what goes
# into them changes: minutes the first time, seconds afterwards. Nothing of this machine gets into an image:
# its certificates and pip's settings are mounted over /root while a layer is made, where pip and compilers
# look for them. What is in an image, and what it was made from, is written next to its archive (contents.py).
set -euo pipefail
cd "$(dirname "$0")/.."
suite=bookworm
cache=${XDG_CACHE_HOME:-~/.cache}/tierline/images
out=$PWD/build/images
mkdir -p "$cache" "$out"
exec 9> "$cache/lock"
flock 9
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git describe --always --dirty --abbrev=40 --exclude '*')
# The time of all files. One that changed with each commit would make every layer again.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct -- images)}"
export SOURCE_DATE_EPOCH

# A storage of its own: nothing else on the machine sees these images, nor they it.
cat > "$cache/storage.conf" <<END
[storage]
driver = "overlay"
graphroot = "$cache/storage"
runroot = "$cache/run"
END
export CONTAINERS_STORAGE_CONF=$cache/storage.conf
buildah rm --all > /dev/null # what a build that was killed had at work

home=$cache/home
mkdir -p "$home/.config/pip"
cp /etc/ssl/certs/ca-certificates.crt "$home/ca.crt"
printf '[global]\ncert = /root/ca.crt\n' > "$home/.config/pip/pip.conf"

# ensure_base NAME: the base image, unless there is one made by the same scripts.
ensure_base() {
    local name=$1 key container root
    key=$(cat images/base/* | sha256sum | cut -c1-12)
    [ "$(buildah inspect --type image --format '{{index .OCIv1.Config.Labels "base"}}' "$name" 2>/dev/null)" != "$key" ] ||
        return 0
    images/base/make.sh "$suite" "$cache/base.tar"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$cache/base.tar" / > /dev/null
    buildah config --cmd bash --label base="$key" \
        --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit --quiet --rm --timestamp "$SOURCE_DATE_EPOCH" "$container" "$name" > /dev/null
    rm "$cache/base.tar"
}

# build NAME: the image tierline-NAME, and its archive unless that holds this very image.
build() {
    local image=localhost/tierline-$1:$version archive=$out/tierline-$1.tar
    buildah build --isolation chroot --network host --pull-never --layers --volume "$home:/root:ro" \
        --build-arg SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" --timestamp "$SOURCE_DATE_EPOCH" \
        --build-arg VERSION="$version" --build-arg REVISION="$revision" \
        ${PIP_INDEX_URL:+--build-arg PIP_INDEX_URL="$PIP_INDEX_URL"} \
        --file "images/$1/Dockerfile" --iidfile "$out/new-id" --tag "$image" .
    if ! cmp -s "$out/new-id" "$archive.id" || [ ! -e "$archive" ]; then
        rm -f "$archive" "$archive.id"
        buildah push --quiet --disable-compression "$image" "oci-archive:$archive:$image"
        mv "$out/new-id" "$archive.id"
    fi
    python3 images/contents.py "$archive" "images/$1/Dockerfile" "$revision"
    rm -f "$out/new-id"
    echo "$archive: $image, $(du --apparent-size -h "$archive" | cut -f1)"
}

ensure_base docker.io/library/debian:bookworm-slim
build operator
build agent
