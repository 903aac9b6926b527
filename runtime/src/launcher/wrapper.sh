# Runs one worker and answers for its life. It arrives on the standard input of `sh`, inside one pair of
# braces, so that it is parsed as a whole; what follows on standard input is the lifeline: once it ends, because
# the launcher asked for it, died, or lost the connection, the worker ends with it. POSIX sh only.
# Before it stand gleaner_enter (goes to the directory), gleaner_program (becomes the program, with its
# environment), gleaner_share (the workers that share this machine's cores) and gleaner_listener (a descriptor for the program alone), and before
# the braces gleaner_secret.

exec 3<&0 4>&2 </dev/null

gleaner_event() {
    printf '\036gleaner {"kind":"launcher.%s","body":%s}\n' "$1" "$2" >&4
}

# The processes that are alive in the worker's session: children that made process groups of their own are among them, and so is the
# worker before it made its session. Without setsid or /proc, it is the worker's process group.
gleaner_members() {
    if [ -n "$gleaner_setsid" ] && [ -e /proc/self/stat ]; then
        # number (name) state parent group session; Z is dead already.
        grep -slE "\) [^Z] [0-9]+ [0-9]+ $gleaner_session |^$gleaner_session \(.*\) [^Z] " /proc/[0-9]*/stat
    elif kill -s 0 -- "-$gleaner_session"; then
        echo "-$gleaner_session"
    elif kill -s 0 -- "$gleaner_session"; then
        echo "$gleaner_session"
    fi
}

gleaner_signal() {
    for gleaner_member in $(gleaner_members); do
        gleaner_member=${gleaner_member#/proc/}
        kill -s "$1" -- "${gleaner_member%/stat}"
    done
}

# Ends what is left of the worker: TERM, three to four seconds, KILL. The clock counts, not the turns: looking at
# all processes takes a while where there are many.
gleaner_end() {
    [ -n "$(gleaner_members)" ] || return
    gleaner_signal TERM
    # A stopped process does not get it otherwise.
    gleaner_signal CONT
    gleaner_since=$(date +%s)
    while { sleep 0.1 || sleep 1; } && [ -n "$(gleaner_members)" ]; do
        gleaner_waited=$(($(date +%s) - gleaner_since))
        [ "$gleaner_waited" -le 5 ] || break
        if [ "$gleaner_waited" -gt 3 ]; then gleaner_signal KILL; fi
    done
}

# Prints whether a process in the worker's session is stopped, and the processor time that all in it have used.
gleaner_look() {
    [ -n "$gleaner_setsid" ] && [ -e /proc/self/stat ] || return
    gleaner_stopped=false gleaner_time=0
    for gleaner_member in $(gleaner_members); do
        read -r gleaner_stat <"$gleaner_member" || continue
        # From the state on; the 12th and the 13th are times.
        set -- ${gleaner_stat##*) }
        [ "$1" != T ] || gleaner_stopped=true
        gleaner_time=$((gleaner_time + ${12} + ${13}))
    done
    gleaner_event looked "[$gleaner_stopped,$gleaner_time]"
}

# Each line of the lifeline asks how the worker is.
gleaner_watch() {
    while read -r gleaner_line; do gleaner_look; done
    gleaner_end 4>&-
}

if ! gleaner_enter 2>/dev/null; then
    gleaner_event refused '"directory"'
    exit 1
fi

# A session of its own makes the worker's descendants known. Without setsid, job control makes a process group,
# unless this shell has job control on terminals only.
# What sh starts in the background ignores SIGINT and SIGQUIT; where `env` can, it gives the defaults back.
gleaner_setsid=$(command -v setsid)
gleaner_start=$gleaner_setsid
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

if [ -z "$gleaner_setsid" ]; then
    set -m 2>/dev/null
    case $- in *m*) ;; *) gleaner_event refused '"sessions"'; exit 1 ;; esac
fi
gleaner_event started null
# The worker reads the secret from a pipe, at descriptor 3; echo is a part of every shell, and on no process list. The last of
# a pipeline is the one that $! names, and where there is job control the process group is that of the whole.
if [ -n "$gleaner_setsid" ]; then
    echo "$gleaner_secret" | gleaner_run 3<&0 </dev/null 4>&- &
else
    { echo "$gleaner_secret" | gleaner_run 3<&0 </dev/null 4>&-; } &
fi
gleaner_session=$!
set +m
unset gleaner_secret
[ -z "$gleaner_listener" ] || eval "exec $gleaner_listener<&-"

# From here on this shell is silent: some shells report a killed job by quoting its commands.
exec >/dev/null 2>&1
gleaner_watch <&3 3<&- &
gleaner_watcher=$!
exec 3<&-
wait "$gleaner_session"
gleaner_code=$?
gleaner_event exited "$gleaner_code"
gleaner_end
kill -s KILL "$gleaner_watcher"
exit "$gleaner_code"
