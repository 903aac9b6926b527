//! Reuse of memory that a step has given back.

/// Keeps freed memory for the rest of the process, where that is glibc's to decide: to be called first in `main`, before any
/// other thread runs.
///
/// A step allocates some megabytes of bags and frees them. By itself glibc returns much of that to the system, and gets it
/// back in the next step page by page, each filled with zeros first; on a virtual machine whose host takes free pages
/// back, that may take longer than choosing the entries. Afterwards one heap serves all threads, nothing is returned, and no
/// allocation has a mapping of its own, so the process keeps what it once had. That suits a program that does little but
/// steps; one with many threads that allocate at once may prefer not to call this. Elsewhere, and under another allocator,
/// nothing happens.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, -1)] {
        // SAFETY: mallopt takes two numbers and has no precondition. It refuses what it does not know, and then all stays
        // as it was: slower, and right.
        unsafe { libc::mallopt(option, value) };
    }
}
