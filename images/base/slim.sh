#!/bin/sh
# slim.sh ROOT: leaves in a fresh Debian what the official slim images leave (a hook of mmdebstrap).
set -eu
root=$1
apt=$root/etc/apt
rm -f "$apt/sources.list" "$apt/apt.conf.d/99mmdebstrap" "$root"/var/cache/apt/*.bin
mv "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/docker"
echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"
clean='"rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"'
cat > "$apt/apt.conf.d/docker-clean" <<END
DPkg::Post-Invoke { $clean; };
APT::Update::Post-Invoke { $clean; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";
END
echo 'Apt::AutoRemove::SuggestsImportant "false";' > "$apt/apt.conf.d/docker-autoremove-suggests"
echo 'Acquire::GzipIndexes "true";' > "$apt/apt.conf.d/docker-gzip-indexes"
echo 'Acquire::Languages "none";' > "$apt/apt.conf.d/docker-no-languages"
[ -e "$apt/sources.list.d/debian.sources" ] ||
    mv "$apt"/sources.list.d/*.sources "$apt/sources.list.d/debian.sources"
# A package's service must not start while an image is built.
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mkdir -p "$root/dev"
: > "$root/etc/resolv.conf"
: > "$root/etc/hosts"
echo localhost > "$root/etc/hostname"
chmod 644 "$root/etc/resolv.conf" "$root/etc/hosts" "$root/etc/hostname"
