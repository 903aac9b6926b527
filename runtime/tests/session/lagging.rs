//! Ranks that are in different steps: one that is late is waited for, and reported; one that can never come ends the job.

use std::process::Command;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Failure, Session};
use gleaner_transport::{LinkError, Message, Network, Peer, Tag, memory};

use crate::changed::Changed;

/// Longer than a busy machine stands still.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Takes bags of step 3 for bags of step 2, as a rank does that has fallen out of step.
fn shift(Message { tag, payload }: Message) -> Result<Message, LinkError> {
    let is_shifted = !tag.is_control() && tag.0 & 0xff_ffff == 3;
    Ok(Message { tag: Tag(tag.0 - u64::from(is_shifted)), payload })
}

/// Takes five steps of which each rank sends one message, and pauses before the third.
fn steps(session: &Session, pause: Duration) -> Result<(), Error> {
    let mut reducer = session.reducer("r", 8, Method::named("recursive-doubling").unwrap())?;
    for step in 0..5 {
        if step == 2 {
            std::thread::sleep(pause);
        }
        reducer.start(&[1.0; 8])?.wait()?;
    }
    Ok(())
}

#[test]
fn steps_that_can_never_meet_end_the_job() {
    let mut networks = memory::networks(2).into_iter();
    let (zero, one) = (networks.next().unwrap(), networks.next().unwrap());
    let rank = |session: Session| match steps(&session, Duration::ZERO) {
        Err(Error::Failed(failure)) => failure,
        other => panic!("expected a failure and found {other:?}"),
    };
    let zero =
        std::thread::spawn(move || rank(Session::over(async { Ok(Changed(zero, shift)) }, TIMEOUT).unwrap()));
    let one = std::thread::spawn(move || rank(Session::over(async { Ok(one) }, TIMEOUT).unwrap()));
    let reason = "it is past step 3, in which rank 0 needs more from it: the two can never meet; all ranks must take the same \
                  steps and make the same calls";
    let expected = Failure { rank: 1, step: Some(4), reason: reason.to_owned() };
    assert_eq!([zero.join().unwrap(), one.join().unwrap()], [expected.clone(), expected]);
}

/// A rank that takes fewer steps than the others waits for them in a call, and they wait for it in a step.
#[test]
fn a_call_and_a_step_that_wait_for_each_other_end_the_job() {
    let ranks: Vec<_> = memory::networks(3)
        .into_iter()
        .map(|network| {
            std::thread::spawn(move || {
                let steps = if network.peer() == Peer(1) { 4 } else { 6 };
                let session = Session::over(async { Ok(network) }, TIMEOUT).unwrap();
                let mut reducer = session.reducer("r", 8, Method::ring()).unwrap();
                let mut job = (0..steps).map(|_| reducer.start(&[1.0; 8])?.wait().map(drop));
                match job.by_ref().collect::<Result<(), _>>().and_then(|()| session.barrier()) {
                    Err(Error::Failed(failure)) => failure,
                    other => panic!("expected a failure and found {other:?}"),
                }
            })
        })
        .collect();
    for rank in ranks {
        let failure = rank.join().unwrap();
        assert_eq!((failure.rank, failure.step), (1, Some(4)), "{failure}");
        assert!(failure.reason.starts_with("it waits in a call of all ranks while rank "), "{failure}");
    }
}

const LATE: &str = "GLEANER_TEST_LATE";

/// How long the rank that is late evaluates: so long that it is reported after one timeout and after two.
fn pause() -> Duration {
    TIMEOUT * 7 / 2
}

/// Not a test of its own: as a process of its own, a job of two whose second rank evaluates for long.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn late_process() {
    if std::env::var_os(LATE).is_none() {
        return;
    }
    let ranks: Vec<_> = memory::networks(2)
        .into_iter()
        .map(|network| {
            std::thread::spawn(move || {
                let pause = pause() * network.peer().0;
                let session = Session::over(async { Ok(network) }, TIMEOUT).unwrap();
                steps(&session, pause).unwrap();
                session.barrier().unwrap();
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// After how many seconds it was said each time that the late rank is waited for.
fn reports() -> Vec<f64> {
    let mut late = Command::new(std::env::current_exe().unwrap());
    let late = late
        .args(["--exact", "lagging::late_process", "--ignored", "--nocapture"])
        .env(LATE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&late.stderr);
    assert!(late.status.success(), "{said}");
    let waits = said.lines().filter(|line| line.contains("has waited")).map(|line| {
        let waited = line.strip_prefix("gleaner: rank 0 has waited ").expect(line);
        let (waited, rest) = waited.split_once(" s in step 2 for rank 1").expect(line);
        assert_eq!(rest, ", which is alive and before step 2");
        waited.parse::<f64>().unwrap()
    });
    waits.collect()
}

/// After one timeout and after two, and never earlier; on a busy machine perhaps later, at most twice in a row. Written in tenths of a second.
#[test]
fn one_that_is_late_is_reported_and_waited_for() {
    let timeout = TIMEOUT.as_secs_f64();
    let late = |reports: &Vec<f64>| {
        assert!(reports.first().is_some_and(|first| *first > timeout - 0.1), "{reports:?}");
        assert!(reports.windows(2).all(|pair| pair[1] > 2.0 * pair[0] - 0.2), "{reports:?}");
        reports.len() != 2 || reports[0] > 1.5 * timeout
    };
    let late: Vec<_> = (0..3).map(|_| reports()).take_while(late).collect();
    assert!(late.len() < 3, "{late:?}");
}
