//! Where the secret of a running job is, and where it is not.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use crate::job::{Job, SECRET, steps_done};
use crate::process::{eventually, gleaner, processor_time, start};

/// All that a process may write to, as far as it can be read.
fn memory(id: u32) -> Vec<u8> {
    let mut memory = File::open(format!("/proc/{id}/mem")).unwrap();
    let mut bytes = Vec::new();
    for line in fs::read_to_string(format!("/proc/{id}/maps")).unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        if rest.starts_with("rw") {
            let (from, to) = range.split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
            memory.seek(SeekFrom::Start(from)).unwrap();
            let _ = (&mut memory).take(to - from).read_to_end(&mut bytes);
        }
    }
    bytes
}

fn count(bytes: &[u8], word: &[u8]) -> usize {
    bytes.windows(word.len()).filter(|window| *window == word).count()
}

#[test]
fn it_is_in_no_memory_of_a_worker_that_has_joined() {
    let raw: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&SECRET[2 * i..][..2], 16).unwrap()).collect();
    let job = Job::new(3, &["--params", "100", "--steps", "100000000", "--method", "ring"]);
    let mut ranks = job.start();
    steps_done(&mut ranks[0], 3);
    for rank in &ranks {
        let memory = memory(rank.id());
        assert!(count(&memory, b"GLEANER_SECRET_FILE=") > 0, "its environment at least is seen");
        assert_eq!((count(&memory, &raw), count(&memory, SECRET.as_bytes())), (0, 0));
    }
}

/// A worker under the launcher, with a child that inherits all there is to inherit.
#[test]
fn it_is_in_no_environment_and_the_pipe_is_empty_that_a_child_inherits() {
    let mut command = gleaner();
    command.args(["launch", "--workers", "2", "--", "sh", "-c"]);
    let bench = "exec \"$0\" bench --json --params 100 --steps 100000000 --method ring";
    command.arg(format!("sleep 600 & {bench}")).arg(env!("CARGO_BIN_EXE_gleaner"));
    let process = start(command);
    let worker = process.worker(1);
    eventually("it computes", || processor_time(worker) > std::time::Duration::from_millis(200));
    let family = process.family();
    assert!(
        family.len() >= 7,
        "the launcher, and twice a shell, a watcher, a child and a worker: {family:?}"
    );
    let mut pipes = 0;
    for id in family {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let command_line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        for entry in environment.split(|byte| *byte == 0).chain(command_line.split(|byte| *byte == 0)) {
            let digits = |part: &[u8]| part.iter().all(u8::is_ascii_hexdigit);
            assert!(!entry.windows(64).any(digits), "{}", String::from_utf8_lossy(entry));
        }
        if command_line.starts_with(b"sleep") {
            let pipe = format!("/proc/{id}/fd/3");
            let is_same =
                |other: &fs::DirEntry| fs::read_link(other.path()).ok() == fs::read_link(&pipe).ok();
            let descriptors = |id: u32| fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
            let (of_worker, of_other) = (process.worker(0), worker);
            assert!(
                [of_worker, of_other].iter().all(|id| !descriptors(*id).any(|fd| is_same(&fd))),
                "it is closed"
            );
            // O_NONBLOCK: a writer that is left would be seen, and not waited for.
            let mut pipe = File::options().read(true).custom_flags(0o4000).open(pipe).unwrap();
            assert_eq!(pipe.read(&mut [0; 100]).unwrap(), 0, "it is read, and its writer is gone");
            pipes += 1;
        }
    }
    assert_eq!(pipes, 2);
}
