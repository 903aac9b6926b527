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
# In one group: how many else depends on what the machine's time is like, and what is selected on that.
options='--data digits --model mlp --batch 4 --merge single'
train() {
    gleaner train $options --steps "$1" --evaluate-every "$1" --method "$2" --json
}

# Waits until all machines are here: one job's end takes a while to reach all.
barrier() {
    next
    GLEANER_TIMEOUT=300s GLEANER_TRANSPORT=tcp gleaner bench --params 1000 --method ring --steps 1 --warmup 0 >/dev/null
}

# What is to happen to packets of RDMA that come in, while TCP passes.
packets_of_rdma() {
    priority=$1
    shift
    tc filter add dev "$net" parent ffff: protocol ip prio "$priority" u32 match ip protocol 17 0xff match ip dport 4791 0xffff "$@" \
        drop flowid :1
}
keep_out() {
    tc qdisc add dev "$net" ingress
    packets_of_rdma 2 police rate 8kbit burst 40b
}

for word in "$@"; do
    case $word in
    # Among all machines, or the first two of them.
    same | pair)
        if [ "$word" = pair ]; then
            export GLEANER_WORLD_SIZE=2
        else
            barrier
        fi
        export GLEANER_TIMEOUT=60s
        for method in spardl ring; do
            for transport in tcp verbs; do
                next
                if [ "$RANK" -ge "$GLEANER_WORLD_SIZE" ]; then
                    continue
                fi
                before="$(packets) $(bytes)"
                GLEANER_TRANSPORT=$transport train 2 $method >$word.$transport.$method.out
                set -- $before
                echo "$(($(packets) - $1)) $(($(bytes) - $2))" >$word.$transport.$method.sent
            done
        done
        export GLEANER_WORLD_SIZE=$MACHINES
        ;;
    # Jobs that cannot begin, for what rank 1 has; but one can where its packets are shorter, and of the class that passes.
    class | blocked | narrow | memory)
        barrier
        next
        export GLEANER_TIMEOUT=15s GLEANER_TRANSPORT=verbs
        with=
        if [ "$RANK" = 1 ]; then
            case $word in
            class)
                ip link set "$net" mtu 700
                keep_out
                packets_of_rdma 1 match ip tos 104 0xff police rate 10gbit burst 10m
                ;;
            blocked) keep_out ;;
            narrow)
                tc qdisc add dev "$net" ingress
                packets_of_rdma 1 police rate 10gbit burst 10m mtu 600
                ;;
            # For one link and not for two. A process with this capability is bound by no limit.
            memory)
                ulimit -l 10000
                with='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock'
                ;;
            esac
        fi
        if [ "$word" = class ]; then
            export GLEANER_VERBS_DEVICE=rxe0,tc=104
        fi
        code=0
        $with gleaner bench --params 300000 --method ring --steps 2 --warmup 0 >"$word.out" 2>"$word.err" || code=$?
        echo $code >"$word.code"
        if [ "$RANK" = 1 ]; then
            case $word in
            class) ip link set "$net" mtu 1500 ;;
            esac
            if [ "$word" != memory ]; then
                tc qdisc del dev "$net" ingress
            fi
        fi
        unset GLEANER_VERBS_DEVICE
        ;;
    *)
        barrier
        next
        before=$(packets)
        export GLEANER_TIMEOUT=15s
        # Started by itself, so that its number is the worker's.
        GLEANER_TRANSPORT=verbs gleaner train $options --steps 1000000 --evaluate-every 1000000 --method ring \
            >"$word.out" 2>"$word.err" &
        worker=$!
        if [ "$RANK" = 1 ]; then
            while [ "$(packets)" -lt $((before + 2000)) ]; do
                kill -0 $worker
                sleep 0.1
            done
            case $word in
            killed) kill -KILL $worker ;;
            # What is sent is never acknowledged, and the queue pairs fail.
            queue) keep_out ;;
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
