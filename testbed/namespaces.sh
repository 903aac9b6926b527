#!/usr/bin/env bash
# An emulated cluster on this machine: network namespaces joined by a bridge, every access link shaped in both directions.
#
#   testbed/namespaces.sh up HOSTS RATE     for instance: up 6 1gbit; prints a hostfile for gleaner launch
#   testbed/namespaces.sh down              removes what `up` made
#
# Hosts are called gleaner0, gleaner1, …, with the addresses 10.77.0.1, 10.77.0.2, … Needs root.
set -euo pipefail

bridge=gleanerbr

down() {
    for host in $(ip netns list | awk '/^gleaner[0-9]/ {print $1}'); do
        ip netns delete "$host"
    done
    ip link delete "$bridge" 2>/dev/null || true
}

up() {
    local hosts=$1 rate=$2
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
    for ((i = 0; i < hosts; i++)); do
        ip netns add "gleaner$i"
        ip link add "gleanerv$i" type veth peer name eth0 netns "gleaner$i"
        ip link set "gleanerv$i" master "$bridge" up
        ip -n "gleaner$i" link set lo up
        ip -n "gleaner$i" address add "10.77.0.$((i + 1))/24" dev eth0
        ip -n "gleaner$i" link set eth0 up
        # Towards the bridge and from it: a link of that rate in each direction.
        tc -n "gleaner$i" qdisc add dev eth0 root tbf rate "$rate" burst 128k latency 20ms
        tc qdisc add dev "gleanerv$i" root tbf rate "$rate" burst 128k latency 20ms
        echo "gleaner$i address=10.77.0.$((i + 1))"
    done
}

case "${1:-}" in
up) [ $# = 3 ] && { trap down ERR; up "$2" "$3"; } || { echo "usage: $0 up HOSTS RATE | down" >&2; exit 2; } ;;
down) down ;;
*) echo "usage: $0 up HOSTS RATE | down" >&2; exit 2 ;;
esac
