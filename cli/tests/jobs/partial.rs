//! A worker fails where no message ends: within a header, within a payload, and at each stage of joining. A relay between
//! ranks 1 and 0 of three passes bytes on up to that place and no further.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{scope, spawn};
use std::time::{Duration, Instant};

use crate::job::Job;
use crate::process::{eventually, ports};

const TIMEOUT: Duration = Duration::from_secs(8);

/// Jobs at once: they mostly wait.
const AT_ONCE: usize = 16;

/// Bytes of what rank 1 says before it is welcome: a hello; a proof and a card without anything on it, each in a record.
const HELLO: usize = 88;
const PROOF: usize = 33;
const CARD: usize = 36;
/// Bytes of what rank 0 says: a challenge; an admission, in a record; and who else is there, in a message with one card.
const CHALLENGE: usize = 56;
const ADMISSION: usize = 28;
const OUTCOME: usize = 41;
/// Bytes before those of a record, and behind them; bytes of a header.
const RECORD: [usize; 2] = [4, 16];
const HEADER: usize = 16;

/// Long messages that pass before the one with the fault.
const SPARED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Rank 1 is killed.
    Kill,
    /// It is stopped.
    Stop,
    /// Nothing passes between it and rank 0 any more.
    Mute,
    /// Its connection to rank 0 is closed at both ends.
    Cut,
}

const FAULTS: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::Mute, Fault::Cut];

/// Up to where bytes pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// So many from the beginning.
    Byte(usize),
    /// Of a long message, or of the record that it is in, so many of its head, or half of it.
    Head(usize),
    Half,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    place: Place,
    /// Whether that is of what rank 1 sends, or of what it receives.
    says: bool,
    is_plain: bool,
}

/// The connections through the relay, which are open while this is kept.
struct Relay {
    ends: [TcpStream; 2],
    is_shut: Arc<AtomicBool>,
}

/// Passes on what comes, up to the place.
struct Pump {
    from: TcpStream,
    to: TcpStream,
    is_shut: Arc<AtomicBool>,
}

impl Pump {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_shut.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.to.write_all(bytes)
    }

    /// So many bytes as they come, since what follows may be an answer to an answer to these.
    fn pass(&mut self, mut count: usize) -> io::Result<()> {
        let mut bytes = vec![0; 64 << 10];
        while count > 0 {
            let most = count.min(bytes.len());
            let read = self.from.read(&mut bytes[..most])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.write(&bytes[..read])?;
            count -= read;
        }
        Ok(())
    }

    /// Returns at the place, or with the end of the connection.
    fn pass_until(&mut self, place: Place, joined: usize, is_plain: bool) -> io::Result<()> {
        if let Place::Byte(count) = place {
            return self.pass(count);
        }
        self.pass(joined)?;
        let mut spared = 0;
        loop {
            let mut head = vec![0; if is_plain { HEADER } else { RECORD[0] }];
            self.from.read_exact(&mut head)?;
            let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
            let rest = if is_plain { word(4) & 0x001f_ffff } else { word(0) + RECORD[1] };
            spared += usize::from(rest > 1024);
            if rest <= 1024 || spared <= SPARED {
                self.write(&head)?;
                self.pass(rest)?;
                continue;
            }
            if let Place::Head(count) = place {
                return self.write(&head[..count]);
            }
            self.write(&head)?;
            return self.pass(rest / 2);
        }
    }
}

/// The port at which rank 1 reaches rank 0, and where the relay reports when it has reached the place.
fn relay(zero: u16, case: Case) -> (u16, mpsc::Receiver<Relay>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (reached, relays) = mpsc::channel();
    spawn(move || -> io::Result<()> {
        let near = listener.accept()?.0;
        // A second connection is refused.
        drop(listener);
        let far = TcpStream::connect(("127.0.0.1", zero))?;
        let is_shut = Arc::new(AtomicBool::new(false));
        let pump = |from: &TcpStream, to: &TcpStream| {
            Ok::<_, io::Error>(Pump {
                from: from.try_clone()?,
                to: to.try_clone()?,
                is_shut: Arc::clone(&is_shut),
            })
        };
        let (out, back) = (pump(&near, &far)?, pump(&far, &near)?);
        let (mut stopped, mut other) = if case.says { (out, back) } else { (back, out) };
        spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(count @ 1..) = other.from.read(&mut bytes)
                && other.write(&bytes[..count]).is_ok()
            {}
        });
        let outcome = if case.is_plain { OUTCOME } else { OUTCOME + RECORD[0] + RECORD[1] };
        let joined = if case.says { HELLO + PROOF + CARD } else { CHALLENGE + ADMISSION + outcome };
        stopped.pass_until(case.place, joined, case.is_plain)?;
        is_shut.store(true, Ordering::SeqCst);
        let _ = reached.send(Relay { ends: [near, far], is_shut });
        Ok(())
    });
    (port, relays)
}

/// Runs one job with a fault, and says what is wrong with how it ends.
fn run(case: Case) -> Result<(), String> {
    let arguments = ["--params", "300000", "--steps", "100000000", "--method", "topka", "--density", "0.5"];
    let job = Job { timeout: TIMEOUT, ..Job::new(3, &arguments) };
    let plain = ("GLEANER_PLAIN", if case.is_plain { "1" } else { "0" });
    let zero = job.rank_with(0, &[], &[plain]);
    eventually("rank 0 listens", || ports(zero.id()).contains(&job.port));
    let two = job.rank_with(2, &[], &[plain]);
    // It listens once it has reached rank 0, and so has come when rank 1 begins.
    eventually("rank 2 comes", || !ports(two.id()).is_empty());
    let (port, relays) = relay(job.port, case);
    let rendezvous = format!("127.0.0.1:{port}");
    let one = job.rank_with(1, &[], &[plain, ("GLEANER_RENDEZVOUS", &rendezvous)]);
    let mut ranks = [zero, one, two];
    let relay = relays.recv_timeout(Duration::from_secs(20)).map_err(|_| "the place was not reached")?;
    let since = Instant::now();
    let cut = |relay: &Relay| relay.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    match case.fault {
        Fault::Kill => {
            ranks[1].signal("KILL");
            ranks[1].end(TIMEOUT);
            cut(&relay);
        }
        Fault::Stop => ranks[1].signal("STOP"),
        Fault::Mute => {}
        Fault::Cut => cut(&relay),
    }
    assert!(relay.is_shut.load(Ordering::SeqCst));
    let is_joining = matches!(case.place, Place::Byte(_));
    // Of one connection that is closed while both ends live, either sees the other's end.
    let either = case.fault == Fault::Cut && !is_joining;
    for (rank, process) in ranks.iter_mut().enumerate() {
        let is_victim = rank == 1;
        if is_victim && matches!(case.fault, Fault::Kill | Fault::Stop) {
            continue;
        }
        let ended = process.end(3 * TIMEOUT);
        let last = ended.err.lines().last().unwrap_or_default();
        let names = last.contains("rank 1 failed") || is_joining && last.contains("; rank 1 did not come");
        let left =
            is_joining && last.contains("rank 1 at ") && last.contains("left while rank 0 was waiting");
        let names_zero = last.contains("rank 0 failed");
        if ended.code <= 0 || !(names || left || (either && names_zero) || (is_victim && is_joining)) {
            return Err(format!("rank {rank} ended with {} and says: {last}", ended.code));
        }
    }
    // A worker that joins has the timeout, and may take half of it more to say who is missing; then steps may begin.
    if since.elapsed() > 3 * TIMEOUT + Duration::from_secs(5) {
        return Err(format!("it took {:?}", since.elapsed()));
    }
    Ok(())
}

fn run_all(cases: impl Iterator<Item = Case>) {
    let (cases, wrong) = (Mutex::new(cases.collect::<VecDeque<_>>()), Mutex::new(Vec::new()));
    let count = cases.lock().unwrap().len();
    scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop_front() else { return };
                    if let Err(what) = run(case) {
                        wrong.lock().unwrap().push(format!("{case:?}: {what}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {count} jobs:\n{}", wrong.len(), wrong.join("\n"));
    println!("{count} jobs had a fault");
}

#[test]
fn a_rank_that_fails_within_a_header_or_a_payload_is_named_by_all_others() {
    let links = [false, true].into_iter().flat_map(|is_plain| [true, false].map(|says| (is_plain, says)));
    run_all(links.flat_map(|(is_plain, says)| {
        let head = if is_plain { HEADER / 2 } else { RECORD[0] / 2 };
        let places = [Place::Head(head), Place::Half];
        places.into_iter().flat_map(move |place| FAULTS.map(|fault| Case { fault, place, says, is_plain }))
    }));
}

#[test]
fn a_rank_that_fails_while_it_joins_is_named_by_all_others() {
    let says = [
        0,
        HELLO / 2,
        HELLO,
        HELLO + PROOF / 2,
        HELLO + PROOF,
        HELLO + PROOF + CARD / 2,
        HELLO + PROOF + CARD,
    ];
    let outcome = CHALLENGE + ADMISSION + OUTCOME / 2;
    let hears = [CHALLENGE / 2, CHALLENGE, CHALLENGE + ADMISSION / 2, CHALLENGE + ADMISSION, outcome];
    let places = says.map(|at| (true, at)).into_iter().chain(hears.map(|at| (false, at)));
    run_all(places.flat_map(|(says, at)| {
        FAULTS.map(|fault| Case { fault, place: Place::Byte(at), says, is_plain: false })
    }));
}
