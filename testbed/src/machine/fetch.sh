# Fetches what the machine is made of into the folder $1, if it is not there: `linux`, the kernel; `files`, the archive that the
# kernel unpacks into its first file system, with `first.sh` and `second.sh`; and `tools`, a tree of the programs that this machine
# lacks. All come in Debian's packages, which apt checks against the signed lists. Nothing is installed. Each line of standard
# output says what is done.

set -eu
scripts=${0%/*}
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
cd "$1"
steps=$2

# What is inserted into the kernel: files and output; wires; links and what shapes them; Soft-RoCE.
modules='virtio_pci virtio_console 9pnet_virtio 9p overlay virtio_net veth bridge dummy tun sch_netem sch_tbf sch_htb
    sch_ingress cls_u32 cls_matchall act_mirred act_police rdma_rxe ib_uverbs rdma_ucm'
# Soft-RoCE asks for it by its name, so no dependency says so. Newer kernels have it built in under another name.
optional=crc32_generic
packages='iproute2 iputils-ping iperf3 ibverbs-utils ibverbs-providers perftest'
programs='rdma ping iperf3 ibv_rc_pingpong ib_write_bw'
provider=etc/libibverbs.d/rxe.driver

# Two at once wait for each other.
exec 9>lock
flock 9

has_tools() {
    for program in $programs; do
        command -v "$program" >/dev/null || [ -e "tools/usr/bin/$program" ] || [ -e "tools/usr/sbin/$program" ] || return 1
    done
    [ -e "/$provider" ] || [ -e "tools/$provider" ]
}

# What was fetched by another version of these steps is fetched again.
if [ -e files ] && [ "$(cat steps 2>/dev/null)" = "$steps" ] && has_tools; then
    exit
fi
for pair in cpio:cpio depmod:kmod xz:xz-utils; do
    if ! command -v "${pair%:*}" >/dev/null; then
        echo "expected the program ${pair%:*} in the PATH, found none; install it with: apt-get install ${pair#*:}" >&2
        exit 1
    fi
done
trap 'rm -rf half' EXIT
rm -rf half files tools
mkdir -p half/packages half/kernel half/first/modules half/tools

# Names the newest kernel and the packages that are not installed here, and fetches them.
download() {
    version=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-//p') &&
        lacking=$(apt-get install --simulate --no-install-recommends $packages) &&
        lacking=$(printf '%s\n' "$lacking" | sed -n 's/^Inst \([^ ]*\).*/\1/p' | tr '\n' ' ') &&
        echo "fetching linux-image-$version busybox-static $lacking" &&
        (cd half/packages && apt-get -qq download "linux-image-$version" busybox-static $lacking)
}
# The lists of packages may be old or missing, and only root may renew them: then lists of our own are fetched.
if ! download 2>/dev/null; then
    echo 'fetching the lists of packages'
    mkdir -p half/lists/partial half/cache/archives/partial
    printf 'Dir::State::lists "%s/half/lists";\nDir::Cache "%s/half/cache";\n' "$1" "$1" >half/apt.conf
    export APT_CONFIG="$1/half/apt.conf"
    apt-get -qq update
    download
fi

echo 'unpacking the packages'
for package in half/packages/*.deb; do
    case ${package##*/} in
    linux-image-* | busybox-static_*) dpkg-deb -x "$package" half/kernel ;;
    *) dpkg-deb -x "$package" half/tools ;;
    esac
done
# Packages may name folders that are links to those below /usr.
for name in bin sbin lib lib64; do
    if [ -L "/$name" ] && [ -d "half/tools/$name" ]; then
        mkdir -p "half/tools/usr/$name"
        cp -a "half/tools/$name/." "half/tools/usr/$name"
        rm -r "half/tools/$name"
    fi
done

# The kernel without its compression, which the emulated processor would take ten seconds for at every start. The offsets are those
# of the boot protocol (Documentation/arch/x86/boot.rst). Behind all but gzip's data stands their length.
image=half/kernel/boot/vmlinuz-$version
number() { od -An "-tu$2" "-j$1" "-N$2" "$image" | tr -d ' '; }
tail -c "+$((($(number 497 1) + 1) * 512 + $(number 584 4) + 1))" "$image" | head -c "$(number 588 4)" >half/packed
case $(od -An -tx1 -N4 half/packed) in
' fd 37 7a 58') head -c -4 half/packed | xz -dc >half/linux ;;
' 28 b5 2f fd') head -c -4 half/packed | zstd -qdc >half/linux ;;
*) gzip -dc half/packed >half/linux || cp "$image" half/linux ;;
esac

# Modules, each behind what it depends on.
number=100
depmod -b half/kernel "$version"
show() { modprobe -d half/kernel -S "$version" --show-depends -a "$@"; }
{
    show $modules
    show $optional 2>/dev/null || true
} >half/order
awk '$1 == "insmod" && !seen[$2]++ { print $2 }' half/order | while read -r module; do
    case $module in *.xz) unpack='xz -dc' ;; *.zst) unpack='zstd -qdc' ;; *.gz) unpack='gzip -dc' ;; *) unpack=cat ;; esac
    $unpack "$module" >"half/first/modules/$number.ko"
    number=$((number + 1))
done

mkdir half/first/bin half/first/proc half/first/sys half/first/dev
cp half/kernel/usr/bin/busybox half/first/bin 2>/dev/null || cp half/kernel/bin/busybox half/first/bin
cp "$scripts/first.sh" half/first/init
cp "$scripts/second.sh" half/first
chmod +x half/first/init
(cd half/first && find . | cpio --quiet -o -H newc -R 0:0) >half/files

mv half/linux half/tools .
printf %s "$steps" >steps
# The last, since it says that all is here.
mv half/files files
