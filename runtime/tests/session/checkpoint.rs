//! Residuals, state and step survive a restart bit by bit.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Gradients, Layout, Session};

use crate::job::{self, NETWORKS, Over, gradient};

const N: usize = 900;

fn layout() -> Layout {
    Layout::new().parameter("late", 300).group().parameter("early", 600)
}

fn steps(session: &Session, gradients: &mut Gradients, steps: std::ops::Range<u64>) -> Vec<u32> {
    let mut bits = Vec::new();
    for step in steps {
        assert_eq!(gradients.step(), step);
        let g = gradient(N, session.rank(), step);
        gradients.ready("early", &g[300..]).unwrap();
        gradients.ready("late", &g[..300]).unwrap();
        let update = gradients.wait().unwrap();
        let mut mean = vec![0.0f32; N];
        update.add_to("late", &mut mean[..300], 1.0).unwrap();
        update.add_to("early", &mut mean[300..], 1.0).unwrap();
        bits.extend(mean.iter().map(|v| v.to_bits()));
    }
    bits
}

fn file(folder: &Path, session: &Session) -> PathBuf {
    folder.join(format!("rank-{}.safetensors", session.rank()))
}

#[test]
fn a_resumed_job_goes_on_bit_by_bit() {
    for method in [Method::spardl().density(0.05), Method::ring()] {
        let whole = job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            steps(&session, &mut gradients, 0..8)
        });
        let folder = tempfile::tempdir().unwrap();
        job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            steps(&session, &mut gradients, 0..5);
            gradients.save(file(folder.path(), &session)).unwrap();
        });
        let rest = job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            gradients.load(file(folder.path(), &session)).unwrap();
            steps(&session, &mut gradients, 5..8)
        });
        for (whole, rest) in whole.iter().zip(rest) {
            assert!(whole[5 * N..] == rest);
        }
    }
}

#[test]
fn a_checkpoint_of_another_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&layout(), Method::spardl().density(0.05)).unwrap();
    gradients.ready("late", &[0.5; 300]).unwrap();
    assert!(gradients.save(&path).unwrap_err().to_string().contains("between steps"));
    gradients.ready("early", &[0.5; 600]).unwrap();
    gradients.wait().unwrap();
    gradients.save(&path).unwrap();

    let refusal = |layout: Layout, method: Method| {
        let mut other = session.gradients(&layout, method).unwrap();
        let sentence = other.load(&path).unwrap_err().to_string();
        assert_eq!(other.step(), 0);
        sentence
    };
    let method = refusal(layout(), Method::ring());
    assert!(method.contains("its method is spardl") && method.contains("here it is ring"), "{method}");
    let spardl = Method::spardl().density(0.05);
    let length = refusal(Layout::new().parameter("late", 300).parameter("early", 601), spardl.clone());
    assert!(length.contains("length of 'early' is 600, here it is 601"), "{length}");
    let name = refusal(Layout::new().parameter("late", 300).parameter("soon", 600), spardl.clone());
    assert!(name.contains("length of 'soon' is missing"), "{name}");
    // Another grouping of the same parameters finds its residuals again.
    let mut regrouped =
        session.gradients(&Layout::new().parameter("late", 300).parameter("early", 600), spardl).unwrap();
    regrouped.load(&path).unwrap();
    assert_eq!(regrouped.step(), 1);
}

#[test]
fn neither_half_a_step_nor_a_failed_one_is_saved_or_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&layout(), Method::spardl().density(0.05)).unwrap();
    steps(&session, &mut gradients, 0..1);
    gradients.save(&path).unwrap();
    gradients.ready("late", &[0.5; 300]).unwrap();
    assert!(gradients.load(&path).unwrap_err().to_string().contains("between steps"));
    let mut poisoned = [0.5; 600];
    poisoned[599] = f32::NAN;
    assert!(gradients.ready("early", &poisoned).unwrap_err().to_string().contains("NaN"));
    let saved = std::fs::read(&path).unwrap();
    assert!(gradients.save(&path).unwrap_err().to_string().contains("NaN"), "the job has failed");
    assert!(gradients.load(&path).unwrap_err().to_string().contains("NaN"));
    assert!(std::fs::read(&path).unwrap() == saved);
}

fn spardl() -> Method {
    Method::spardl().density(0.05)
}

/// Saves what each of three ranks has after each of the steps, to `rank-R.step-S`.
fn save_steps(folder: &Path, saved: &[u64]) {
    job::run(Over::Memory, 3, |session| {
        let mut gradients = session.gradients(&layout(), spardl()).unwrap();
        for &step in saved {
            let from = gradients.step();
            steps(&session, &mut gradients, from..step);
            gradients.save(folder.join(format!("rank-{}.step-{step}", session.rank()))).unwrap();
        }
    });
}

/// The sentences of three ranks when each loads the file that `choose` gives it. A refusal leaves the job alive and the gradients
/// as they were.
fn refusals(over: Over, choose: impl Fn(usize) -> PathBuf + Sync) -> Vec<String> {
    job::run(over, 3, |session| {
        let mut gradients = session.gradients(&layout(), spardl()).unwrap();
        let (run, error) = (gradients.run().to_owned(), gradients.load(choose(session.rank())).unwrap_err());
        assert!(matches!(error, Error::Checkpoint(_)), "{error}");
        assert_eq!((gradients.step(), gradients.run()), (0, run.as_str()));
        steps(&session, &mut gradients, 0..1);
        error.to_string()
    })
}

#[test]
fn ranks_that_load_different_steps_all_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    save_steps(folder.path(), &[1, 2]);
    for over in NETWORKS {
        let refused = refusals(over, |rank| {
            let step = if rank == 2 { 2 } else { 1 };
            folder.path().join(format!("rank-{rank}.step-{step}"))
        });
        assert!(refused.iter().all(|sentence| *sentence == refused[0]), "{refused:?}");
        assert!(refused[0].contains("rank 0's is of step 1 "), "{}", refused[0]);
        assert!(refused[0].contains("rank 2's of step 2 "), "{}", refused[0]);
    }
}

#[test]
fn ranks_that_load_files_of_different_runs_all_say_the_same() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    folders.iter().for_each(|folder| save_steps(folder.path(), &[1]));
    let refused = refusals(Over::Memory, |rank| {
        folders[usize::from(rank == 1)].path().join(format!("rank-{rank}.step-1"))
    });
    assert!(refused.iter().all(|sentence| *sentence == refused[0]), "{refused:?}");
    let runs: Vec<&str> = refused[0].split("of run ").skip(1).map(|rest| &rest[..32]).collect();
    assert!(refused[0].contains("rank 0's") && refused[0].contains("rank 1's"), "{}", refused[0]);
    assert!(runs.len() == 2 && runs[0] != runs[1], "{}", refused[0]);
}

#[test]
fn a_file_of_another_rank_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    save_steps(folder.path(), &[1]);
    // Rank 1 is given rank 0's, and the others learn why they cannot go on.
    let refused = refusals(Over::Tcp, |rank| folder.path().join(format!("rank-{}.step-1", rank & 2)));
    let reason = "its rank is 0, here it is 1";
    assert!(refused.iter().all(|sentence| sentence.contains(reason)), "{refused:?}");
    for rank in [0, 2] {
        assert!(refused[rank].starts_with("rank 1 cannot go on from its checkpoint: "), "{}", refused[rank]);
    }
}

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    let session = Session::join().unwrap();
    let layout = Layout::new().parameter("w", 3);
    let mut gradients = session.gradients(&layout, Method::spardl().k(1)).unwrap();
    gradients.ready("w", &[0.5, -2.0, 0.25]).unwrap();
    gradients.wait().unwrap();
    gradients.save(&path).unwrap();
    gradients.load(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        let error = gradients.load(&path).expect_err(&format!("bit {bit} of {}", whole.len() * 8));
        assert!(error.to_string().contains("is no checkpoint of residuals"), "bit {bit}: {error}");
        assert!(error.to_string().contains("and go on from an earlier checkpoint"), "bit {bit}: {error}");
    }
    println!("{} bits", whole.len() * 8);
    fs::write(&path, &whole).unwrap();
    gradients.load(&path).unwrap();
}

#[test]
fn only_the_owner_may_read_a_checkpoint_and_no_planted_link_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, precious) = (folder.path().join("r.safetensors"), folder.path().join("precious"));
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o644)).unwrap();
    // Where the file belongs, and where it was written beside until it had a random name.
    symlink(&precious, &path).unwrap();
    symlink(&precious, folder.path().join(format!(".r.safetensors.{}.partial", std::process::id()))).unwrap();
    let session = Session::join().unwrap();
    let gradients = session.gradients(&layout(), spardl()).unwrap();
    gradients.save(&path).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    let meta = fs::symlink_metadata(&path).unwrap();
    assert!(meta.is_file());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_a_killed_writer_left_is_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    let path = in_folder("r.safetensors");
    let others = [
        "r.safetensors.0123456789abcdef.partial",
        ".s.safetensors.0123456789abcdef.partial",
        ".r.safetensors.4711.partial",
        ".r.safetensors",
        "r.safetensors.old",
    ];
    let left = [".r.safetensors.0123456789abcdef.partial", ".r.safetensors.fedcba9876543210.partial"];
    for name in others.iter().chain(&left) {
        fs::write(in_folder(name), "half").unwrap();
    }
    // Another process is writing this one.
    let living = in_folder(".r.safetensors.00000000deadbeef.partial");
    let writer: File = OpenOptions::new().write(true).create_new(true).open(&living).unwrap();
    writer.lock().unwrap();
    let session = Session::join().unwrap();
    let gradients = session.gradients(&layout(), spardl()).unwrap();
    gradients.save(&path).unwrap();
    assert!(path.is_file() && living.is_file());
    assert!(others.iter().all(|name| in_folder(name).is_file()));
    assert!(left.iter().all(|name| !in_folder(name).exists()));
    drop(writer);
    gradients.save(&path).unwrap();
    assert!(!living.exists());
}

#[test]
fn the_run_stays_the_same_when_a_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let begun = job::run(Over::Tcp, 3, |session| {
        let mut gradients = session.gradients(&layout(), spardl()).unwrap();
        steps(&session, &mut gradients, 0..1);
        gradients.save(file(folder.path(), &session)).unwrap();
        gradients.regroup(&Layout::new().parameter("early", 600).parameter("late", 300)).unwrap();
        gradients.run().to_owned()
    });
    assert!(begun.iter().all(|run| *run == begun[0]));
    assert!(begun[0].len() == 32 && begun[0].bytes().all(|digit| digit.is_ascii_hexdigit()), "{}", begun[0]);
    let went_on = job::run(Over::Tcp, 3, |session| {
        let mut gradients = session.gradients(&layout(), spardl()).unwrap();
        let fresh = gradients.run().to_owned();
        gradients.load(file(folder.path(), &session)).unwrap();
        (fresh, gradients.run().to_owned())
    });
    assert!(went_on.iter().all(|(fresh, run)| *run == begun[0] && *fresh != begun[0]), "{went_on:?}");
}
