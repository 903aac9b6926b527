"""A Slurm cluster of this machine alone, with its own key, ports and files."""

import os
import shutil
import socket
import subprocess
import tempfile
import time

import jobs

_PROGRAMS = ("srun", "sinfo", "slurmctld", "slurmd", "munged")
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _missing():
    for program in _PROGRAMS:
        if shutil.which(program, path=_PATH) is None:
            return f"Slurm's {program} is not installed"
    return "" if os.getuid() == 0 else "a Slurm cluster is started by root"


#: Why there can be none, or nothing.
MISSING = _missing()


class Cluster:
    """Gives the path of its configuration, for SLURM_CONF."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._daemons = []
        at = lambda *names: os.path.join(self._folder.name, *names)  # noqa: E731
        # munged refuses a folder that others may enter and whose parents others may write to, unless they are sticky.
        os.chmod(self._folder.name, 0o755)
        for name in ("munge", "state", "spool"):
            os.mkdir(at(name), 0o700)
        with open(os.open(at("munge", "key"), os.O_WRONLY | os.O_CREAT, 0o400), "wb") as key:
            key.write(os.urandom(128))
        host = socket.gethostname().split(".")[0]
        lines = [
            "ClusterName=test", "SlurmctldHost=localhost(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge",
            f"AuthInfo=socket={at('munge.socket')}", "CredType=cred/munge", f"SlurmctldPort={jobs.two_ports()}", f"SlurmdPort={jobs.two_ports()}",
            f"SlurmctldPidFile={at('ctld.pid')}", f"SlurmdPidFile={at('d.pid')}", f"StateSaveLocation={at('state')}",
            f"SlurmdSpoolDir={at('spool')}", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SchedulerType=sched/builtin",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "ReturnToService=2", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "MpiDefault=none", "SwitchType=switch/none",
            "SlurmdParameters=config_overrides", f"NodeName=localhost NodeHostName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN",
            "PartitionName=test Nodes=localhost Default=YES MaxTime=INFINITE State=UP",
        ]  # fmt: skip
        conf = at("slurm.conf")
        with open(conf, "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        try:
            files = [f"--{option}={at('munge', name)}" for option, name in
                     (("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]  # fmt: skip
            self._start(["munged", "--foreground", "--force", f"--socket={at('munge.socket')}", *files], {})
            self._until("munged answers", lambda: os.path.exists(at("munge.socket")))
            for daemon in ("slurmctld", "slurmd"):
                self._start([daemon, "-D", "-f", conf], {"SLURM_CONF": conf})
            asks = [shutil.which("sinfo", path=_PATH), "-h", "-o", "%T"]
            environment = {**os.environ, "SLURM_CONF": conf}
            idle = lambda: subprocess.run(asks, env=environment, capture_output=True, text=True).stdout.strip() == "idle"  # noqa: E731
            self._until("the node is idle", idle)
        except BaseException:
            self.__exit__()
            raise
        return conf

    def _start(self, command, env):
        program = shutil.which(command[0], path=_PATH)
        quiet = subprocess.DEVNULL
        self._daemons.append(subprocess.Popen([program, *command[1:]], env={**os.environ, **env}, stdout=quiet, stderr=quiet))

    def _until(self, what, holds):
        until = time.monotonic() + 60
        while not holds():
            if time.monotonic() > until:
                raise AssertionError(f"within 60 s it was not so that {what}")
            time.sleep(0.1)

    def __exit__(self, *_):
        # They end their own helpers, if they are asked to end; those that do not are killed.
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._folder.cleanup()
