//! Other libraries, measured beside ours as methods of an experiment: in the same namespaces, in turns, by the same clock.
//!
//! Each job of an all-reduce is barrier, clock, all-reduce, maximum over the ranks; its bytes are those that the hosts' interfaces counted.
//! Open MPI and MPICH run by their own `mpirun`, which is started on the first host and reaches the others by an agent;
//! Gloo runs through PyTorch, under our launcher. So does its DDP, whose iterations stand beside those of `gleaner train`, and
//! so do trainings with its communication hooks. Beside `gleaner regress` stand Apache Spark's MLlib, whose cluster is started as
//! `mpirun` is, and beside one worker of it LIBLINEAR and Vowpal Wabbit.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::Error;
use crate::experiment::{Case, Job, Seats, plain};

/// PyTorch's DistributedDataParallel, a method of `train`; its compute is emulated.
pub const DDP: &str = "ddp";

/// Trainings by DistributedDataParallel: without a communication hook, with 16-bit values, with PowerSGD of these ranks, with a hook that exchanges
/// nothing, and with Gleaner's. They are methods of `train`, too.
pub const HOOKS: [&str; 8] = [
    TORCH_DENSE,
    "torch-fp16",
    "powersgd-1",
    "powersgd-2",
    "powersgd-3",
    "powersgd-4",
    "torch-noop",
    TORCH_SPARDL,
];

/// The first of them, which compresses nothing.
const TORCH_DENSE: &str = "torch";

/// Gleaner's hook, which takes a density.
pub const TORCH_SPARDL: &str = "torch-spardl";

/// What all-reduces synthetic gradients: methods of `bench`.
const ALL_REDUCES: [&str; 3] = ["open-mpi", "mpich", "gloo"];

/// Logistic regression by Apache Spark's MLlib, on a cluster of the emulated hosts: methods of `regress`.
pub const MLLIB: [&str; 2] = ["mllib-sgd", "mllib-lbfgs"];

/// Logistic regression by programs of one process, which need no network. They are methods of `regress`, too.
pub const LINEAR: [&str; 2] = ["liblinear", "vowpal-wabbit"];

/// Whether a method is another library.
pub fn is_peer(method: &str) -> bool {
    let others = [&HOOKS[..], &MLLIB, &LINEAR];
    is_dense(method) || others.iter().any(|methods| methods.contains(&method))
}

/// Whether a method is another library that all-reduces every value as 32 bits.
pub fn is_dense(method: &str) -> bool {
    method == DDP || method == TORCH_DENSE || ALL_REDUCES.contains(&method)
}

/// How the data of a training with a hook begin: a directory with files like MNIST's follows.
pub const MNIST: &str = "mnist:";

/// What such a training takes of a case, besides the data.
pub const HOOK_OPTIONS: [&str; 9] =
    ["steps", "batch", "lr", "lr_drops", "momentum", "evaluate_every", "seed", "model", "density"];

/// What MLlib takes of a case, besides the data.
pub const MLLIB_OPTIONS: [&str; 5] = ["features", "batch", "lr", "l2", "epochs"];

/// What the programs of one process take of a case, besides the data.
pub const LINEAR_OPTIONS: [&str; 1] = ["epochs"];

/// MPI takes the number of entries as an `int`.
pub const MOST_ENTRIES: u64 = i32::MAX as u64;

/// The programs of the peers: one in C, compiled where it is needed, and scripts.
const FILES: [(&str, &str); 8] = [
    ("allreduce.c", include_str!("allreduce.c")),
    ("mpirun.sh", include_str!("mpirun.sh")),
    ("agent.sh", include_str!("agent.sh")),
    ("gloo.py", include_str!("gloo.py")),
    ("ddp.py", include_str!("ddp.py")),
    ("hooks.py", include_str!("hooks.py")),
    ("mllib.py", include_str!("mllib.py")),
    ("linear.py", include_str!("linear.py")),
];

/// Implementations of MPI, each with its compiler, its starter, and the packages that have them.
const MPI: [(&str, &str, &str, &str); 2] = [
    ("open-mpi", "mpicc.openmpi", "mpirun.openmpi", "apt-get install openmpi-bin libopenmpi-dev"),
    ("mpich", "mpicc.mpich", "mpirun.mpich", "apt-get install mpich libmpich-dev"),
];

/// What a Python has to find for a peer: a program that fails where it does not, and what is said then.
fn needs(name: &str) -> (&'static str, &'static str) {
    match name {
        "mllib-sgd" | "mllib-lbfgs" => (
            "import os, shutil, numpy, pyspark; assert os.environ.get('JAVA_HOME') or shutil.which('java')",
            "has no PySpark, no NumPy, or no Java: apt-get install default-jre-headless, which has to be Java 17 or later, and pip \
             install pyspark numpy and name that Python by --python",
        ),
        "liblinear" => (
            "import shutil; assert shutil.which('liblinear-train')",
            "finds no liblinear-train: apt-get install liblinear-tools",
        ),
        "vowpal-wabbit" => (
            "import vowpalwabbit",
            "has no vowpalwabbit: pip install vowpalwabbit setuptools and name that Python by --python",
        ),
        TORCH_SPARDL => (
            "import gleaner.torch",
            "has no gleaner.torch: pip install torch and the package gleaner, and name that Python by --python",
        ),
        _ => (
            "import torch.distributed as d; assert d.is_gloo_available() if hasattr(d, 'is_gloo_available') else d.is_available()",
            "has no PyTorch with Gloo: apt-get install python3-torch, or pip install torch and name that Python by --python",
        ),
    }
}

/// What is there of the peers, and their programs, which are removed with it.
#[derive(Debug)]
pub struct Kit {
    directory: TempDir,
    there: BTreeSet<String>,
    python: PathBuf,
    /// Peers that are not there: their names, and what is missing and how to install it.
    pub missing: Vec<(String, String)>,
}

impl Kit {
    /// Looks for the peers of these names, and compiles what they need. `python` runs those that have a script.
    ///
    /// # Errors
    /// Files that cannot be written. A peer whose compiler fails is missing.
    pub fn make(python: &Path, wanted: BTreeSet<String>) -> Result<Self, Error> {
        let refused = |place: &Path, error: std::io::Error| {
            let advice = "make room there, or set TMPDIR";
            format!("the peers' programs cannot be written to {}: {error}; {advice}", place.display())
        };
        let directory = TempDir::with_prefix("gleaner-peers-");
        let directory = directory.map_err(|error| refused(&std::env::temp_dir(), error))?;
        for (name, text) in FILES {
            let file = directory.path().join(name);
            let written = fs::write(&file, text);
            let mode = Permissions::from_mode(0o755);
            let written = written.and_then(|()| fs::set_permissions(&file, mode));
            written.map_err(|error| refused(&file, error))?;
        }
        let python = python.to_owned();
        let mut kit = Self { directory, there: BTreeSet::new(), python, missing: Vec::new() };
        for name in wanted {
            match kit.prepare(&name) {
                Ok(()) => _ = kit.there.insert(name),
                Err(reason) => kit.missing.push((name, reason)),
            }
        }
        Ok(kit)
    }

    /// Looks for a peer; or says what is missing, and how to install it.
    fn prepare(&self, name: &str) -> Result<(), String> {
        let Some((_, compiler, starter, install)) = MPI.iter().find(|(mpi, ..)| *mpi == name) else {
            let (program, lacks) = needs(name);
            return match runs(Command::new(&self.python).args(["-c", program])) {
                true => Ok(()),
                false => Err(format!("{} {lacks}", self.python.display())),
            };
        };
        let programs = [compiler, starter];
        if let Some(missing) = programs.into_iter().find(|one| !runs(Command::new(one).arg("--version"))) {
            return Err(format!("there is no {missing}: {install}"));
        }
        let source = self.directory.path().join("allreduce.c");
        let output = Command::new(compiler).args(["-O2", "-o"]).arg(self.program(name)).arg(source).output();
        let said = match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        let last = said.lines().last().unwrap_or("nothing");
        Err(format!("{compiler} does not compile the all-reduce: {last}; try {install}"))
    }

    /// The job that measures a case whose method is a peer, and `again`, what to type to measure it again; none where the peer is not there.
    pub fn job(&self, case: &Case, mut again: Vec<String>) -> Option<Job> {
        let name = case.method();
        if !self.there.contains(&name) {
            return None;
        }
        let value = |name: &str| case.0.get(name).map(plain).unwrap_or_default();
        let job = |program, env, seats, again| Job { cases: vec![case.clone()], program, env, seats, again };
        if MPI.iter().any(|(mpi, ..)| *mpi == name) {
            let starter = self.directory.path().join("mpirun.sh");
            let (workers, program) = (case.workers().to_string().into(), self.program(&name).into());
            let mut program: Vec<OsString> =
                vec![starter.into(), name.clone().into(), workers, program, name.into()];
            program.extend(["params", "steps", "warmup", "seed"].map(|name| value(name).into()));
            return Some(job(program, Vec::new(), Seats::First, Some(again)));
        }
        let (script, options) = python_script(case);
        again.extend(["--python".to_owned(), self.python.display().to_string()]);
        let mut program: Vec<OsString> =
            vec![self.python.clone().into(), self.directory.path().join(script).into()];
        for (option, value) in options {
            program.extend([format!("--{option}").into(), value]);
        }
        // Gloo asks the host's name for its address; in a namespace that is another host's.
        let env = vec![("GLOO_SOCKET_IFNAME".to_owned(), "eth0".to_owned())];
        let seats = if MLLIB.contains(&&*name) { Seats::First } else { Seats::Workers };
        Some(job(program, env, seats, Some(again)))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("allreduce-{name}"))
    }
}

/// The script in Python that measures a case, and its options.
fn python_script(case: &Case) -> (&'static str, Vec<(String, OsString)>) {
    let name = case.method();
    let value = |name: &str| case.0.get(name).map(plain).unwrap_or_default();
    let file = |path: &str| std::path::absolute(path).unwrap_or_default().into_os_string();
    if name == DDP {
        // As of a training, the second half of the steps counts.
        let steps = case.0.get("steps").and_then(Value::as_u64).unwrap_or(0);
        let options = [
            ("layers", file(&value("layers"))),
            ("warmup", (steps / 2).to_string().into()),
            ("steps", (steps - steps / 2).to_string().into()),
        ];
        return ("ddp.py", options.map(|(option, value)| (option.into(), value)).into());
    }
    let given = |names: &[&'static str]| -> Vec<(String, OsString)> {
        let given = names.iter().filter_map(|name| Some((name, case.0.get(*name)?)));
        let given = given.filter(|(_, value)| **value != Value::Bool(false));
        given.map(|(name, value)| (name.replace('_', "-"), plain(value).into())).collect()
    };
    if HOOKS.contains(&&*name) {
        let data = value("data");
        let data = data.strip_prefix(MNIST).map_or_else(|| data.clone().into(), file);
        let options = vec![("hook".to_owned(), name.into()), ("data".to_owned(), data)];
        return ("hooks.py", [options, given(&HOOK_OPTIONS)].concat());
    }
    let is_mllib = MLLIB.contains(&&*name);
    if is_mllib || LINEAR.contains(&&*name) {
        let options = vec![("method".to_owned(), name.into()), ("data".to_owned(), file(&value("data")))];
        return match is_mllib {
            true => ("mllib.py", [options, given(&MLLIB_OPTIONS)].concat()),
            false => ("linear.py", [options, given(&LINEAR_OPTIONS)].concat()),
        };
    }
    let options = ["params", "steps", "warmup", "seed"].map(|name| (name.to_owned(), value(name).into()));
    ("gloo.py", options.into())
}

/// Whether it can be run, and ends well.
fn runs(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
