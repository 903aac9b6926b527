#!/bin/sh
# What ssh is to mpirun, for emulated hosts: runs a command line on the host with an address. Every host gets a name of
# its own, since implementations of MPI take ranks with the same host name for neighbours that share memory.
#
#     agent.sh [OPTION…] ADDRESS COMMAND…
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
address=$1
shift
for host in $GLEANER_TESTBED_HOSTS; do
    if [ "${host#*=}" = "$address" ]; then
        exec ip netns exec "${host%%=*}" unshare --uts sh -c 'hostname "$1"; eval "exec $2"' sh "${host%%=*}" "$*"
    fi
done
echo "no emulated host has the address $address" >&2
exit 1
