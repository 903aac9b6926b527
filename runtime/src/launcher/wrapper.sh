# Runs one worker and answers for its life. It arrives on the standard input of `sh`, inside one pair of
# braces, so that it is parsed as a whole; what follows on standard input is the lifeline: once it ends, because
# the launcher asked for it, died, or lost the connection, the worker ends with it. POSIX sh only.
# Before it stand gleaner_enter (goes to the directory), gleaner_program (becomes the program, with its
# environment) and gleaner_share (the workers on this host).

exec 3<&0 4>&2 </dev/null

gleaner_event() {
    printf '\036gleaner {"kind":"launcher.%s","body":%s}\n' "$1" "$2" >&4
}

# Calls $1 with the process number of everyone in the worker's session: children that made process groups of
# their own are among them. Without /proc, only the worker's own process group can be seen.
gleaner_each() {
    if [ ! -e /proc/self/stat ]; then
        if kill -s 0 -- "-$gleaner_session"; then "$1" "-$gleaner_session"; fi
        return
    fi
    for gleaner_stat in /proc/[0-9]*/stat; do
        read -r gleaner_line <"$gleaner_stat" || continue
        gleaner_process=${gleaner_stat#/proc/}
        gleaner_member "$1" "${gleaner_process%/stat}" ${gleaner_line##*) }
    done
}

# $1: whom to call, $2: process number, $3: state, $4: parent, $5: process group, $6: session.
gleaner_member() {
    if [ "$3" != Z ] && { [ "$6" = "$gleaner_session" ] || [ "$2" = "$gleaner_session" ]; }; then "$1" "$2"; fi
}

gleaner_found() { gleaner_alive=yes; }
gleaner_any() {
    gleaner_alive=
    gleaner_each gleaner_found
    [ -n "$gleaner_alive" ]
}
gleaner_terminate() { kill -s TERM -- "$1"; }
gleaner_kill() { kill -s KILL -- "$1"; }

# Ends whoever is left of the worker: TERM, three to four seconds, KILL. The clock counts, not the turns: looking at
# all processes takes a while where there are many.
gleaner_end() {
    gleaner_each gleaner_terminate
    gleaner_since=$(date +%s)
    while gleaner_any; do
        gleaner_waited=$(($(date +%s) - gleaner_since))
        [ "$gleaner_waited" -le 5 ] || break
        if [ "$gleaner_waited" -gt 3 ]; then gleaner_each gleaner_kill; fi
        sleep 0.1
    done
}

gleaner_watch() {
    while read -r gleaner_line; do :; done
    gleaner_end
}

if ! gleaner_enter 2>/dev/null; then
    gleaner_event directory null
    exit 1
fi

# A session of its own makes the worker's descendants known. Without setsid, job control makes a process group.
# What sh starts in the background ignores SIGINT and SIGQUIT; where `env` can, it gives the defaults back.
gleaner_start=$(command -v setsid)
if gleaner_default=$(command -v env) && "$gleaner_default" --default-signal=INT,QUIT true 2>/dev/null; then
    gleaner_start="$gleaner_default --default-signal=INT,QUIT $gleaner_start"
fi
gleaner_cores=$(OMP_NUM_THREADS= OMP_THREAD_LIMIT= nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null) ||
    gleaner_cores=1
gleaner_threads=$((gleaner_cores / gleaner_share))
[ "$gleaner_threads" -ge 1 ] || gleaner_threads=1

gleaner_run() {
    : "${RAYON_NUM_THREADS:=$gleaner_threads}" "${OMP_NUM_THREADS:=$gleaner_threads}"
    export RAYON_NUM_THREADS OMP_NUM_THREADS
    gleaner_program
}

gleaner_event started null
case $gleaner_start in *setsid) ;; *) set -m ;; esac
gleaner_run 3<&- 4>&- &
gleaner_session=$!
set +m

# From here on this shell is silent: some shells tell of a killed job by quoting its commands.
exec >/dev/null 2>&1
gleaner_watch <&3 3<&- 4>&- &
gleaner_watcher=$!
exec 3<&-
wait "$gleaner_session"
gleaner_code=$?
gleaner_event exited "$gleaner_code"
gleaner_end
kill -s KILL "$gleaner_watcher"
exit "$gleaner_code"
