//! What is there of the peers, and the files that they need: a program in C, compiled here, and scripts.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::experiment::{Case, Job, Seats, plain};

const PROGRAM: &str = include_str!("allreduce.c");
const MPIRUN: &str = include_str!("mpirun.sh");
const AGENT: &str = include_str!("agent.sh");
const GLOO: &str = include_str!("gloo.py");
const DDP: &str = include_str!("ddp.py");

/// Implementations of MPI, each with its compiler, its starter, and the packages that have them.
const MPI: &[(&str, &str, &str, &str)] = &[
    ("open-mpi", "mpicc.openmpi", "mpirun.openmpi", "apt-get install openmpi-bin libopenmpi-dev"),
    ("mpich", "mpicc.mpich", "mpirun.mpich", "apt-get install mpich libmpich-dev"),
];

/// A peer that is not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// What is missing, and how to install it.
    pub reason: String,
}

/// A kit that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum KitError {
    /// No room for temporary files.
    #[error("the peers' programs cannot be written to {place}: {source}; make room there, or set TMPDIR")]
    Write {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A compiler that is there and does not work.
    #[error("{compiler} does not compile the all-reduce: {said}")]
    Compile {
        /// The compiler.
        compiler: &'static str,
        /// The end of what it said.
        said: String,
    },
}

/// The files, which go with it.
#[derive(Debug)]
pub struct Kit {
    directory: TempDir,
    mpi: Vec<&'static str>,
    /// A Python that has PyTorch with Gloo.
    python: Option<PathBuf>,
    missing: Vec<Missing>,
}

impl Kit {
    /// Looks for the peers, and compiles what the ones that are there need. `python` is tried for PyTorch. Of an iteration the only peer is
    /// PyTorch's DDP.
    ///
    /// # Errors
    /// Files that cannot be written. A peer whose compiler fails is missing.
    pub fn make(python: &Path, is_iteration: bool) -> Result<Self, KitError> {
        let write = |place: PathBuf| move |source| KitError::Write { place, source };
        let directory = TempDir::with_prefix("gleaner-peers-").map_err(write(std::env::temp_dir()))?;
        let files = [
            ("allreduce.c", PROGRAM),
            ("mpirun.sh", MPIRUN),
            ("agent.sh", AGENT),
            ("gloo.py", GLOO),
            ("ddp.py", DDP),
        ];
        for (name, text) in files {
            let file = directory.path().join(name);
            let written = fs::write(&file, text);
            let mode = Permissions::from_mode(0o755);
            written.and_then(|()| fs::set_permissions(&file, mode)).map_err(write(file))?;
        }
        let mut kit = Self { directory, mpi: Vec::new(), python: None, missing: Vec::new() };
        for (name, compiler, starter, install) in MPI.iter().filter(|_| !is_iteration) {
            match [compiler, starter]
                .into_iter()
                .find(|program| !runs(Command::new(program).arg("--version")))
            {
                Some(lacking) => kit.miss(name, format!("there is no {lacking}: {install}")),
                None => match kit.compile(name, compiler) {
                    Ok(()) => kit.mpi.push(name),
                    Err(error) => kit.miss(name, format!("{error}; try {install}")),
                },
            }
        }
        let gloo = "import torch.distributed as d; assert d.is_gloo_available() if hasattr(d, 'is_gloo_available') else d.is_available()";
        if runs(Command::new(python).args(["-c", gloo])) {
            kit.python = Some(python.to_owned());
        } else {
            let python = python.display();
            kit.miss(
                if is_iteration { "ddp" } else { "gloo" },
                format!("{python} has no PyTorch with Gloo: apt-get install python3-torch, or pip install torch and name that Python by --python"),
            );
        }
        Ok(kit)
    }

    /// Peers that are not there.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// The job that measures a case whose method is a peer, with its `params`, `steps`, `warmup` and `seed`, and what to type to measure it
    /// again; none where the peer is not there.
    pub fn all_reduce(&self, case: &Case, again: Vec<String>) -> Option<Job> {
        let number = |name: &str| case.0.get(name).map(plain).unwrap_or_default();
        let name = case.method();
        if name == "gloo" {
            return self.torch(case, "gloo.py", &["params", "seed"].map(|name| (name, number(name))), again);
        }
        let mpi = self.mpi.iter().find(|mpi| **mpi == name)?;
        let mut program: Vec<OsString> =
            vec![self.directory.path().join("mpirun.sh").into(), name.clone().into()];
        program.extend([case.workers().to_string().into(), self.program(mpi).into(), name.into()]);
        program.extend(["params", "steps", "warmup", "seed"].map(|name| number(name).into()));
        let cases = vec![case.clone()];
        Some(Job { cases, program, env: Vec::new(), seats: Seats::First, again: Some(again) })
    }

    /// The job that measures an iteration of DDP, whose passes take what a file says.
    pub(super) fn iteration(&self, case: &Case, layers: &Path, again: Vec<String>) -> Option<Job> {
        self.torch(case, "ddp.py", &[("layers", layers.display().to_string())], again)
    }

    /// A script for PyTorch, with these options and those that say how many steps there are.
    fn torch(
        &self,
        case: &Case,
        script: &str,
        options: &[(&str, String)],
        mut again: Vec<String>,
    ) -> Option<Job> {
        let python = self.python.clone()?;
        again.extend(["--python".to_owned(), python.display().to_string()]);
        let mut program: Vec<OsString> = vec![python.into(), self.directory.path().join(script).into()];
        let counts = ["steps", "warmup"].map(|name| (name, case.0.get(name).map(plain).unwrap_or_default()));
        for (option, value) in options.iter().chain(&counts) {
            program.extend([format!("--{option}").into(), value.into()]);
        }
        // Gloo asks the host's name for its address; in a namespace that is another host's.
        let env = vec![("GLOO_SOCKET_IFNAME".to_owned(), "eth0".to_owned())];
        Some(Job { cases: vec![case.clone()], program, env, seats: Seats::Workers, again: Some(again) })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("allreduce-{name}"))
    }

    fn miss(&mut self, name: &str, reason: String) {
        self.missing.push(Missing { name: name.to_owned(), reason });
    }

    fn compile(&self, name: &str, compiler: &'static str) -> Result<(), KitError> {
        let source = self.directory.path().join("allreduce.c");
        let output = Command::new(compiler).args(["-O2", "-o"]).arg(self.program(name)).arg(source).output();
        let said = match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        let last = said.lines().last().unwrap_or("nothing").to_owned();
        Err(KitError::Compile { compiler, said: last })
    }
}

/// Whether it can be run, and ends well.
fn runs(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
