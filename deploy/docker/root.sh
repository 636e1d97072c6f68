#!/bin/sh
# Lays out the root of an image that holds some programs and what they need to run: root.sh DIR PROGRAM...
# The programs are those that were built and tested, linked to Debian's C library; of Debian nothing else comes along.
set -eu

root=$1
shift
mkdir -p "$root/usr/bin" "$root/etc/ssl/certs" "$root/tmp"
# Read-only containers mount something over it; others get what everybody expects of /tmp.
chmod 1777 "$root/tmp"

for program in "$@"; do
    cp "$program" "$root/usr/bin/"
    # Every library at the path where the loader looks for it, the loader itself included.
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
done

# Names that `ls` and some libraries ask for. The number is what counts.
echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' > "$root/etc/passwd"
echo 'nonroot:x:65532:' > "$root/etc/group"
# Hosts files before DNS: what Docker and Kubernetes write there has to count.
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
# kvlane-load may be pointed at an endpoint with TLS.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
