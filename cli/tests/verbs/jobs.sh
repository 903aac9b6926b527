# What machine number $RANK of $MACHINES does. Its interfaces are eth0 and, at the first of three, eth1. Words name what to do.
set -eu
net=eth0
if [ "$RANK" = 0 ] && [ "$MACHINES" = 3 ]; then
    net=br0
    ip link add br0 type bridge
    ip link set eth0 master br0
    ip link set eth1 master br0
    ip link set eth0 up
    ip link set eth1 up
fi
ip addr add "10.79.0.$((RANK + 1))/24" dev "$net"
ip link set "$net" up
rdma link add rxe0 type rxe netdev "$net"

export GLEANER_RANK=$RANK GLEANER_WORLD_SIZE=$MACHINES GLEANER_SECRET_FILE=$SECRET GLEANER_PLAIN=1
packets() {
    cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
}
bytes() {
    cat "/sys/class/net/$net/statistics/tx_bytes"
}
port=7000
next() {
    port=$((port + 1))
    export GLEANER_RENDEZVOUS=10.79.0.1:$port GLEANER_JOB=$port
}
train() {
    gleaner train --data synthetic --model mlp --batch 4 --steps "$1" --evaluate-every "$1" --method "$2" --json
}

# Waits until all machines are here: one job's end takes a while to be told to all.
barrier() {
    next
    GLEANER_TIMEOUT=90s GLEANER_TRANSPORT=tcp gleaner bench --params 1000 --method ring --steps 1 --warmup 0 >/dev/null
}

for word in "$@"; do
    case $word in
    same)
        export GLEANER_TIMEOUT=60s
        for method in spardl ring; do
            for transport in tcp verbs; do
                next
                before="$(packets) $(bytes)"
                GLEANER_TRANSPORT=$transport train 5 $method >$transport.$method.out
                set -- $before
                echo "$(($(packets) - $1)) $(($(bytes) - $2))" >$transport.$method.sent
            done
        done
        ;;
    *)
        barrier
        next
        before=$(packets)
        export GLEANER_TIMEOUT=15s
        # Started by itself, so that its number is the worker's.
        GLEANER_TRANSPORT=verbs gleaner train --data synthetic --model mlp --batch 4 --steps 1000000 \
            --evaluate-every 1000000 --method ring >"$word.out" 2>"$word.err" &
        worker=$!
        if [ "$RANK" = 1 ]; then
            while [ "$(packets)" -lt $((before + 2000)) ]; do
                kill -0 $worker
                sleep 0.1
            done
            case $word in
            killed) kill -KILL $worker ;;
            # No packet of RDMA comes in, while TCP goes on: what is sent is never acknowledged, and the queue pairs fail.
            queue)
                tc qdisc add dev "$net" ingress
                tc filter add dev "$net" parent ffff: protocol ip u32 match ip protocol 17 0xff \
                    match ip dport 4791 0xffff police rate 8kbit burst 40b drop flowid :1
                ;;
            port) ip link set "$net" down ;;
            esac
        fi
        code=0
        wait $worker || code=$?
        echo $code >"$word.code"
        if [ "$RANK" = 1 ] && [ "$word" = queue ]; then
            tc qdisc del dev "$net" ingress
        fi
        ;;
    esac
done
