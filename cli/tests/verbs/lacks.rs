//! Machines that cannot be emulated here, for lack of qemu or of a server of Debian's packages.

use std::process::Command;

/// Whether a machine could be had, by how its command ended and what that said; if not, the test says so and passes.
pub fn can_be_here(code: Option<i32>, said: &str) -> bool {
    let cannot = code == Some(125)
        && ["PATH, found none", "apt-get", "Debian package"].iter().any(|words| said.contains(words));
    if cannot {
        let place = tempfile::tempdir().unwrap();
        let asks = |program: &str, arguments: &[&str]| {
            let done = Command::new(program).args(arguments).current_dir(&place).output();
            done.is_ok_and(|done| done.status.success())
        };
        let all_here = !said.contains("PATH, found none")
            && asks("qemu-system-x86_64", &["--version"])
            && asks("apt-get", &["download", "busybox-static", "linux-image-amd64"]);
        assert!(!all_here, "qemu and the package server are here, and yet: {said}");
        gleaner_skips::skip("qemu", said.trim());
    }
    !cannot
}
