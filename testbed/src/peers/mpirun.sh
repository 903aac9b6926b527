#!/bin/sh
# Runs a program by one of the implementations of MPI on emulated hosts. It is started on the first host, and so is the
# implementation's own mpirun, which reaches the others by agent.sh beside this file. Each host has one rank.
#
#     mpirun.sh open-mpi|mpich WORKERS PROGRAM ARGUMENT…
#
# GLEANER_TESTBED_HOSTS lists the hosts as NAMESPACE=ADDRESS with spaces between; where it is empty, all ranks run here.
set -eu
implementation=$1 workers=$2
shift 2
kit=$(dirname "$0")
addresses=$(for host in ${GLEANER_TESTBED_HOSTS:-}; do echo "${host#*=}"; done | head -n "$workers")
hosts=$(echo $addresses | tr ' ' ',')
case "$implementation" in
open-mpi)
    # The shared memory of Debian's PMIx 4 lets some jobs fail as they start, with PMIX ERROR: NO-PERMISSIONS.
    export PMIX_MCA_gds=hash
    # All hosts share the cores of one machine: who waits has to let others run.
    set -- -np "$workers" --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 "$@"
    if [ -n "$hosts" ]; then
        set -- --host "$hosts" --mca plm rsh --mca plm_rsh_agent "$kit/agent.sh" \
            --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 "$@"
    fi
    exec mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none "$@"
    ;;
mpich)
    # Neither UCX nor libfabric may find out that all hosts share one memory.
    export UCX_TLS=tcp,self FI_PROVIDER=tcp
    set -- -n "$workers" "$@"
    if [ -n "$hosts" ]; then
        export UCX_NET_DEVICES=eth0
        set -- -hosts "$hosts" -ppn 1 -launcher ssh -launcher-exec "$kit/agent.sh" -iface eth0 "$@"
    fi
    exec mpirun.mpich -bind-to none "$@"
    ;;
*)
    echo "no implementation '$implementation'; expected open-mpi or mpich" >&2
    exit 2
    ;;
esac
