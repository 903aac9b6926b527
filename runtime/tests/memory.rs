//! Memory that was freed stays with the process.

#![expect(clippy::unwrap_used, reason = "a test, though it has a main of its own")]

use std::hint::black_box;
use std::process::Command;
use std::{env, fs, thread};

use gleaner_runtime::keep_freed_memory;

const PAGE: u64 = 4096;

/// More than glibc takes from its heap by itself.
const MIB: usize = 64;

/// Page faults of this process so far that needed no disk.
fn faults() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // After the name, which is in parentheses: state, ppid, pgrp, session, tty, tpgid, flags, minflt.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// How often a thread of each process allocates, writes and frees so much.
const TIMES: u64 = 8;

/// Its page faults.
fn churn() -> u64 {
    let before = faults();
    for _ in 0..TIMES {
        black_box(vec![1u8; MIB << 20]);
    }
    faults() - before
}

fn main() {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        gleaner_skips::skip("glibc", "there is no glibc here");
        return;
    }
    match env::var("KEEPS").as_deref() {
        Ok("yes") => keep_freed_memory(),
        Ok(_) => {}
        Err(_) => return compare(),
    }
    println!("{}", thread::spawn(churn).join().unwrap());
}

/// A process that keeps memory beside one that does not.
fn compare() {
    let [kept, returned] = ["yes", "no"].map(|keeps| {
        let output = Command::new(env::current_exe().unwrap()).env("KEEPS", keeps).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
    });
    let once = (MIB as u64) << 20 >> PAGE.trailing_zeros();
    println!("{TIMES} times {once} pages: {kept} page faults if memory is kept, {returned} if not");
    assert!(kept < once + once / 2, "each page comes once");
    assert!(returned > (TIMES - 1) * once, "by itself, glibc does not keep so much");
}
