#!/usr/bin/env python3
"""A SLURM of one node on this machine's loopback: slurm.py FOLDER, as root, with Debian's slurm-wlm and munge.

Everything it writes is in FOLDER, and `SLURM_CONF=FOLDER/slurm.conf srun ...` uses it once "ready" is printed. It ends when its
standard input does, so that a test program that crashes takes it along; nothing is left then."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

CPUS = 8  # more than the machine has: ranks of tests mostly wait


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


def configuration(folder):
    host, (controller, daemon) = socket.gethostname().split(".")[0], free_ports(2)
    return f"""
ClusterName=weft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS}
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "slurm.conf").write_text(configuration(folder))
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout
    if int(re.search(r"(\d+)\.", version)[1]) >= 23:  # which want cgroups unless told otherwise, and a container may have none
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    log = open(folder / "log", "wb")
    daemons = []

    def start(*command):
        # In the foreground, so that each is a child whose end can be waited for; in a group of its own, so that ctrl-C comes here alone.
        daemons.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))

    def answers(expected, *command):
        until = time.monotonic() + 20
        while time.monotonic() < until and all(it.poll() is None for it in daemons):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode == 0 and expected in done.stdout:
                return True
            time.sleep(0.05)
        return False

    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        start("munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
              f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        ready = answers("", "munge", f"--socket={folder}/munge.socket", "--no-input", "--output=/dev/null")
        start("slurmctld", "-D")
        start("slurmd", "-D")
        ready = ready and answers("idle", "sinfo", "--noheader", "--format=%T")
        log.flush()
        print("ready" if ready else (folder / "log").read_text(errors="replace")[-3000:], flush=True)
        if ready:
            sys.stdin.read()
    finally:
        for daemon in reversed(daemons):  # jobs end with slurmd's help, so munged goes last
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
