//! What a program's threads do with a signal that would end it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::ptr::null_mut;

use gleaner_c::{gleaner_join, gleaner_leave, gleaner_status};

/// SIGPIPE ends a program that has not said what to do with it, and a thread that has it blocked gets the error of its write alone.
#[test]
fn the_threads_that_write_to_peers_have_sigpipe_blocked_and_the_callers_have_not() {
    const SIGPIPE: u64 = 1 << (13 - 1);
    let mut session = null_mut();
    // SAFETY: there is room for a handle.
    assert_eq!(unsafe { gleaner_join(&mut session) }, gleaner_status::GLEANER_OK);
    let mut writers = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let name = fs::read_to_string(task.join("comm")).unwrap();
        let status = fs::read_to_string(task.join("status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let is_blocked = u64::from_str_radix(mask.trim(), 16).unwrap() & SIGPIPE != 0;
        writers += usize::from(name.trim() == "gleaner-io");
        assert_eq!(is_blocked, name.starts_with("gleaner-"), "{name}");
    }
    assert_eq!(writers, 1);
    gleaner_leave(session);
}
