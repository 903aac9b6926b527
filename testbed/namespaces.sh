#!/usr/bin/env bash
# An emulated cluster on this machine: network namespaces joined by a bridge, every access link shaped in both directions.
#
#   testbed/namespaces.sh up HOSTS RATE     for instance: up 6 1gbit; prints a hostfile for gleaner launch
#   testbed/namespaces.sh down              removes what `up` made
#
# Hosts are called gleaner0, gleaner1, …, with the addresses 10.77.0.1, 10.77.0.2, … There is one such cluster at a time.
# Needs root.
set -eEuo pipefail

bridge=gleanerbr

hosts() {
    ip netns list | awk '$1 ~ /^gleaner[0-9]+$/ {print $1}'
}

down() {
    local host link
    # The links first: a namespace lives on as long as a process in it, and its links with it.
    for link in $(ip -o link show | grep -o ' gleanerv[0-9]*@'); do
        ip link delete "${link%@}"
    done
    for host in $(hosts); do
        ip netns delete "$host"
    done
    ip link delete "$bridge" 2>/dev/null || true
}

up() {
    local hosts=$1 rate=$2 said
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
    done
    # A port that refuses a connection is one that can be reached.
    for ((i = 1; i < hosts; i++)); do
        for ((attempt = 0; attempt < 5; attempt++)); do
            said=$(ip netns exec "gleaner$i" bash -c ': </dev/tcp/10.77.0.1/1' 2>&1 || true)
            [[ $said == *refused* ]] && continue 2
        done
        echo "gleaner$i does not reach gleaner0: look at ip netns exec gleaner$i ip address, and at the rules for bridges" >&2
        return 1
    done
    for ((i = 0; i < hosts; i++)); do
        echo "gleaner$i address=10.77.0.$((i + 1))"
    done
}

case "${1:-} $#" in
'up 3')
    [ "$(id -u)" = 0 ] || { echo 'making network namespaces needs root: run it with sudo' >&2; exit 1; }
    if [ -n "$(hosts)" ] || ip link show "$bridge" >/dev/null 2>&1; then
        echo "there are emulated hosts already ($(hosts | tr '\n' ' ')): $0 down removes them" >&2
        exit 1
    fi
    trap 'down; exit 1' ERR INT TERM
    up "$2" "$3"
    ;;
'down 1') down ;;
*)
    echo "usage: $0 up HOSTS RATE | down" >&2
    exit 2
    ;;
esac
