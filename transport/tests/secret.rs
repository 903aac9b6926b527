//! Where a job's secret comes from.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use gleaner_transport::{Secret, SecretError};
use proptest::prelude::*;

fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    (folder, path)
}

#[test]
fn a_secret_comes_back_from_its_hexadecimal_digits() {
    let secret = Secret::random().unwrap();
    let hex = secret.to_hex();
    assert_eq!(hex.len(), 64);
    assert_ne!(hex, Secret::random().unwrap().to_hex());
    assert_eq!(Secret::from_hex(&hex).unwrap().to_hex(), hex);
    for content in [hex.clone(), format!("{hex}\n"), format!("{hex}\r\n"), hex.to_uppercase()] {
        let (_folder, path) = file(content.as_bytes(), 0o600);
        assert_eq!(Secret::from_file(&path).unwrap().to_hex(), hex);
    }
    assert_eq!(format!("{secret:?}"), "Secret(..)");
}

#[test]
fn thirty_two_raw_bytes_are_a_secret() {
    let (_folder, path) = file(&[0xab; 32], 0o400);
    assert_eq!(Secret::from_file(&path).unwrap().to_hex(), "ab".repeat(32));
}

#[test]
fn a_file_that_others_may_use_is_refused() {
    for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        let (_folder, path) = file(&[0xab; 32], mode);
        let error = Secret::from_file(&path).unwrap_err();
        assert!(matches!(error, SecretError::Exposed { mode: found, .. } if found == mode));
        let path = path.display();
        let expected = format!(
            "the secret file {path} has mode {mode:04o}, so others than its owner may use it: run `chmod 600 {path}`"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    let (_folder, path) = file(&[0xab; 32], 0o600);
    if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
        gleaner_skips::skip("root", "only root gives files away");
        return;
    }
    let error = Secret::from_file(&path).unwrap_err();
    assert!(matches!(error, SecretError::Foreign { owner: 12345, .. }));
    let error = error.to_string();
    assert!(error.contains("is owned by UID 12345") && error.contains("runs as UID"), "{error}");
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let hex = "0123456789abcdef".repeat(4);
    assert_eq!(Secret::from_pipe(format!("{hex}\n").as_bytes()).unwrap().to_hex(), hex);
    for wrong in [String::new(), "\n".to_owned(), format!("{hex}0\n"), "x".repeat(64), "1".repeat(5000)] {
        let error = Secret::from_pipe(wrong.as_bytes()).unwrap_err();
        assert!(matches!(error, SecretError::NotHex { .. }), "{error}");
    }
}

#[test]
fn what_is_no_secret_is_refused_without_being_shown() {
    let almost = format!("{}g", "0".repeat(63));
    for (content, found) in [
        (&b"hunter2"[..], "7 bytes"),
        (b"", "0 bytes"),
        (&[b'0'; 2000], "1024 bytes or more"),
        (almost.as_bytes(), "64 characters that are not all hexadecimal"),
    ] {
        let (_folder, path) = file(content, 0o600);
        let error = Secret::from_file(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("holds {found}")), "{error}");
        assert!(!error.contains("hunter2"));
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Secret::from_file(folder.path()), Err(SecretError::NotAFile { .. })));
    assert!(matches!(Secret::from_file(folder.path().join("none")), Err(SecretError::Unreadable { .. })));
}

proptest! {
    #[test]
    fn only_64_hexadecimal_digits_are_read(text in "\\PC{0,70}") {
        prop_assert!(Secret::from_hex(&text).is_err() || text.len() == 64);
    }
}
