#!/bin/busybox sh
# The first steps of the machine, from what the kernel unpacked: modules, then the file system of the host, read-only,
# below one in memory that takes what is written.

/bin/busybox --install -s /bin
export PATH=/bin

fail() {
    echo "gleaner: $*" >/dev/console
    poweroff -f
}

mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs devices /dev || fail "no proc, sys or dev"
for module in /modules/*; do
    insmod "$module" || fail "the kernel refused the module $module"
done

# Tags of 9p, read in the largest blocks that virtio carries. What does not change may stay in memory.
files=trans=virtio,version=9p2000.L,msize=512000
mkdir /host /tools /start /memory /root
for name in host tools start; do
    mount -t 9p -o "ro,cache=loose,$files" "$name" "/$name" || fail "cannot mount the files of $name"
done
. /start/settings
mount -t tmpfs memory /memory && mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host:/tools,upperdir=/memory/upper,workdir=/memory/work root /root ||
    fail "cannot lay the file systems over each other"

# The command that started the machine is to be found inside, too. Its place may be hidden by the mounts that follow.
if [ "$GLEANER" != /usr/bin/gleaner ]; then
    rm -f /root/usr/bin/gleaner
    : >/root/usr/bin/gleaner && mount -o bind "/root$GLEANER" /root/usr/bin/gleaner || fail "cannot bring gleaner in"
fi

for name in proc sys dev; do
    mkdir -p "/root/$name" && mount -o move "/$name" "/root/$name" || fail "cannot move /$name"
done
mkdir -p /root/run && mount -t tmpfs -o mode=755 run /root/run && mkdir /root/run/machine
cp /bin/busybox /start/settings /start/command /second.sh /root/run/machine || fail "no room in memory"
umount /start
exec switch_root /root /run/machine/busybox sh /run/machine/second.sh
