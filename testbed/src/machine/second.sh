# The second steps: the shared folder, the command, and what it printed, until the host ends the machine.

cd /run/machine || exit 1
mkdir bin
./busybox --install -s bin
PATH=/run/machine/bin
. ./settings

fail() {
    echo "gleaner: $*" >/dev/console
    poweroff -f
}

mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
hostname machine
ip link set lo up

if [ -n "$SHARE" ]; then
    mkdir -p "$SHARE" && mount -t 9p -o cache=mmap,trans=virtio,version=9p2000.L,msize=512000 share "$SHARE" ||
        fail "cannot mount the folder $SHARE"
fi

for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name"
    ln -s "/dev/${port##*/}" "$name"
done
exec 7>out 8>err 9>status || fail "no way to send output"

# Pipes, since a port cannot be opened twice, and commands open /dev/stdout.
mkfifo out.pipe err.pipe
cat out.pipe >&7 & out=$!
cat err.pipe >&8 & err=$!
echo ready >&9
(exec 7>&- 8>&- 9>&-; exec sh ./command) </dev/null >out.pipe 2>err.pipe
code=$?

# What the command left running would hold the pipes open.
for process in /proc/[0-9]*; do
    case ${process#/proc/} in
    1 | "$out" | "$err") ;;
    *) kill -KILL "${process#/proc/}" 2>/dev/null ;;
    esac
done
wait "$out" "$err"
cd /
sync
if [ -n "$SHARE" ]; then
    umount "$SHARE" || umount -l "$SHARE"
fi
printf %s "$END" >&7
printf %s "$END" >&8
echo "$code" >&9
sleep 86400
poweroff -f
