//! Unauthenticated peers get no byte, disturb no member, and are reported.

use std::thread::sleep;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::rendezvous::read_outcome;
use super::super::wire::{CHALLENGE, HELLO, Header, LINK, MAGIC, NOISE, Outcome};
use super::*;
use crate::conformance::receive;
use crate::{Network, Tag};

/// Says these bytes and gives back all that is answered until the connection ends.
async fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The other end may close before it has taken everything.
    let _ = stream.write_all(bytes).await;
    rest(&mut stream).await
}

async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.expect("was not closed");
    answer
}

/// A job of two whose rank 1 is played by the test, with the link to rank 0 that the rendezvous made.
pub(super) async fn met() -> (Job, TcpNetwork, Stream, Box<dyn Link>) {
    met_as(false).await
}

pub(super) async fn met_as(is_plain: bool) -> (Job, TcpNetwork, Stream, Box<dyn Link>) {
    let mut job = Job::start_as(2, LONG, is_plain).await;
    let mut stream = job.come(1).await;
    assert!(matches!(read_outcome(&mut stream).await.unwrap(), Outcome::Complete(_)));
    let mut zero = (&mut job.zero).await.unwrap().unwrap();
    let link = up(&mut zero, 1).await;
    (job, zero, stream, link)
}

/// What unauthenticated peers may send: none of it is answered.
fn invalid(job: &Job) -> Vec<Vec<u8>> {
    let forged = said(&Secret::random().unwrap().key_of(ID), &job.hello(1));
    let of_another_job = said(&job.secret.key_of("16"), &job.hello(1));
    let mut altered = job.said(&job.hello(1));
    altered[16] ^= 2;
    let mut almost = job.said(&job.hello(1));
    *almost.last_mut().unwrap() ^= 1;
    let mut huge = Header { length: u32::MAX, tag: Tag(u64::MAX), sum: 0 }.encode().to_vec();
    huge.resize(4096, 0xff);
    let mut magic_only = MAGIC.to_vec();
    magic_only.resize(MAGIC.len() + HELLO + NOISE, 0xff);
    let itself = job.said(&job.hello(0));
    let http = b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n".to_vec();
    vec![forged, of_another_job, altered, almost, huge, magic_only, itself, http, vec![0; 100_000]]
}

#[tokio::test]
async fn unauthenticated_peers_get_no_byte_and_the_job_begins() {
    let job = Job::start(2, LONG).await;
    let silent = TcpStream::connect(job.address).await.unwrap();
    let mut halfway = TcpStream::connect(job.address).await.unwrap();
    halfway.write_all(&job.said(&job.hello(1))[..50]).await.unwrap();
    for bytes in invalid(&job) {
        assert_eq!(answer(job.address, &bytes).await, []);
    }
    let one = join(job.config(1)).await.unwrap();
    let mut zero = job.zero.await.unwrap().unwrap();
    // Each was reported, except those who may still speak.
    for _ in 0..9 {
        refused(&mut zero).await;
    }
    up(&mut zero, 1).await;
    for mut peer in [silent, halfway] {
        peer.shutdown().await.unwrap();
        assert_eq!(rest(&mut peer).await, []);
    }
    drop(one);
}

#[tokio::test]
async fn unauthenticated_peers_get_no_byte_while_the_job_goes_on() {
    let (job, mut zero, mut stream, mut link) = met().await;
    for bytes in invalid(&job) {
        assert_eq!(answer(job.address, &bytes).await, []);
        refused(&mut zero).await;
    }
    write(&mut stream, &Header { length: 2, tag: Tag(5), sum: 0 }.encode()).await;
    write(&mut stream, b"ok").await;
    assert_eq!(receive(&mut *link).await.unwrap().payload, "ok");
}

#[tokio::test]
async fn many_silent_connections_delay_no_member() {
    let job = Job::start(2, LONG).await;
    let mut callers = Vec::new();
    for _ in 0..200 {
        callers.push(TcpStream::connect(job.address).await.unwrap());
    }
    let one = join(JoinConfig { timeout: LONG, ..job.config(1) }).await.unwrap();
    let zero = job.zero.await.unwrap().unwrap();
    drop((one, zero));
    for mut peer in callers {
        assert_eq!(rest(&mut peer).await, []);
    }
}

const FLOOD: &str = "GLEANER_TEST_FLOOD";

/// Not a test of its own: as a process of its own, it opens a thousand connections a second, says nothing, and keeps them.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn flood_process() {
    let Ok(address) = std::env::var(FLOOD) else { return };
    let address = address.parse::<SocketAddr>().unwrap().into();
    let (begun, mut callers) = (std::time::Instant::now(), Vec::new());
    while begun.elapsed() < LONG {
        sleep(Duration::from_millis(1));
        while callers.len() < begun.elapsed().as_millis() as usize {
            let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, None) else { return sleep(LONG) };
            socket.set_nonblocking(true).unwrap();
            // It is under way.
            let _ = socket.connect(&address);
            callers.push(socket);
        }
    }
}

/// A process that ends with this.
struct Flooding(std::process::Child);

impl Drop for Flooding {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thousand silent connections a second delay joining and links by less than two seconds, at least once in a few times: on a
/// machine that stands still meanwhile, it takes longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_silent_connections_delays_no_member_for_long() {
    let mut took = Vec::new();
    for _ in 0..3 {
        took.push(under_flood().await);
        if took.last().is_some_and(|took| *took < Duration::from_secs(2)) {
            return;
        }
    }
    panic!("joining and a link took {took:?}");
}

/// How long joining and a link take meanwhile.
async fn under_flood() -> Duration {
    let job = Job::start(2, LONG).await;
    let program = std::env::current_exe().unwrap();
    let flood = "ulimit -n $(ulimit -H -n) && exec \"$0\" --exact tcp::tests::unauthenticated::flood_process --ignored --nocapture";
    let flood = std::process::Command::new("sh")
        .args(["-c", flood])
        .arg(program)
        .env(FLOOD, job.address.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut flood = Flooding(flood);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let begun = tokio::time::Instant::now();
    let mut one = join(job.config(1)).await.unwrap();
    let mut zero = job.zero.await.unwrap().unwrap();
    drop((up(&mut one, 0).await, up(&mut zero, 1).await));
    one.open(Peer(0));
    drop((up(&mut one, 0).await, up(&mut zero, 1).await));
    let took = begun.elapsed();
    assert!(flood.0.try_wait().unwrap().is_none(), "the flood has ended");
    took
}

#[tokio::test]
async fn a_recorded_hello_is_not_answered_again() {
    let (job, mut zero, _stream, _link) = met().await;
    let recorded = job.said(&Hello { purpose: LINK, ..job.hello(1) });
    let mut stream = TcpStream::connect(job.address).await.unwrap();
    stream.write_all(&recorded).await.unwrap();
    stream.read_exact(&mut [0; CHALLENGE + NOISE]).await.unwrap();
    assert_eq!(answer(job.address, &recorded).await, []);
    assert_eq!(refused(&mut zero).await, "its hello was received before, so it was recorded and sent again");
}

/// A hello that never reached us may be answered, but who took it cannot go on, and what it claims is void.
#[tokio::test]
async fn a_stolen_hello_leads_nowhere() {
    let job = Job::start(3, LONG).await;
    let mut earlier = vec![0; 33];
    for step in 0..3 {
        let hello = job.said(&Hello { workers: 9, ..job.hello(1) });
        let mut stream = TcpStream::connect(job.address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        let mut challenge = [0; CHALLENGE + NOISE];
        stream.read_exact(&mut challenge).await.unwrap();
        // Nothing, what was answered, and what was answered to another.
        let proof = if step == 1 { challenge[..33].to_vec() } else { earlier };
        stream.write_all(&[&[13, 0, 0, 0], &proof[4..]].concat()).await.unwrap();
        assert_eq!(rest(&mut stream).await, []);
        earlier = challenge[..33].to_vec();
    }
    // Had the claim of nine workers counted, the job would have failed.
    let (one, two) = tokio::join!(join(job.config(1)), join(job.config(2)));
    assert!(one.is_ok() && two.is_ok() && job.zero.await.unwrap().is_ok());
}

/// Someone without the key who answers in an acceptor's place, by sending back what it receives or by making things up.
#[tokio::test]
async fn who_answers_must_know_the_secret() {
    let job = Job::start(2, LONG).await;
    for step in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let impostor = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; MAGIC.len() + HELLO + NOISE];
            stream.read_exact(&mut hello).await.unwrap();
            let answer = match step {
                0 => &hello[..CHALLENGE + NOISE],
                1 => &hello[MAGIC.len()..][..CHALLENGE + NOISE],
                _ => &[9; CHALLENGE + NOISE],
            };
            stream.write_all(answer).await.unwrap();
            assert_eq!(rest(&mut stream).await, [], "an impostor was answered");
        };
        let dialler = async {
            let socket = TcpStream::connect(address).await.unwrap();
            speak(socket, &job.key(), &job.hello(1), &card(1)).await
        };
        let (admission, ()) = tokio::join!(dialler, impostor);
        assert!(matches!(admission, Err(HandshakeError::Impostor)), "{admission:?}");
    }
    job.zero.abort();
}

#[tokio::test]
async fn a_worker_that_does_not_fit_is_refused_and_the_job_goes_on() {
    let (job, mut zero, _stream, _link) = met().await;
    for (hello, expected) in [
        (Hello { purpose: LINK, workers: 3, ..job.hello(1) }, "was started for 3 workers and rank 0 for 2"),
        (
            Hello { purpose: LINK, version: 9, ..job.hello(1) },
            "speaks protocol version 9 and rank 0 speaks version 8",
        ),
        (
            Hello { purpose: LINK, timeout: 3000, ..job.hello(1) },
            "was started with a timeout of 3 s and rank 0 with 60 s: give every worker the same one",
        ),
        (
            Hello { purpose: LINK, sockets: 4, ..job.hello(1) },
            "was started with 4 sockets for each link and rank 0 with 1 socket for each link: give every worker the same number",
        ),
        (
            Hello { purpose: LINK, epoch: 299, ..job.hello(1) },
            "rank 1 at 127.0.0.1 belongs to membership epoch 299 of the job and rank 0 to epoch 300",
        ),
        (Hello { purpose: LINK, ..job.hello(5) }, "ranks are numbered from 0 to 1"),
        (job.hello(1), "was it started twice?"),
    ] {
        let sentence = job.refusal(&hello).await;
        assert!(sentence.contains(expected), "{sentence}");
        assert_eq!(refused(&mut zero).await, sentence);
    }
    assert_eq!(zero.counters().read().links, 1);
}
